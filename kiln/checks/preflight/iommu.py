"""The IOMMU does not stand between GPUs."""

from __future__ import annotations

from collections.abc import Iterator

from kiln.checks.each import node, pci, plural
from kiln.facts import Facts, known
from kiln.topologies import Topology
from kiln.verdict import Finding, passed, warned

# What the kernel names the kinds of a group: "identity" passes addresses on as they are.
HARMLESS = ("none", "identity")


def judge(facts: Facts, topology: Topology) -> Iterator[Finding]:
    """Judge: with translation the first all-reduce may hang (nccl issue 1999); the fabric's checks measure it."""
    bus = pci(facts)
    kinds = {gpu.bus_id: known(gpu.iommu, f"the IOMMU of {gpu.bus_id}", node(facts).why("iommu")) for gpu in bus.gpus}
    said = ", ".join(sorted({*kinds.values()}))
    translated = [bus_id for bus_id, kind in kinds.items() if kind not in HARMLESS]
    if not translated or len(bus.gpus) == 1:
        yield passed(f"IOMMU of the GPUs: {said}")
        return
    module = node(facts).module
    hmm = "" if module and module.hmm_disabled else ", and set uvm_disable_hmm=1 for nvidia_uvm"
    boot = " ".join(bus.cmdline or ()) or "-"
    yield warned(
        f"the IOMMU translates for {plural(len(translated), 'GPU')} ({said}); boot: {boot}",
        cause="copies between GPUs go through the IOMMU: slow, and the first all-reduce may hang",
        cure=f"boot with iommu=pt (or iommu=off){hmm}",
    )
