"""Nothing is compiled on the node: the image brings every kernel that the server calls."""

from __future__ import annotations

from collections.abc import Iterator

from kiln.facts import Facts, known
from kiln.topologies import Topology
from kiln.verdict import Finding, passed, warned


def judge(facts: Facts, topology: Topology) -> Iterator[Finding]:
    """Judge the compilers that ran below the server, at its start and under load."""
    server = known(facts.server, "the server")
    counts: dict[str, int] = {}
    for one in server.compiled:
        counts[one.module] = counts.get(one.module, 0) + one.count
    if not counts:
        yield passed("no compiler ran", compilers=0)
    for module, count in sorted(counts.items()):
        programs = ", ".join(sorted({one.program for one in server.compiled if one.module == module}))
        yield warned(
            f"PREWARM_MISS: {programs} ran {count} times",
            module,
            cause="the image lacks this module, or what it brings was not accepted",
            cure="add it to the kernel set and build again; Triton's kernels come from the cache of `inv tune`",
            compilers=count,
        )
