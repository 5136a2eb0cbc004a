"""The load brought no error of the driver (Xid)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from kiln.checks.each import node
from kiln.checks.preflight.xid import findings
from kiln.facts import Facts, known
from kiln.facts.node import KernelLogFacts, NodeFacts, Xid
from kiln.topologies import Topology
from kiln.verdict import Finding, passed


def judge(facts: Facts, topology: Topology) -> Iterator[Finding]:
    """Judge what was not in the log before."""
    before, after = node(facts), known(facts.after, "the node after the load")
    old, new = _log(before), _log(after)
    added = [*_added(old.xids, new.xids)]
    yield from findings(added, before.gpus, "during the run")
    if not added:
        yield passed("no Xid during the run")


def _log(node: NodeFacts) -> KernelLogFacts:
    return known(node.kernel_log, "the kernel log", node.why("kmsg", "journalctl", "dmesg"))


def _added(old: tuple[Xid, ...], new: tuple[Xid, ...]) -> Iterator[Xid]:
    """Yield those that came since; the same line twice is told apart by how often it was there."""
    left = Counter((one.bus_id, one.code, one.text) for one in old)
    for one in new:
        key = (one.bus_id, one.code, one.text)
        if left[key]:
            left[key] -= 1
        else:
            yield one
