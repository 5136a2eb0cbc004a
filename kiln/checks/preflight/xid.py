"""The driver logged no error (Xid) of the hardware since boot."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby

from kiln.checks.each import node, plural
from kiln.facts import Facts, known
from kiln.facts.node import GpuFacts, Xid
from kiln.topologies import Topology
from kiln.verdict import Finding, failed, passed, warned

_RESET = "reset the GPU or reboot; if it comes back, replace the GPU"
_POWER = "switch the node's power off and on; check power cables, cooling and the power limit"
# NVIDIA's Xid catalogue; which of them condemn a node: DCGM, awslabs and gpud agree on these.
HARDWARE = {
    48: ("an uncorrected ECC error", _RESET),
    63: ("a row of memory is to be replaced", "reset the GPU or reboot, then look at its remapped rows"),
    64: ("a row of memory could not be replaced", "replace the GPU"),
    74: ("an NVLink error", "reseat the bridge or board; if it comes back, replace the GPU"),
    79: ("the GPU has fallen off the bus", _POWER),
    94: ("a contained memory error", _RESET),
    95: ("an uncontained memory error", _RESET),
    119: ("the GPU's own processor (GSP) does not answer", _POWER),
    120: ("the GPU's own processor (GSP) failed", _POWER),
    140: ("an unrecovered ECC error", _RESET),
    154: ("the driver asks for a recovery of the GPU", "reboot the node; power it off and on if it comes back"),
}
# Most often a program's own fault.
PROGRAM = {
    13: "a program's kernel did what it may not",
    31: "a program read or wrote memory that is not its own",
    43: "a program's work was stopped",
    45: "a program was ended while it computed",
}


def judge(facts: Facts, topology: Topology) -> Iterator[Finding]:
    """Judge by the number: hardware fails, a program's own fault warns, so does a number that is not known here."""
    here = node(facts)
    log = known(here.kernel_log, "the kernel log", here.why("kmsg", "journalctl", "dmesg"))
    since = "since boot" if log.from_boot else "in what is left of the kernel log"
    yield from findings(log.xids, here.gpus, since)
    if not log.xids:
        yield passed(f"no Xid {since}")


def findings(xids: Iterable[Xid], gpus: Iterable[GpuFacts], since: str) -> Iterator[Finding]:
    """Yield one finding for each GPU and number."""
    labels = {gpu.bus_id: gpu.label for gpu in gpus}
    ordered = sorted(xids, key=lambda one: (one.bus_id, one.code))
    for (bus_id, code), group in groupby(ordered, key=lambda one: (one.bus_id, one.code)):
        yield _finding(labels.get(bus_id, f"PCI {bus_id}"), code, [*group], since)


def _finding(subject: str, code: int, xids: list[Xid], since: str) -> Finding:
    message = f"Xid {code} {since}, {plural(len(xids), 'time')}: {xids[-1].text}"
    if code in HARDWARE:
        cause, cure = HARDWARE[code]
        return failed(message, subject, cause=cause, cure=cure, xid=code, times=len(xids))
    cause = PROGRAM.get(code, "not one of those that condemn a GPU; see NVIDIA's Xid catalogue")
    cure = "look at what ran then; if no program is at fault, test the GPU in another slot"
    return warned(message, subject, cause=cause, cure=cure, xid=code, times=len(xids))
