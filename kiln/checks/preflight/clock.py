"""The clock is synchronised."""

from __future__ import annotations

from collections.abc import Iterator

from kiln.checks.each import node
from kiln.facts import Facts, known
from kiln.topologies import Topology
from kiln.verdict import Finding, passed, warned

REQUIRED = False


def judge(facts: Facts, topology: Topology) -> Iterator[Finding]:
    """Judge: receipts of several nodes are compared by time."""
    here = node(facts)
    clock = known(here.clock, "the clock", here.why("adjtimex"))
    if clock.synchronised:
        yield passed(f"synchronised, {clock.max_error_s * 1000:.0f} ms off at most")
        return
    yield warned(
        "the clock is not synchronised",
        cause="no time service runs, or it has not reached a server",
        cure="systemctl enable --now chrony (or systemd-timesyncd)",
    )
