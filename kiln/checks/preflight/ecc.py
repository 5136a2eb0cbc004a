"""ECC is on where the topology asks for it, and no error was left uncorrected."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from kiln.checks.each import each, gpus
from kiln.facts import Facts, known
from kiln.facts.node import GpuFacts
from kiln.topologies import Topology
from kiln.verdict import Finding, failed, passed, warned


def judge(facts: Facts, topology: Topology) -> Iterator[Finding]:
    """Judge: uncorrected errors since the driver started fail, older ones warn, corrected ones are no fault."""
    if "ecc" in topology.gpus.lacks:
        yield passed("this GPU has no ECC")
        return
    corrected = sum(gpu.ecc_volatile_corrected or 0 for gpu in gpus(facts))
    good = passed("no uncorrected error", ecc_volatile_corrected=corrected)
    yield from each(gpus(facts), partial(_one, topology), good)


def _one(topology: Topology, gpu: GpuFacts) -> Finding | None:
    if not known(gpu.ecc, "ECC's mode"):
        return _off(gpu) if topology.gpus.ecc == "on" else None
    now = known(gpu.ecc_volatile_uncorrected, "the count of uncorrected errors")
    if now:
        return failed(
            f"{now} uncorrected ECC errors since the driver started",
            cause="memory of the GPU fails; what was computed meanwhile may be wrong",
            cure=f"reset the GPU (nvidia-smi -i {gpu.index} -r) or reboot; if it comes back, replace the GPU",
            ecc_volatile_uncorrected=now,
        )
    ever = known(gpu.ecc_aggregate_uncorrected, "the count of uncorrected errors ever")
    if ever:
        return warned(
            f"{ever} uncorrected ECC errors in its life, none since the driver started",
            cause="memory of the GPU failed before",
            cure="watch it: if the count grows, replace the GPU",
            ecc_aggregate_uncorrected=ever,
        )
    return None


def _off(gpu: GpuFacts) -> Finding:
    return warned(
        "ECC is off",
        cause="errors in memory are neither corrected nor seen",
        cure=f"nvidia-smi -i {gpu.index} -e 1, then reboot",
    )
