"""All GPUs compute at once for the whole time, and every result is the same."""

from __future__ import annotations

from collections.abc import Iterator

from kiln.checks import parts
from kiln.checks.each import plural
from kiln.facts import Facts, known
from kiln.facts.fabric import HeatGpu
from kiln.topologies import Topology
from kiln.verdict import Finding, failed, passed


def judge(facts: Facts, topology: Topology) -> Iterator[Finding]:
    """Judge whether each GPU lived through the load and computed the same bits each time."""
    found = parts.heat(facts)
    bad = [finding for gpu in found.gpus if (finding := _judge(gpu))]
    yield from bad or [passed(f"{plural(len(found.gpus), 'GPU')} for {found.seconds:.0f} s, every result the same")]


def _judge(gpu: HeatGpu) -> Finding | None:
    known(None if gpu.ended.not_run else 1, "the load", gpu.ended.not_run or "")
    if gpu.ended.error:
        return failed(
            f"does not live through the load: {gpu.ended.error}",
            gpu.label,
            cause="the GPU fell off the bus or hangs under load: heat, power supply, or a broken GPU",
            cure="read the kernel log for Xid; check power cables and fans; try a lower power limit",
        )
    if gpu.wrong:
        return failed(
            f"{gpu.wrong} numbers differ between runs of the same product",
            gpu.label,
            cause="the GPU computes or stores wrongly under load: it is broken",
            cure="take it out of service and have it replaced",
            wrong=gpu.wrong,
        )
    known(gpu.wrong, f"the results of {gpu.label}")
    return None
