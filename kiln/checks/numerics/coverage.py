"""Backends that were not tried, and why."""

from __future__ import annotations

from collections.abc import Iterator

from kiln.facts import Facts, known
from kiln.topologies import Topology
from kiln.verdict import Finding, not_run, passed

# A backend that no preset of this run names is not needed.
REQUIRED = False


def judge(facts: Facts, topology: Topology) -> Iterator[Finding]:
    """Tell each backend that this image or this GPU does not have; what was asked for is judged elsewhere."""
    found = known(facts.numerics, "kernel numerics")
    missing = [case for case in found.cases if case.not_run and not found.asked]
    for case in missing:
        yield not_run(case.not_run or "", case.name)
    if not missing:
        yield passed("every backend was tried")
