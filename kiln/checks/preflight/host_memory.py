"""The host has memory for the weights on their way to the GPUs."""

from __future__ import annotations

from collections.abc import Iterator

from kiln.checks.each import node
from kiln.facts import Facts, known
from kiln.topologies import Topology
from kiln.verdict import Finding, failed, passed


def judge(facts: Facts, topology: Topology) -> Iterator[Finding]:
    """Judge what is available now."""
    host = known(node(facts).host, "the host")
    available_gib = known(host.memory_available_mib, "the available memory") / 1024
    least = topology.host_memory_min_gib
    said = f"{available_gib:.0f} GiB of memory are available"
    if least is None or available_gib >= least:
        yield passed(
            said + ("; no limit in this topology" if least is None else ""), available_gib=round(available_gib)
        )
        return
    yield failed(
        f"{said}, {least:.0f} are wanted",
        cause="other programs use it, or the node has too little: loading ends by the kernel's out-of-memory killer",
        cure="stop what uses it, or add memory",
        available_gib=round(available_gib),
    )
