"""All GPUs may draw the same power, and as much as the topology asks for."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from kiln.checks.each import each, gpus
from kiln.facts import Facts, known
from kiln.facts.node import GpuFacts
from kiln.topologies import Topology
from kiln.verdict import Finding, Verdict, passed, warned


def judge(facts: Facts, topology: Topology) -> Iterator[Finding]:
    """Judge the limit that is enforced: 300 W instead of 600 W costs 30 % at 64 users (rtx6kpro, March 2026)."""
    limits = sorted({gpu.power_limit_w for gpu in gpus(facts) if gpu.power_limit_w is not None})
    if len(limits) > 1:
        yield warned(
            f"the power limits differ: {', '.join(f'{limit:.0f} W' for limit in limits)}",
            cause="tensor parallelism runs at the pace of the slowest GPU",
            cure=f"nvidia-smi -pl {limits[-1]:.0f}",
        )
    lowest = min(limits, default=0.0)
    found = each(gpus(facts), partial(_one, topology), passed(f"power limit {lowest:.0f} W", power_limit_w=lowest))
    yield from (one for one in found if len(limits) == 1 or one.verdict is not Verdict.PASS)


def _one(topology: Topology, gpu: GpuFacts) -> Finding | None:
    limit = known(gpu.power_limit_w, "the power limit")
    least = topology.power_limit_min_w
    if least is not None and limit < least:
        return warned(
            f"power limit {limit:.0f} W, {least:.0f} W are wanted",
            cause="the limit was lowered by hand or by the BMC",
            cure=f"nvidia-smi -i {gpu.index} -pl {gpu.power_default_w or least:.0f}",
            power_limit_w=limit,
        )
    return None
