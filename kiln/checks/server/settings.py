"""The server runs with the preset's settings and backends, not with others that it chose."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from kiln.facts import Facts, known
from kiln.topologies import Topology
from kiln.verdict import Finding, failed, not_run, passed

# What the smoke run sets itself.
_OWN = ("tp-size", "host", "port", "model-path")


def judge(facts: Facts, topology: Topology) -> Iterator[Finding]:
    """Judge each argument of the preset that /server_info tells the resolved value of."""
    server = known(facts.server, "the server")
    load = known(server.load, "what the server resolved", "it did not become ready")
    resolved = known(load.resolved, "/server_info", "; ".join(fault.error for fault in load.faults))
    told = {name: (want, resolved[name.replace("-", "_")]) for name, want in sorted(server.wanted.items())
            if name.replace("-", "_") in resolved and name not in _OWN}  # fmt: skip
    wrong = {name: pair for name, pair in told.items() if not _same(*pair)}
    for name, (want, got) in wrong.items():
        yield failed(
            f"{name} is {got}, the preset says {want}",
            cause="this release or this GPU overrides the argument",
            cure="see the server's log for the reason; name a value that it keeps",
        )
    if not told:
        yield not_run("/server_info tells none of the preset's arguments")
    elif not wrong:
        yield passed(f"{len(told)} arguments as in the preset: {', '.join(told)}", arguments=len(told))


def _same(want: str, got: str) -> bool:
    """Compare texts, switches ("yes") and numbers."""
    if want == "yes":
        return got.lower() == "true"
    with suppress(ValueError):
        return float(want) == float(got)
    return want == got
