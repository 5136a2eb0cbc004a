"""No SGLang server and no shared memory of NCCL is left over."""

from __future__ import annotations

from collections.abc import Iterator

from kiln.checks.each import node, plural
from kiln.facts import Facts, known
from kiln.topologies import Topology
from kiln.verdict import Finding, failed, passed, warned


def judge(facts: Facts, topology: Topology) -> Iterator[Finding]:
    """Judge: workers that outlive their server keep the GPUs' memory and the ports."""
    here = node(facts)
    servers = known(here.servers, "the processes", here.why("servers"))
    shm = known(here.shm, "/dev/shm", here.why("shm"))
    orphans = [one for one in servers if one.orphan]
    for one in orphans:
        yield failed(
            f"{one.title} is left over",
            f"process {one.pid}",
            cause="its server died and the worker did not",
            cure=f"kill -9 {one.pid}",
        )
    if servers and not orphans:
        yield failed(
            f"an SGLang server runs: {servers[0].title}",
            f"process {servers[0].pid}",
            cause="the node serves already",
            cure="stop that server first",
        )
    if shm.stale_nccl:
        yield warned(
            f"{plural(len(shm.stale_nccl), 'segment')} of NCCL in /dev/shm that no process has open",
            cause="a server was killed; the memory stays in use",
            cure="rm /dev/shm/nccl-*",
        )
    if not servers and not shm.stale_nccl:
        yield passed("nothing is left over")
