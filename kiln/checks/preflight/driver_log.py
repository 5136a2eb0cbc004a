"""The kernel log tells of no GPU that failed to start and of no uncorrected PCIe error."""

from __future__ import annotations

from collections.abc import Iterator

from kiln.checks.each import node, plural
from kiln.facts import Facts, known
from kiln.topologies import Topology
from kiln.verdict import Finding, failed, passed

_STARTS = {
    "WPR2": ("the GPU was not reset since its last driver", "switch the node's power off and on"),
    "RmInitAdapter": ("the closed module, no room for its BARs, or a broken GPU",
                      "install the open module; set Above 4G Decoding and Resizable BAR in the BIOS"),
    "API mismatch": ("libraries and kernel module are of two versions", "reboot the node"),
    "fallen off": ("the GPU lost power or its link", "switch the node's power off and on; check cables and cooling"),
}  # fmt: skip


def judge(facts: Facts, topology: Topology) -> Iterator[Finding]:
    """Judge the lines that are no Xid."""
    here = node(facts)
    log = known(here.kernel_log, "the kernel log", here.why("kmsg", "journalctl", "dmesg"))
    for word, (cause, cure) in _STARTS.items():
        lines = [line.text for line in log.driver_errors if word in line.text]
        if lines:
            yield failed(f"{plural(len(lines), 'line')} in the kernel log: {lines[-1]}", cause=cause, cure=cure)
    if log.pcie_errors:
        yield failed(
            f"{plural(len(log.pcie_errors), 'line')} in the kernel log: {log.pcie_errors[-1].text}",
            cause="a PCIe link failed: power saving of the link, a riser or cable, or a GPU that is not seated",
            cure="boot with pcie_aspm=off pcie_port_pm=off; reseat the GPU, use a shorter cable",
        )
    if not log.driver_errors and not log.pcie_errors:
        yield passed("no failed start and no PCIe error")
