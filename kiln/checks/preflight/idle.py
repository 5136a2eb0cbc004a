"""The GPUs are idle: no process, no memory in use."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from kiln.checks.each import each, gpus
from kiln.facts import Facts, known
from kiln.facts.node import GpuFacts
from kiln.topologies import Topology
from kiln.verdict import Finding, failed, passed


def judge(facts: Facts, topology: Topology) -> Iterator[Finding]:
    """Judge: a measurement beside another program is none, and a server would run out of memory."""
    most = max((gpu.memory_used_mib or 0 for gpu in gpus(facts)), default=0)
    yield from each(gpus(facts), partial(_one, topology), passed(f"idle, {most:.0f} MiB in use at most"))


def _one(topology: Topology, gpu: GpuFacts) -> Finding | None:
    if gpu.processes:
        names = ", ".join(f"{one.pid} {one.name or ''}".strip() for one in gpu.processes)
        return failed(
            f"is used by {names}",
            cause="another program computes on the GPU, or is left over",
            cure=f"stop it: kill {' '.join(str(one.pid) for one in gpu.processes)}",
        )
    used = known(gpu.memory_used_mib, "the memory in use")
    if used > topology.idle_memory_max_mib:
        return failed(
            f"{used:.0f} MiB are in use, {topology.idle_memory_max_mib:.0f} at most are idle",
            cause="a process that the driver does not show holds memory: another user's, or one in another container",
            cure="find it with `fuser -v /dev/nvidia*` as root and stop it",
            memory_used_mib=used,
        )
    known(gpu.processes, "the processes on the GPU")
    return None
