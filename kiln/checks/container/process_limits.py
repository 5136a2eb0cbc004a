"""Programs in the container may lock memory and open files enough."""

from __future__ import annotations

from collections.abc import Iterator

from kiln.facts import Facts, known
from kiln.topologies import Topology
from kiln.verdict import Finding, passed, warned

_UNLIMITED = -1
_NOFILE = 65536


def judge(facts: Facts, topology: Topology) -> Iterator[Finding]:
    """Judge the limits that hold, whatever the node's are."""
    limits = known(facts.container, "the container").limits
    good = True
    if limits.memlock_bytes != _UNLIMITED:
        good = False
        yield warned(
            f"{limits.memlock_bytes / 1048576:.0f} MiB of locked memory at most",
            cause="pinned memory for copies to and from GPUs may be refused",
            cure="start the container with --ulimit memlock=-1",
            memlock_bytes=limits.memlock_bytes,
        )
    if limits.nofile not in (_UNLIMITED,) and limits.nofile < _NOFILE:
        good = False
        yield warned(
            f"{limits.nofile} open files at most, {_NOFILE} are wanted",
            cause="a server with many clients and weights in many files runs out",
            cure=f"start the container with --ulimit nofile={_NOFILE}",
            nofile=limits.nofile,
        )
    if good:
        yield passed("locked memory is unlimited, and files are enough")
