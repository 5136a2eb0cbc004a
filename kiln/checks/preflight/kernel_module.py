"""The kernel module is the open one where the GPU needs it."""

from __future__ import annotations

from collections.abc import Iterator

from kiln.checks.each import node
from kiln.facts import Facts, known
from kiln.topologies import Topology
from kiln.verdict import Finding, failed, passed


def judge(facts: Facts, topology: Topology) -> Iterator[Finding]:
    """Judge: GPUs of Blackwell do not start with the closed module (open-gpu-kernel-modules issue 862)."""
    here = node(facts)
    module = known(here.module, "the kernel module", here.why("driver/nvidia"))
    is_open = known(module.open, "the kind of the kernel module")
    kind = "open" if is_open else "closed"
    if is_open or not topology.gpus.open_module:
        yield passed(f"the {kind} kernel module {module.version or ''}".rstrip())
    else:
        yield failed(
            "the closed kernel module is loaded",
            cause="this GPU works with the open kernel module only",
            cure="install the driver's package with the open kernel module (its name ends in -open), reboot",
        )
