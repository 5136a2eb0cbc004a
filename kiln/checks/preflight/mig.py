"""MIG is off and the compute mode is Default."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from kiln.checks.each import each, gpus
from kiln.facts import Facts, known
from kiln.facts.node import GpuFacts
from kiln.topologies import Topology
from kiln.verdict import Finding, failed, passed


def judge(facts: Facts, topology: Topology) -> Iterator[Finding]:
    """Judge: one GPU in slices keeps CUDA from starting on the others too (pytorch issue 107300)."""
    good = passed("MIG is off, compute mode Default")
    yield from each(gpus(facts), partial(_one, "mig" in topology.gpus.lacks), good)


def _one(lacking: bool, gpu: GpuFacts) -> Finding | None:
    if gpu.mig or gpu.mig_pending:
        return failed(
            "MIG is on" if gpu.mig else "MIG will be on after the next reset",
            cause="the GPU is cut into slices; peer access and tensor parallelism do not work with them",
            cure=f"nvidia-smi -i {gpu.index} -mig 0, then reset the GPU: nvidia-smi -i {gpu.index} -r",
        )
    if not lacking:
        known(gpu.mig, "MIG's mode")
    if known(gpu.compute_mode, "the compute mode") != "Default":
        return failed(
            f"compute mode {gpu.compute_mode}",
            cause="only one process at most may use the GPU, a server has several",
            cure=f"nvidia-smi -i {gpu.index} -c DEFAULT",
        )
    return None
