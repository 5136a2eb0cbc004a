"""The PCIe link of each GPU has its full generation and width under load."""

from __future__ import annotations

from collections.abc import Iterator

from kiln.checks import parts
from kiln.facts import Facts
from kiln.facts.fabric import GpuCopies
from kiln.topologies import Pcie, Topology
from kiln.verdict import Finding, failed, not_run, passed


def judge(facts: Facts, topology: Topology) -> Iterator[Finding]:
    """Judge what NVML said while copies ran: an idle link runs at Gen1 on a healthy node (case D12)."""
    found = parts.bandwidth(facts)
    for gpu in found.gpus:
        yield _judge(gpu, topology.pcie)


def _judge(gpu: GpuCopies, want: Pcie | None) -> Finding:
    generation, width = gpu.link_generation, gpu.link_width
    if generation is None or width is None:
        return not_run("NVML told no link during the copies", gpu.label, cause="no NVML, or the copies failed")
    words = f"Gen{generation} x{width} under load"
    numbers = {"link_generation": generation, "link_width": width}
    if want is None or (generation >= want.generation and width >= want.width):
        return passed(words, gpu.label, **numbers)
    return failed(
        f"{words}, not Gen{want.generation} x{want.width}",
        gpu.label,
        cause="the link trained down: riser, cable, slot, dirty contacts, or the BIOS's setting of the slot",
        cure="reseat the GPU, change the riser or cable (below 30 cm); power the node off and on, then measure again",
        **numbers,
    )
