"""Exactly one NCCL is loaded in every rank."""

from __future__ import annotations

from collections.abc import Iterator

from kiln.facts import Facts, known
from kiln.topologies import Topology
from kiln.verdict import Finding, failed, not_run, passed


def judge(facts: Facts, topology: Topology) -> Iterator[Finding]:
    """Judge what the ranks have mapped; two at once means that one library calls into another's version (case C15)."""
    ranks = known(facts.server, "the server").start.nccl
    if not ranks:
        yield not_run("no rank lived long enough to be read")
    for rank in ranks:
        libraries = known(rank.libraries, f"the maps of {rank.process}")
        if len(libraries) == 1:
            continue
        yield failed(
            f"{len(libraries)} NCCL libraries: {', '.join(libraries) or 'none'}",
            rank.process,
            cause="the image holds several, or LD_LIBRARY_PATH and LD_PRELOAD bring in another",
            cure="leave one in the image; `inv audit` names the packages",
            libraries=len(libraries),
        )
    paths = sorted({path for rank in ranks for path in rank.libraries or ()})
    if ranks and len(paths) == 1 and all(rank.libraries and len(rank.libraries) == 1 for rank in ranks):
        yield passed(f"{paths[0]} in {len(ranks)} ranks", ranks=len(ranks))
