"""The driver asks for no recovery of a GPU."""

from __future__ import annotations

from collections.abc import Iterator

from kiln.checks.each import each, gpus
from kiln.facts import Facts, known
from kiln.facts.node import GpuFacts
from kiln.topologies import Topology
from kiln.verdict import Finding, failed, passed

# Drivers before 570 do not tell it.
REQUIRED = False


def judge(facts: Facts, topology: Topology) -> Iterator[Finding]:
    """Judge the driver's own word on what a GPU needs."""
    if "recovery-action" in topology.gpus.lacks:
        yield passed("this GPU does not tell it")
        return
    yield from each(gpus(facts), _one, passed("no GPU needs a recovery"))


def _one(gpu: GpuFacts) -> Finding | None:
    action = known(gpu.recovery_action, "the recovery action")
    if action == "None":
        return None
    return failed(
        f"needs a recovery: {action}",
        cause="the driver met an error that it cannot clear while the GPU is in use",
        cure=_CURES.get(action, "reboot the node; if it comes back, replace the GPU").format(index=gpu.index),
    )


_CURES = {
    "Reset": "stop all that uses it, then nvidia-smi -i {index} -r",
    "Drain and Reset": "let its work end, then nvidia-smi -i {index} -r",
    "Drain P2P": "stop all programs that use several GPUs, then start them again",
}
