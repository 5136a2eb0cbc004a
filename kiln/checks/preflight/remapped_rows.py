"""No row of memory waits for its replacement, and none could not be replaced."""

from __future__ import annotations

from collections.abc import Iterator

from kiln.checks.each import each, gpus
from kiln.facts import Facts, known
from kiln.facts.node import GpuFacts
from kiln.topologies import Topology
from kiln.verdict import Finding, failed, passed, warned


def judge(facts: Facts, topology: Topology) -> Iterator[Finding]:
    """Judge: a pending row needs a reset, a failed one a new GPU; replaced rows alone are worth a look."""
    if "row-remapping" in topology.gpus.lacks:
        yield passed("this GPU replaces no rows")
        return
    corrected = sum(gpu.remapped_correctable or 0 for gpu in gpus(facts))
    yield from each(gpus(facts), _one, passed("no row pending, none failed", remapped_correctable=corrected))


def _one(gpu: GpuFacts) -> Finding | None:
    if known(gpu.remap_failure, "whether a row could not be replaced"):
        return failed(
            "a row of memory could not be replaced",
            cause="the GPU has no spare rows left in that bank",
            cure="replace the GPU",
        )
    if known(gpu.remap_pending, "whether a row waits for its replacement"):
        return failed(
            "a row of memory waits for its replacement",
            cause="an uncorrected error was found; the row is replaced at the next reset, until then it may fail again",
            cure=f"reset the GPU (nvidia-smi -i {gpu.index} -r) or reboot, then run the check again",
        )
    rows = known(gpu.remapped_uncorrectable, "the number of replaced rows")
    if rows:
        return warned(
            f"{rows} rows were replaced after uncorrected errors",
            cause="memory of the GPU failed before",
            cure="watch it: if the number grows, replace the GPU",
            remapped_uncorrectable=rows,
        )
    return None
