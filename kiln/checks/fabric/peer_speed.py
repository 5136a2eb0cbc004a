"""Copies from GPU to GPU are fast, one by one and all at once."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from kiln.checks import limits, parts
from kiln.facts import Facts, known
from kiln.facts.fabric import ConcurrentCopies, PairCopies
from kiln.topologies import Limit, Topology
from kiln.verdict import Finding, Verdict, passed, warned

# Of one pair's speed, what a GPU keeps when all send to all: 0.4 on good boards (164 to 192 GB/s of 8 GPUs), 0.12 on
# one whose switch collapses (51.7 GB/s; rtx6kpro p2pmark, March 2026).
_COLLAPSED = 0.25


def judge(facts: Facts, topology: Topology) -> Iterator[Finding]:
    """Judge pairs of one socket and pairs across by their own limits; where it is not known, by the lower one."""
    found = parts.peers(facts)
    if found.gpus == 1:
        yield passed("one GPU copies to no other")
        return
    timed = [pair for pair in found.pairs if pair.gb_s is not None]
    known(timed or None, "the speed of any pair")
    near, far = topology.limits.peer_same_gb_s, topology.limits.peer_cross_gb_s
    yield from _group("within a socket", [pair for pair in timed if pair.crosses is False], near)
    yield from _group("across sockets", [pair for pair in timed if pair.crosses], far)
    yield from _group("of all kinds", [pair for pair in timed if pair.crosses is None], far)
    if found.concurrent and found.gpus > 2:
        yield from _at_once(found.concurrent, found.gpus, median(pair.gb_s or 0 for pair in timed))


def _group(name: str, pairs: list[PairCopies], limit: Limit | None) -> Iterator[Finding]:
    if not pairs:
        return
    slowest = min(pairs, key=lambda pair: pair.gb_s or 0)
    speeds = [pair.gb_s or 0 for pair in pairs]
    slow = [pair.label for pair in pairs if limits.grade(pair.gb_s or 0, limit) is not Verdict.PASS]
    words = f"{len(pairs)} pairs {name}: {min(speeds):.1f} to {max(speeds):.1f} GB/s"
    yield limits.finding(
        limits.grade(min(speeds), limit),
        f"{words}, {limits.against(limit, 'GB/s')}" + (f"; slow: {', '.join(slow[:8])}" if slow else ""),
        slowest.label if slow else "",
        cause="copies go through host memory or a narrow link: no peer access, ACS redirect, a link that trained down",
        cure="see the findings on links and peer access; `nvidia-smi topo -m` shows the way between two GPUs",
        numbers={"peer_min_gb_s": min(speeds), "peer_median_gb_s": round(median(speeds), 2)},
    )


def _at_once(many: ConcurrentCopies, gpus: int, single: float) -> Iterator[Finding]:
    total = known(many.gb_s, "the speed of concurrent peer copies")
    part = total / gpus / single
    words = f"all pairs at once: {total:.0f} GB/s in all, {part:.0%} of a single copy's speed for each GPU"
    if part >= _COLLAPSED:
        yield passed(words, concurrent_gb_s=total)
        return
    yield warned(
        f"{words}; slowest {many.slowest_pair}",
        cause="writes to several root complexes at once collapse in a PCIe switch (52 to 7 GB/s was seen)",
        cure="put GPUs that work together below one root complex; update the switches' firmware",
        concurrent_gb_s=total,
    )
