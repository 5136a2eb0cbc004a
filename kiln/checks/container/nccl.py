"""A program maps exactly one NCCL."""

from __future__ import annotations

from collections.abc import Iterator

from kiln.facts import Facts, known
from kiln.topologies import Topology
from kiln.verdict import Finding, failed, not_run, passed


def judge(facts: Facts, topology: Topology) -> Iterator[Finding]:
    """Judge what is mapped once torch is imported and NCCL is loaded by its name, as engines do (case C15)."""
    here = known(facts.container, "the container")
    mapped = known(here.nccl, "the NCCL libraries", here.fault("libraries"))
    if not mapped:
        yield not_run("no NCCL is mapped", cause="this torch has none", cure="take a torch with CUDA and NCCL")
    elif len(mapped) == 1:
        yield passed(f"one NCCL, {mapped[0].version}: {mapped[0].path}")
    else:
        yield failed(
            f"{len(mapped)} NCCL libraries: " + ", ".join(f"{one.version} {one.path}" for one in mapped),
            cause="torch uses one, and what loads libnccl.so.2 by name another: unknown symbols, or a silent old one",
            cure="leave one nvidia-nccl package in the image and no libnccl of the system; unset LD_PRELOAD",
        )
