"""The PCIe links above and at the GPUs counted no uncorrected error since boot."""

from __future__ import annotations

from collections.abc import Iterator

from kiln.checks.each import pci
from kiln.facts import Facts
from kiln.facts.node import Aer
from kiln.topologies import Topology
from kiln.verdict import Finding, failed, not_run, passed, warned

# Raised by harmless probing while the bus is searched.
_HARMLESS = ("UnsupReq",)


def judge(facts: Facts, topology: Topology) -> Iterator[Finding]:
    """Judge: fatal ones fail, others warn; corrected ones are judged by what the load adds."""
    counted = pci(facts).counted
    if not counted:
        yield not_run(
            "the kernel counts no PCIe errors here", cause="no AER: a virtual machine, or pci=noaer", required=False
        )
        return
    bad = [finding for bus_id, aer in counted.items() for finding in _of(bus_id, aer)]
    corrected = sum(sum(aer.correctable.values()) for aer in counted.values())
    yield from bad or [passed("no uncorrected error since boot", aer_correctable=corrected)]


def _of(bus_id: str, aer: Aer) -> Iterator[Finding]:
    cure = "reseat the GPU, change the riser or cable; boot with pcie_aspm=off pcie_port_pm=off"
    cause = "the PCIe link failed"
    if aer.fatal:
        yield failed(f"fatal PCIe errors: {_list(aer.fatal)}", f"PCI {bus_id}", cause=cause, cure=cure)
    nonfatal = {kind: count for kind, count in aer.nonfatal.items() if kind not in _HARMLESS}
    if nonfatal:
        yield warned(f"uncorrected PCIe errors: {_list(nonfatal)}", f"PCI {bus_id}", cause=cause, cure=cure)


def _list(counts: dict[str, int]) -> str:
    return ", ".join(f"{kind} {count}" for kind, count in sorted(counts.items()))
