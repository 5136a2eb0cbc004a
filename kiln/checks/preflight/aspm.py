"""Power saving of the PCIe links is off."""

from __future__ import annotations

from collections.abc import Iterator

from kiln.checks.each import pci
from kiln.facts import Facts, known
from kiln.topologies import Topology
from kiln.verdict import Finding, passed, warned

REQUIRED = False
_OFF = {"pcie_aspm=off", "pcie_port_pm=off"}


def judge(facts: Facts, topology: Topology) -> Iterator[Finding]:
    """Judge the boot parameters: links that save power went down under load (rtx6kpro, March 2026)."""
    bus = pci(facts)
    words = {*known(bus.cmdline, "the boot parameters")}
    missing = sorted(_OFF - words - ({"pcie_aspm=off"} if bus.aspm == "performance" else set()))
    if not missing:
        yield passed("links save no power")
    elif all(not gpu.bridges for gpu in bus.gpus):
        yield passed("the GPUs have no bridge above them here: a virtual machine, its host decides")
    else:
        yield warned(
            f"ASPM policy {bus.aspm or 'not known'}; not among the boot parameters: {' '.join(missing)}",
            cause="a link that saves power may go down under load and take the GPU with it (Xid 79)",
            cure=f"boot with {' '.join(missing)}",
        )
