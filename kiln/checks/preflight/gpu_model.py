"""All GPUs are of one model, the one of the topology."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from kiln.checks.each import each, gpus
from kiln.facts import Facts, known
from kiln.facts.node import GpuFacts
from kiln.topologies import Topology
from kiln.verdict import Finding, Verdict, failed, passed, warned


def judge(facts: Facts, topology: Topology) -> Iterator[Finding]:
    """Judge names and compute capabilities."""
    names = sorted({gpu.name or "?" for gpu in gpus(facts)})
    capabilities = sorted({gpu.compute_capability or "?" for gpu in gpus(facts)})
    said = f"{', '.join(names)}, compute capability {', '.join(capabilities)}"
    if len(names) > 1:
        yield warned(
            f"the GPUs are of {len(names)} models: {', '.join(names)}",
            cause="tensor parallelism runs at the pace of the slowest, with the memory of the smallest",
            cure="put GPUs of one model into a node",
        )
    found = each(gpus(facts), partial(_one, topology), passed(said))
    yield from (one for one in found if len(names) == 1 or one.verdict is not Verdict.PASS)


def _one(topology: Topology, gpu: GpuFacts) -> Finding | None:
    name, capability = known(gpu.name, "the model"), known(gpu.compute_capability, "the compute capability")
    wanted = topology.gpus.compute_capability
    if not topology.match.any_gpu and name not in topology.match.gpu_names:
        return failed(
            f"is a {name}, topology {topology.name} is of {', '.join(topology.match.gpu_names)}",
            cause="the topology is of another node",
            cure="name the topology that fits, or add one",
        )
    if wanted not in (None, capability):
        return failed(
            f"has compute capability {capability}, topology {topology.name} has {wanted}",
            cause="the topology is of another GPU",
            cure="correct gpus.compute_capability in the topology",
        )
    return None
