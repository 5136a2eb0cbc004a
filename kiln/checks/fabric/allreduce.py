"""All-reduce ends, with the right values on every rank, for groups of every size."""

from __future__ import annotations

from collections.abc import Iterator

from kiln.checks import parts
from kiln.facts import Facts, known
from kiln.facts.fabric import AllreduceFacts, ReduceGroup
from kiln.topologies import Topology
from kiln.verdict import Finding, failed, not_run, passed

_P2P = (
    "boot with iommu=pt (or iommu=off), switch ACS off on the bridges above the GPUs, set `options nvidia-uvm "
    "uvm_disable_hmm=1`; until then start servers with NCCL_P2P_DISABLE=1"
)


def judge(facts: Facts, topology: Topology) -> Iterator[Finding]:
    """Judge each group; the second run without peer access names the cause (cases D1 to D3)."""
    found = parts.allreduce(facts)
    if found.gpus == 1:
        yield passed("one GPU: there is nothing to reduce")
        return
    for group in found.groups:
        yield _judge(group, found)
    for count in found.not_run:
        wanted = topology.gpus.count
        required = wanted is None or count <= wanted
        yield not_run(f"{count} ranks: there are {found.gpus} GPUs", required=required and wanted is not None)


def _judge(group: ReduceGroup, found: AllreduceFacts) -> Finding:
    ranks = f"{len(group.ranks)} ranks"
    known(None if group.not_run else 1, "all-reduce", group.not_run or "")
    if group.good:
        last = group.numbers[-1]
        return passed(
            f"{ranks}, values right; {last.busbw_gb_s:.1f} GB/s at {last.bytes >> 20} MiB",
            group.label,
            busbw_gb_s=last.busbw_gb_s,
            latency_us=group.numbers[0].latency_us,
        )
    what, cause, cure = _what(group, found)
    return failed(f"{ranks}: {what}", group.label, cause=cause, cure=cure, wrong=group.wrong)


def _what(group: ReduceGroup, found: AllreduceFacts) -> tuple[str, str, str]:
    """Say what happened, why, and what to do: the rank that ended by itself counts, not those killed after it."""
    ended = [rank for rank in group.ranks if rank.ended.error]
    killed = next((rank for rank in ended if rank.ended.reason == "signal"), None)
    first = next((rank for rank in ended if rank.ended.reason == "exit"), None)
    if killed:
        what = f"rank {killed.rank} on GPU {killed.gpu} at {killed.step}: {killed.ended.error}"
        cause = "the process of one rank died and the others waited for it: out of memory, a crash, or somebody's kill"
        return what, cause, "look for the out-of-memory killer and for NVRM in the kernel log; run it again"
    if first:
        what = f"rank {first.rank} on GPU {first.gpu} failed at {first.step}: {first.ended.error}"
    elif group.wrong:
        bad = [f"rank {rank.rank} (GPU {rank.gpu})" for rank in group.ranks if rank.wrong]
        what = f"wrong values on {', '.join(bad)}"
    else:
        steps = sorted({rank.step for rank in group.ranks})
        what = f"hangs at {' and '.join(steps)}, killed after {max(rank.ended.seconds for rank in group.ranks):.0f} s"
    return (what, *_why(group, found))


def _why(group: ReduceGroup, found: AllreduceFacts) -> tuple[str, str]:
    if group.without_p2p and group.without_p2p.good:
        return "peer access: the same group does it with NCCL_P2P_DISABLE=1", _P2P
    if group.without_p2p:
        cause = "not peer access alone: it fails with NCCL_P2P_DISABLE=1 too; shared memory, a GPU, or NCCL itself"
        return cause, "see the findings on /dev/shm, NCCL and Xid; try the GPUs of this group two by two"
    if found.environment.get("NCCL_P2P_DISABLE") == "1":
        cause = "not peer access, which NCCL_P2P_DISABLE=1 of the environment switches off"
        return cause, "see the findings on /dev/shm, NCCL and Xid"
    return "it was not run again without peer access", "run it again with NCCL_P2P_DISABLE=1"
