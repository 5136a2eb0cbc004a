"""The load brought no uncorrected ECC error."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from kiln.checks.each import before_and_after, each
from kiln.facts import Facts, known
from kiln.facts.node import GpuFacts
from kiln.topologies import Topology
from kiln.verdict import Finding, failed, passed


def judge(facts: Facts, topology: Topology) -> Iterator[Finding]:
    """Judge what was counted since the preflight; corrected errors are told, and no fault."""
    if "ecc" in topology.gpus.lacks:
        yield passed("this GPU has no ECC")
        return
    before, after = before_and_after(facts)
    corrected = sum(_grown(before[gpu.bus_id].ecc_volatile_corrected, gpu.ecc_volatile_corrected) or 0 for gpu in after)
    good = passed("no uncorrected error during the run", ecc_corrected=corrected)
    yield from each(after, partial(_one, before), good)


def _grown(before: int | None, after: int | None) -> int | None:
    return None if before is None or after is None else after - before


def _one(before: dict[str, GpuFacts], gpu: GpuFacts) -> Finding | None:
    if gpu.ecc is False:
        return None
    new = known(
        _grown(before[gpu.bus_id].ecc_volatile_uncorrected, gpu.ecc_volatile_uncorrected),
        "the count of uncorrected errors",
    )
    if new <= 0:
        return None
    return failed(
        f"{new} uncorrected ECC errors during the run",
        cause="memory of the GPU fails; what was computed in this run may be wrong",
        cure=f"reset the GPU (nvidia-smi -i {gpu.index} -r) or reboot, run again; if it comes back, replace the GPU",
        ecc_volatile_uncorrected=new,
    )
