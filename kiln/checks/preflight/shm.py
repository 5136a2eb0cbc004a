"""/dev/shm is large enough for NCCL."""

from __future__ import annotations

from collections.abc import Iterator

from kiln.checks.each import node
from kiln.facts import Facts, known
from kiln.topologies import Topology
from kiln.verdict import Finding, failed, passed


def judge(facts: Facts, topology: Topology) -> Iterator[Finding]:
    """Judge the host's, which a container with --ipc host uses."""
    here = node(facts)
    shm = known(here.shm, "/dev/shm", here.why("shm"))
    free_gib, least = shm.free_mib / 1024, topology.shm_min_gib
    if free_gib >= least:
        yield passed(f"{free_gib:.0f} GiB free", shm_free_gib=round(free_gib, 1))
        return
    yield failed(
        f"{free_gib:.1f} GiB free in /dev/shm, {least:.0f} are wanted",
        cause="NCCL keeps its buffers there and ends with `Error while creating shared memory segment`",
        cure=f"mount -o remount,size={max(64, least * 2):.0f}G /dev/shm; remove what is left over there",
        shm_free_gib=round(free_gib, 1),
    )
