"""The ports of the smoke run are free."""

from __future__ import annotations

from collections.abc import Iterator

from kiln.checks.each import node
from kiln.facts import Facts, known
from kiln.topologies import Topology
from kiln.verdict import Finding, failed, not_run, passed


def judge(facts: Facts, topology: Topology) -> Iterator[Finding]:
    """Judge: a server that finds its port taken ends after it has loaded the weights."""
    here = node(facts)
    ports = known(here.ports, "the ports", here.why("tcp"))
    taken = [one for one in ports if not one.free]
    for one in taken:
        yield failed(
            f"is taken{f' by {one.owner}' if one.owner else ''}",
            f"port {one.port}",
            cause="another server listens there, or one is left over",
            cure=f"stop it: kill {one.owner.split()[0]}" if one.owner else "as root: ss -ltnp shows who; stop it",
        )
    if not ports:
        yield not_run("no port was asked for", required=False)
    elif not taken:
        yield passed(f"free: {', '.join(str(one.port) for one in ports)}")
