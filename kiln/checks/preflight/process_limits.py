"""Containers may lock memory and open files enough."""

from __future__ import annotations

from collections.abc import Iterator

from kiln.checks.each import node
from kiln.facts import Facts, known
from kiln.topologies import Topology
from kiln.verdict import Finding, passed, warned

_NOFILE = 65536
_UNLIMITED = -1


def judge(facts: Facts, topology: Topology) -> Iterator[Finding]:
    """Judge the hard limits that containers inherit. A container that sets its own is not bound by the warning."""
    here = node(facts)
    limits = known(here.limits, "the limits", here.why("limits"))
    memlock = known(limits.memlock_bytes, "the limit of locked memory")
    nofile = known(limits.nofile, "the limit of open files")
    if memlock != _UNLIMITED:
        yield warned(
            f"{limits.of}: {memlock / 1048576:.0f} MiB of locked memory at most",
            cause="pinned memory for copies to and from GPUs may be refused",
            cure="run containers with --ulimit memlock=-1, or set LimitMEMLOCK=infinity for the engine's service",
        )
    if nofile != _UNLIMITED and nofile < _NOFILE:
        yield warned(
            f"{limits.of}: {nofile} open files at most, {_NOFILE} are wanted",
            cause="a server with many clients and weights in many files runs out",
            cure=f"run containers with --ulimit nofile={_NOFILE}, or set LimitNOFILE for the engine's service",
        )
    if memlock == _UNLIMITED and (nofile == _UNLIMITED or nofile >= _NOFILE):
        yield passed(f"{limits.of}: locked memory unlimited, {'unlimited' if nofile == _UNLIMITED else nofile} files")
