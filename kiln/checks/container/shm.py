"""/dev/shm in the container is large enough for NCCL."""

from __future__ import annotations

from collections.abc import Iterator

from kiln.facts import Facts, known
from kiln.topologies import Topology
from kiln.verdict import Finding, failed, passed


def judge(facts: Facts, topology: Topology) -> Iterator[Finding]:
    """Judge what programs get: an engine gives 64 MiB unless told otherwise."""
    here = known(facts.container, "the container")
    shm = known(here.shm, "/dev/shm", here.fault("/dev/shm"))
    free_gib = shm.free_mib / 1024
    if free_gib >= topology.shm_min_gib:
        yield passed(f"{free_gib:.0f} GiB free", shm_free_gib=round(free_gib, 1))
        return
    yield failed(
        f"{free_gib:.2f} GiB free in /dev/shm, {topology.shm_min_gib:.0f} are wanted",
        cause="NCCL keeps its buffers there and ends with `Error while creating shared memory segment`",
        cure="start the container with --ipc host, or with --shm-size 32g",
        shm_free_gib=round(free_gib, 2),
    )
