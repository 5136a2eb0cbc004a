"""All-reduce over all GPUs is fast: bandwidth for large tensors, latency for small ones."""

from __future__ import annotations

from collections.abc import Iterator

from kiln.checks import limits, parts
from kiln.facts import Facts, known
from kiln.facts.fabric import ReduceGroup
from kiln.topologies import Topology
from kiln.verdict import Finding, passed

_LARGE, _SMALL = 32 << 20, 32 << 10


def judge(facts: Facts, topology: Topology) -> Iterator[Finding]:
    """Judge the largest group that did it well: the best bus bandwidth from 32 MiB on, the time of 32 KiB."""
    found = parts.allreduce(facts)
    if found.gpus == 1:
        yield passed("one GPU: there is nothing to reduce")
        return
    good = [group for group in found.groups if group.good]
    group = max(known(good or None, "any all-reduce that ended well"), key=lambda one: len(one.gpus))
    yield _bandwidth(group, topology)
    yield _latency(group, topology)


def _bandwidth(group: ReduceGroup, topology: Topology) -> Finding:
    best = max(one.busbw_gb_s for one in group.numbers if one.bytes >= _LARGE)
    limit = topology.limits.allreduce_gb_s
    channels = group.nccl.channels
    return limits.finding(
        limits.grade(best, limit),
        f"{len(group.gpus)} ranks: bus bandwidth {best:.1f} GB/s, {limits.against(limit, 'GB/s')}; "
        f"{channels if channels is not None else 'an unknown number of'} channels",
        group.label,
        cause="NCCL takes the links for slower than they are and uses few channels, or copies go through host memory",
        cure="set NCCL_MIN_NCHANNELS=8; see the findings on NCCL's transports and on peer copies",
        numbers={"busbw_gb_s": best, **({"channels": channels} if channels is not None else {})},
    )


def _latency(group: ReduceGroup, topology: Topology) -> Finding:
    took = next(one.latency_us for one in group.numbers if one.bytes == _SMALL)
    limit = topology.limits.allreduce_latency_us
    return limits.finding(
        limits.grade(took, limit, more_is_worse=True),
        f"{len(group.gpus)} ranks: 32 KiB in {took:.1f} us, {limits.against(limit, 'us', more_is_worse=True)}",
        group.label,
        cause="small messages, for which every token waits, are staged through host memory, or the CPU sleeps deep",
        cure="see the finding on latency between peers; set NCCL_PROTO=LL for a try; CPU governor `performance`",
        numbers={"latency_us": took},
    )
