"""Caches lie on a disk of the node."""

from __future__ import annotations

from collections.abc import Iterator

from kiln.checks.each import node
from kiln.facts import Facts, known
from kiln.probe.host import NETWORK
from kiln.topologies import Topology
from kiln.verdict import Finding, failed, passed, warned


def judge(facts: Facts, topology: Topology) -> Iterator[Finding]:
    """Judge: compilers of several nodes in one folder break each other's files, and ZFS froze under load."""
    here = node(facts)
    disks = known(here.disks, "the disks", here.why("cache"))
    place = known(
        next((disk for disk in disks if disk.purpose == "cache"), None), "where caches lie", here.why("cache")
    )
    said = f"{place.path} is {place.kind}, mounted at {place.mount}"
    if place.kind in NETWORK:
        yield failed(
            said,
            cause="JIT caches on a network's file system are broken by other nodes and by stale file handles",
            cure="give the cache a folder on a local disk",
        )
    elif place.kind == "zfs":
        yield warned(said, cause="nodes with ZFS froze under load (rtx6kpro, March 2026)", cure="use ext4 or xfs")
    elif place.kind in ("tmpfs", "ramfs"):
        yield warned(said, cause="caches fill the memory and are gone after a reboot", cure="use a disk")
    else:
        yield passed(said)
