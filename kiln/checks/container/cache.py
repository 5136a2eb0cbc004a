"""The folder of compiled kernels is this node's own and can be written."""

from __future__ import annotations

from collections.abc import Iterator

from kiln.facts import Facts, known
from kiln.probe.host import NETWORK
from kiln.topologies import Topology
from kiln.verdict import Finding, failed, passed, warned


def judge(facts: Facts, topology: Topology) -> Iterator[Finding]:
    """Judge: FlashInfer makes this folder when it is imported, and locks it for one node only."""
    cache = known(facts.container, "the container").cache
    if not cache.writable:
        yield failed(
            f"no file can be made in {cache.path}: {cache.error}",
            cause="FlashInfer makes it when it is imported and ends with an error if it cannot",
            cure="set FLASHINFER_WORKSPACE_BASE to a folder of this node that the server's user may write",
        )
    elif cache.kind in NETWORK:
        yield warned(
            f"{cache.path} lies on {cache.kind}",
            cause="file locks and times of a network's file system break builds of kernels: stale handles, rebuilds",
            cure="set FLASHINFER_WORKSPACE_BASE to a folder on a disk of this node",
        )
    else:
        yield passed(f"{cache.path} on {cache.kind or 'a file system that is not known'} can be written")
