"""The load brought no PCIe error."""

from __future__ import annotations

from collections.abc import Iterator

from kiln.checks.each import pci
from kiln.facts import Facts, known
from kiln.facts.node import Aer, NodeFacts
from kiln.topologies import Topology
from kiln.verdict import Finding, failed, not_run, passed, warned

_CURE = "reseat the GPU, use a shorter cable or another riser; boot with pcie_aspm=off pcie_port_pm=off"


def judge(facts: Facts, topology: Topology) -> Iterator[Finding]:
    """Judge what was counted since the preflight: a good link counts none at all."""
    pci(facts)
    before, after = _counts(known(facts.node, "the node")), _counts(known(facts.after, "the node after the load"))
    both = sorted(before.keys() & after.keys())
    if not both:
        yield not_run(
            "the kernel counts no PCIe errors here", cause="no AER: a virtual machine, or pci=noaer", required=False
        )
        return
    bad = [finding for bus_id in both for finding in _of(bus_id, before[bus_id], after[bus_id])]
    yield from bad or [passed(f"no PCIe error at {len(both)} devices")]


def _counts(node: NodeFacts) -> dict[str, Aer]:
    return node.pci.counted if node.pci else {}


def _of(bus_id: str, before: Aer, after: Aer) -> Iterator[Finding]:
    subject = f"PCI {bus_id}"
    for kind in ("fatal", "nonfatal"):
        if new := _new(getattr(before, kind), getattr(after, kind)):
            cause = "the PCIe link failed under load"
            yield failed(f"{kind} PCIe errors during the run: {new}", subject, cause=cause, cure=_CURE)
    if new := _new(before.correctable, after.correctable):
        cause = "the signal on the link is bad: transfers are repeated, and ranks wait for each other"
        yield warned(f"corrected PCIe errors during the run: {new}", subject, cause=cause, cure=_CURE)


def _new(before: dict[str, int], after: dict[str, int]) -> str:
    added = {kind: count - before.get(kind, 0) for kind, count in sorted(after.items())}
    return ", ".join(f"{kind} {count}" for kind, count in added.items() if count > 0)
