"""The node after the load against the node before it."""

from __future__ import annotations

import pytest

from kiln import checks, topologies
from kiln.facts import Facts
from kiln.facts.node import Aer, NodeFacts, PortFacts, ServerProcess
from kiln.settings import ROOT
from kiln.verdict import Finding, Verdict
from tests.madenodes import bridge, changed, gpu, on_bus, rtx8, without_gpu, xid

pytestmark = pytest.mark.unit

DIRECT = topologies.load_all(ROOT)["rtx-pro-6000-8x-direct"]
AFTER = [check for check in checks.load_all() if check.phase == "after"]
PASS, WARN, FAIL, NOT_RUN = Verdict.PASS, Verdict.WARN, Verdict.FAIL, Verdict.NOT_RUN
LINK = "reseat the GPU, use a shorter cable or another riser; boot with pcie_aspm=off pcie_port_pm=off"
RESET = "reset the GPU (nvidia-smi -i 3 -r) or reboot, run again; if it comes back, replace the GPU"


def bad(before: NodeFacts | None, after: NodeFacts | None) -> list[Finding]:
    facts = Facts(node=before, after=after)
    found = [finding for check in AFTER for finding in check.run(facts, DIRECT)]
    return [one for one in found if one.verdict is not PASS]


def test_nothing_new_is_good() -> None:
    assert bad(rtx8(), rtx8()) == []


def test_what_was_there_before_is_not_told_again() -> None:
    old = gpu(xid(rtx8(), 31), 3, ecc_volatile_uncorrected=2, remapped_uncorrectable=1)
    old = on_bus(old, 2, aer=Aer(correctable={"BadTLP": 9}, nonfatal={}, fatal={}))
    assert bad(old, old) == []


CASES = [
    ("xid", xid(rtx8(), 79), FAIL, "GPU 3", "Xid 79 during the run, 1 time: NVRM: Xid (PCI:0000:31:00): 79, pid=1",
     "the GPU has fallen off the bus",
     "switch the node's power off and on; check power cables, cooling and the power limit"),
    ("aer", bridge(rtx8(), 3, aer=Aer(correctable={"BadTLP": 9}, nonfatal={}, fatal={})), WARN, "PCI 0000:30:01.1",
     "corrected PCIe errors during the run: BadTLP 9",
     "the signal on the link is bad: transfers are repeated, and ranks wait for each other", LINK),
    ("aer", on_bus(rtx8(), 3, aer=Aer(correctable={}, nonfatal={"CmpltTO": 1}, fatal={})), FAIL, "PCI 0000:31:00.0",
     "nonfatal PCIe errors during the run: CmpltTO 1", "the PCIe link failed under load", LINK),
    ("ecc", gpu(rtx8(), 3, ecc_volatile_uncorrected=1), FAIL, "GPU 3", "1 uncorrected ECC errors during the run",
     "memory of the GPU fails; what was computed in this run may be wrong", RESET),
    ("remapped-rows", gpu(rtx8(), 3, remap_pending=True, remapped_uncorrectable=1), FAIL, "GPU 3",
     "rows replaced, pending, not replaceable: 1, yes, no; before the run 0, no, no",
     "memory of the GPU failed under load", RESET),
    ("recovery", gpu(rtx8(), 3, recovery_action="Reboot"), FAIL, "GPU 3", "needs a recovery: Reboot",
     "the driver met an error that it cannot clear while the GPU is in use",
     "reboot the node; if it comes back, replace the GPU"),
    ("driver", changed(rtx8(), nvidia=None, faults=({"source": "nvml", "error": "no answer within 8.1 s"},)), FAIL, "",
     "the driver does not answer any more", "it answered before the load (nvml: no answer within 8.1 s)",
     "switch the node's power off and on; check power cables, cooling and the power limit"),
    ("driver", without_gpu(rtx8(), 3), FAIL, "GPU 3", "is gone", "the GPU has fallen off the bus under load",
     "switch the node's power off and on; check power cables, cooling and the power limit"),
    ("slowdown", gpu(rtx8(), 3, throttle=("hw_thermal_slowdown",)), FAIL, "GPU 3",
     "is slowed down: hw_thermal_slowdown", "the GPU is too hot", "check fans and air flow"),
    ("idle", gpu(rtx8(), 3, memory_used_mib=60000.0), FAIL, "GPU 3",
     "60000 MiB are in use, 1024 at most are idle",
     "a process that the driver does not show holds memory: another user's, or one in another container",
     "find it with `fuser -v /dev/nvidia*` as root and stop it"),
    ("leftovers", changed(rtx8(), servers=(ServerProcess(pid=9, title="sglang::detokenizer", orphan=True),)), FAIL,
     "process 9", "sglang::detokenizer is left over", "its server died and the worker did not", "kill -9 9"),
    ("ports", changed(rtx8(), ports=(PortFacts(port=30000, free=False),)), FAIL, "port 30000", "is taken",
     "another server listens there, or one is left over", "as root: ss -ltnp shows who; stop it"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("check", "after", "verdict", "subject", "message", "cause", "cure"), CASES, ids=[case[4][:40] for case in CASES]
)
def test_what_the_load_brought_is_told_with_cause_and_cure(
    check: str, after: NodeFacts, verdict: Verdict, subject: str, message: str, cause: str, cure: str
) -> None:
    (found,) = [one for one in bad(rtx8(), after) if one.check == f"after/{check}"]
    assert (found.verdict, found.subject, found.message) == (verdict, subject, message)
    assert (found.cause, found.cure) == (cause, cure)


def test_the_same_line_once_more_is_a_new_xid() -> None:
    found = bad(xid(rtx8(), 31), xid(xid(rtx8(), 31), 31))
    assert [(one.check, one.numbers["times"]) for one in found] == [("after/xid", 1)]


@pytest.mark.parametrize(("before", "after"), [(rtx8(), None), (None, rtx8()), (None, None)])
def test_one_look_alone_compares_nothing(before: NodeFacts | None, after: NodeFacts | None) -> None:
    found = {one.check: one.verdict for one in bad(before, after)}
    assert {found[f"after/{name}"] for name in ("xid", "aer", "ecc", "remapped-rows", "driver")} == {NOT_RUN}


def test_an_unknown_counter_is_not_run() -> None:
    found = bad(rtx8(), gpu(rtx8(), 3, ecc_volatile_uncorrected=None))
    assert [(one.check, one.verdict, one.subject) for one in found] == [("after/ecc", NOT_RUN, "GPU 3")]
