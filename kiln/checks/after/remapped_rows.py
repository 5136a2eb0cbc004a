"""The load brought no row of memory that must be replaced."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from kiln.checks.each import before_and_after, each
from kiln.facts import Facts, known
from kiln.facts.node import GpuFacts
from kiln.topologies import Topology
from kiln.verdict import Finding, failed, passed


def judge(facts: Facts, topology: Topology) -> Iterator[Finding]:
    """Judge what is new since the preflight: a row more, pending, or not replaced."""
    if "row-remapping" in topology.gpus.lacks:
        yield passed("this GPU replaces no rows")
        return
    before, after = before_and_after(facts)
    yield from each(after, partial(_one, before), passed("no row more than before"))


def _one(before: dict[str, GpuFacts], gpu: GpuFacts) -> Finding | None:
    old, new = _state(before[gpu.bus_id]), _state(gpu)
    if new == old:
        return None
    return failed(
        f"rows replaced, pending, not replaceable: {_words(new)}; before the run {_words(old)}",
        cause="memory of the GPU failed under load",
        cure=f"reset the GPU (nvidia-smi -i {gpu.index} -r) or reboot, run again; if it comes back, replace the GPU",
    )


def _state(gpu: GpuFacts) -> tuple[int, bool, bool]:
    return (
        known(gpu.remapped_uncorrectable, "the number of replaced rows"),
        known(gpu.remap_pending, "whether a row waits for its replacement"),
        known(gpu.remap_failure, "whether a row could not be replaced"),
    )


def _words(state: tuple[int, bool, bool]) -> str:
    rows, pending, failure = state
    return f"{rows}, {'yes' if pending else 'no'}, {'yes' if failure else 'no'}"
