"""A process can open and use GPU memory of another process."""

from __future__ import annotations

from collections.abc import Iterator

from kiln.checks.each import plural
from kiln.facts import Facts, known
from kiln.facts.fabric import IpcPair
from kiln.topologies import Topology
from kiln.verdict import Finding, failed, passed


def judge(facts: Facts, topology: Topology) -> Iterator[Finding]:
    """Judge each pair of neighbours: ranks share memory this way, and some nodes refuse it (case D6)."""
    found = known(known(facts.fabric, "the fabric").ipc, "CUDA IPC")
    known(found.pairs or None, "CUDA IPC", found.why)
    bad = [finding for pair in found.pairs if (finding := _judge(pair))]
    yield from bad or [passed(f"{plural(len(found.pairs), 'pair')} of processes, bytes verified both ways")]


def _judge(pair: IpcPair) -> Finding | None:
    refused = next((ended.not_run for ended in pair.ended.values() if ended.not_run), None)
    known(None if refused else 1, "CUDA IPC", refused or "")
    if pair.wrong_words == 0:
        return None
    if pair.wrong_words:
        return failed(
            f"{pair.wrong_words} of {pair.bytes // 4} words arrive wrong between two processes",
            pair.label,
            cause="memory of the other process is not what is read: IOMMU or ACS damage peer access",
            cure="boot with iommu=pt, switch ACS off; until then --disable-custom-all-reduce and NCCL_P2P_DISABLE=1",
            wrong_words=pair.wrong_words,
        )
    # The one that was killed since the other ended has nothing to tell.
    side, ended = min(pair.ended.items(), key=lambda item: (item[1].reason == "peer", item[1].error is None))
    return failed(
        f"{side}: {ended.error}",
        pair.label,
        cause="the driver or the container does not let processes share GPU memory",
        cure="start the container with --ipc host and one user for all ranks; else --disable-custom-all-reduce",
    )
