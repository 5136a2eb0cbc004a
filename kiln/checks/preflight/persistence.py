"""Persistence mode is on."""

from __future__ import annotations

from collections.abc import Iterator

from kiln.checks.each import each, gpus
from kiln.facts import Facts, known
from kiln.facts.node import GpuFacts
from kiln.topologies import Topology
from kiln.verdict import Finding, passed, warned

REQUIRED = False


def judge(facts: Facts, topology: Topology) -> Iterator[Finding]:
    """Judge: without it the driver starts a GPU anew for every first program."""
    yield from each(gpus(facts), _one, passed("persistence mode is on"))


def _one(gpu: GpuFacts) -> Finding | None:
    if known(gpu.persistence, "persistence mode"):
        return None
    return warned(
        "persistence mode is off",
        cause="the driver unloads the GPU when no program uses it: every start waits, and settings are lost",
        cure="systemctl enable --now nvidia-persistenced, or nvidia-smi -pm 1",
    )
