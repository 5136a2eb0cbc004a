"""Each GPU's PCIe link has all its lanes, and can run at its generation."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from kiln.checks.each import each, gpus
from kiln.facts import Facts, known
from kiln.facts.node import GpuFacts
from kiln.topologies import Pcie, Topology
from kiln.verdict import Finding, failed, passed, warned


def judge(facts: Facts, topology: Topology) -> Iterator[Finding]:
    """Judge the width, which never changes. An idle link runs at generation 1: the speed is judged under load."""
    widths = "/".join(sorted({f"x{gpu.link_width}" for gpu in gpus(facts)}))
    speeds = "/".join(sorted({f"Gen{gpu.link_generation}" for gpu in gpus(facts)}))
    if topology.pcie is None:
        yield passed(f"{widths}, {speeds} now; no limit in this topology")
        return
    yield from each(gpus(facts), partial(_one, topology.pcie), passed(f"{widths}, {speeds} now"))


def _one(wanted: Pcie, gpu: GpuFacts) -> Finding | None:
    width = known(gpu.link_width, "the link's width")
    if width < wanted.width:
        return failed(
            f"x{width}, x{wanted.width} is wanted",
            cause="lanes do not work: the GPU is not seated, a riser or cable is bad, or the slot is shared",
            cure="reseat the GPU, change the riser or cable, look at the BIOS's lane split",
            link_width=width,
        )
    most = known(gpu.link_generation_max, "the link's highest generation")
    if most < wanted.generation:
        return warned(
            f"Gen{most} at most, Gen{wanted.generation} is wanted",
            cause="the slot or the BIOS limits the speed",
            cure="set the slot to Auto or to its generation in the BIOS",
            link_generation_max=most,
        )
    return None
