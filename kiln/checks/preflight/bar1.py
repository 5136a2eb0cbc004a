"""BAR1 covers the GPU's memory."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from kiln.checks.each import each, gpus
from kiln.facts import Facts, known
from kiln.facts.node import GpuFacts
from kiln.topologies import Topology
from kiln.verdict import Finding, failed, passed


def judge(facts: Facts, topology: Topology) -> Iterator[Finding]:
    """Judge: other GPUs reach the memory through BAR1 only; without resizable BAR it is 256 MiB."""
    least = topology.bar1_min_mib
    sizes = ", ".join(sorted({f"{gpu.bar1_total_mib:.0f} MiB" for gpu in gpus(facts) if gpu.bar1_total_mib}))
    if least is None:
        yield passed(f"BAR1 is {sizes or 'not known'}; no limit in this topology")
        return
    yield from each(gpus(facts), partial(_one, least), passed(f"BAR1 is {sizes}"))


def _one(least: float, gpu: GpuFacts) -> Finding | None:
    size = known(gpu.bar1_total_mib, "BAR1's size")
    if size >= least:
        return None
    return failed(
        f"BAR1 is {size:.0f} MiB, {least:.0f} are wanted",
        cause="resizable BAR is off, or the GPU is in its display mode: peers reach a small window of its memory only",
        cure="set Above 4G Decoding and Resizable BAR in the BIOS; switch a display mode off with displaymodeselector",
        bar1_total_mib=size,
    )
