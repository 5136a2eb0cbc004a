"""At least 200 mixed requests, 64 at once, are answered in full, without a stall, and with finite numbers."""

from __future__ import annotations

from collections.abc import Iterator

from kiln.facts import Facts, known
from kiln.facts.server import LoadFacts
from kiln.topologies import Topology
from kiln.verdict import Finding, failed, not_run, passed

LEAST = 200
"""A server that was killed and started again hung after 77 to 140 requests (case E11)."""


def judge(facts: Facts, topology: Topology) -> Iterator[Finding]:
    """Judge the rounds; one prompt alone does not show a race between requests (case A10)."""
    server = known(facts.server, "the server")
    load = known(server.load, "the load", "the server did not become ready")
    faults = [*_rounds(load, topology.server.stall_s)]
    yield from faults
    done = sum(one.completed or 0 for one in load.rounds)
    worst = max((one.first_token_worst_s or 0 for one in load.rounds), default=0)
    if not faults and done < LEAST:
        yield not_run(f"{done} requests were answered, {LEAST} are needed", cure="a longer --deadline")
    elif not faults:
        yield passed(f"{done} requests in {len(load.rounds)} rounds", requests=done, first_token_worst_s=worst)


def _rounds(load: LoadFacts, stall_s: float) -> Iterator[Finding]:
    for number, one in enumerate(load.rounds, 1):
        where = f"round {number}"
        if one.error is not None:
            continue  # it was not sent: too few requests tell so
        if one.not_finite:
            yield failed(
                f"{one.not_finite} log probabilities are not finite", where,
                cause="a kernel computes wrong with this mix of lengths",
                cure="inv smoke --phases numerics; choose another backend for what it names",
            )  # fmt: skip
        if one.stalled or (one.longest_gap_s or 0) > stall_s:
            yield failed(
                f"{one.stalled} requests had no token for {stall_s:.0f} s", where,
                cause="the server hung, or compiled, in the middle of the load",
                cure="server/prewarm tells whether it compiled; server's log and stacks tell where it hung",
                longest_gap_s=one.longest_gap_s or 0,
            )  # fmt: skip
        elif one.completed != one.requests:
            lost = one.requests - (one.completed or 0)
            yield failed(
                f"{lost} of {one.requests} requests failed: {'; '.join(one.errors)}", where,
                cause="the server refused or broke off", cure="read its log at that time",
            )  # fmt: skip
