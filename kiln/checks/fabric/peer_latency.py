"""A small copy from GPU to GPU takes the direct way."""

from __future__ import annotations

from collections.abc import Iterator

from kiln.checks import limits, parts
from kiln.facts import Facts, known
from kiln.topologies import Topology
from kiln.verdict import Finding, Verdict, passed


def judge(facts: Facts, topology: Topology) -> Iterator[Finding]:
    """Judge the slowest pair: about 0.4 us with peer access, about 14 us through host memory."""
    found = parts.peers(facts)
    if found.gpus == 1:
        yield passed("one GPU copies to no other")
        return
    times = {pair.label: pair.latency_us for pair in found.pairs if pair.latency_us is not None}
    slowest = max(known(times or None, "the latency of any pair"), key=lambda label: times[label])
    limit = topology.limits.peer_latency_us
    verdict = limits.grade(times[slowest], limit, more_is_worse=True)
    words = f"{min(times.values()):.2f} to {times[slowest]:.2f} us"
    yield limits.finding(
        verdict,
        f"{words}, {limits.against(limit, 'us', more_is_worse=True)}",
        "" if verdict is Verdict.PASS else slowest,
        cause="copies are staged through host memory: peer access is off for this pair",
        cure="see the finding on peer access; driver options ForceP2P and RMForceP2PType decide on some boards",
        numbers={"peer_latency_us": times[slowest]},
    )
