"""A program that starts in the server's container after the load still reaches every GPU."""

from __future__ import annotations

from collections.abc import Iterator

from kiln.checks.each import plural
from kiln.facts import Facts, known
from kiln.topologies import Topology
from kiln.verdict import Finding, failed, passed

# Field case D25: the engine and systemd share the control group, and a reload writes its device rules anew.
_CAUSE = "the container lost its device rules while it ran, as after `systemctl daemon-reload`"
_CURE = "give GPUs by CDI, or make links below /dev/char: nvidia-ctk system create-dev-char-symlinks --create-all"


def judge(facts: Facts, topology: Topology) -> Iterator[Finding]:
    """Judge NVML and the CUDA driver by what the node has; a server that was never ready is not asked."""
    server = known(facts.server, "the server")
    reach = known(server.reach, "what a new program reaches")
    wanted = facts.node.gpu_count if facts.node and facts.node.gpu_count else None
    good = True
    for name, count, source in (("nvidia-smi (NVML)", reach.nvml, "nvml"), ("CUDA", reach.cuda, "CUDA driver")):
        error = reach.fault(source)
        if count is None or error or count != (wanted or count):
            good = False
            what = f"{name} starts no more" if count is None else f"{name} reaches {plural(count, 'GPU')}"
            why = error or f"the node has {wanted}"
            yield failed(f"after the load {what}: {why}", cause=_CAUSE, cure=_CURE, gpus=count or 0)
    if good:
        yield passed(f"nvidia-smi and CUDA reach {plural(reach.nvml or 0, 'GPU')} after the load", gpus=reach.nvml or 0)
