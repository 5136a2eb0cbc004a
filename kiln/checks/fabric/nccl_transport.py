"""NCCL moves data directly from GPU to GPU."""

from __future__ import annotations

from collections.abc import Iterator

from kiln.checks import parts
from kiln.facts import Facts, known
from kiln.topologies import Topology
from kiln.verdict import Finding, passed, warned

_DIRECT = ("P2P", "NVLS")


def judge(facts: Facts, topology: Topology) -> Iterator[Finding]:
    """Judge the transports that NCCL named for the largest group, and what the environment forbids it."""
    found = parts.allreduce(facts)
    if found.gpus == 1:
        yield passed("one GPU: NCCL moves nothing")
        return
    group = max(known(found.groups or None, "any group"), key=lambda one: len(one.gpus))
    transports = known(group.nccl.transports or None, "NCCL's transports", "it wrote none to its log")
    words = ", ".join(f"{name} {count}" for name, count in sorted(transports.items()))
    version = group.nccl.version or "of unknown version"
    if all(name.startswith(_DIRECT) for name in transports):
        yield passed(f"NCCL {version}: {words}", group.label)
    elif found.environment.get("NCCL_P2P_DISABLE") == "1":
        yield warned(
            f"NCCL {version}: {words}",
            group.label,
            cause="NCCL_P2P_DISABLE=1 is set in the environment",
            cure="unset it once copies between GPUs are right; it halves the speed of decoding",
        )
    else:
        yield warned(
            f"NCCL {version}: {words}",
            group.label,
            cause="NCCL finds no peer access between some GPUs, or NCCL_P2P_LEVEL forbids it for this topology",
            cure="see the findings on peer copies; across sockets set NCCL_P2P_LEVEL=SYS",
        )
