"""The image was built for these GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from kiln.checks.each import each, gpus
from kiln.facts import Facts, known
from kiln.facts.node import GpuFacts
from kiln.topologies import Topology
from kiln.verdict import Finding, failed, not_run, passed


def judge(facts: Facts, topology: Topology) -> Iterator[Finding]:
    """Judge before the pull: kernels for another GPU end with "no kernel image is available"."""
    if facts.image is None:
        yield not_run("no image was named", required=False)
        return
    built = known(facts.image.compute_capability, "the image's GPU target", "it has no label kiln.arch")
    yield from each(gpus(facts), partial(_one, built), passed(f"the image is for compute capability {built}"))


def _one(built: str, gpu: GpuFacts) -> Finding | None:
    has = known(gpu.compute_capability, "the compute capability")
    if has == built:
        return None
    return failed(
        f"has compute capability {has}, the image is for {built}",
        cause="the image holds kernels for another GPU only",
        cure="build or pull the image for this node's GPUs",
    )
