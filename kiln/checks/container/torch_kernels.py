"""torch has kernels for these GPUs."""

from __future__ import annotations

import re
from collections.abc import Iterator

from kiln.facts import Facts, known
from kiln.topologies import Topology
from kiln.verdict import Finding, failed, passed


def judge(facts: Facts, topology: Topology) -> Iterator[Finding]:
    """Judge the list of architectures: machine code runs within a major capability, from its minor one on."""
    here = known(facts.container, "the container")
    torch = known(here.torch, "torch", here.fault("libraries") or "it is not installed")
    known(torch.gpus or None, "the GPUs that torch sees", torch.error or "")
    for capability in sorted(set(torch.gpus)):
        fitting = [arch for arch in torch.archs if _runs(arch, capability)]
        if fitting:
            yield passed(f"torch {torch.version} has {', '.join(fitting)} for compute capability {capability}")
            continue
        yield failed(
            f"torch {torch.version} has {', '.join(torch.archs) or 'no kernels'}: none for {capability}",
            cause="every kernel of it ends with `no kernel image is available for execution on the device`",
            cure=f"take a torch that is compiled for {capability}",
        )


def _runs(arch: str, capability: str) -> bool:
    """Say whether code for "sm_120", "sm_90a" or PTX of "compute_80" runs on a capability such as "12.0"."""
    found = re.fullmatch(r"(sm|compute)_(\d+)(\d)([af]?)", arch)
    if not found:
        return False
    major, minor = (int(word) for word in capability.split("."))
    kind, theirs, least, suffix = found[1], int(found[2]), int(found[3]), found[4]
    if kind == "compute" and not suffix:
        return (theirs, least) <= (major, minor)
    return theirs == major and (least == minor if suffix == "a" else least <= minor)
