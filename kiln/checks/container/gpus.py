"""Programs see every GPU, of the capability that the topology has."""

from __future__ import annotations

import re
from collections.abc import Iterator

from kiln.checks.each import plural
from kiln.facts import Facts, known
from kiln.facts.container import ContainerFacts
from kiln.topologies import Topology
from kiln.verdict import Finding, failed, passed

# What CUDA says, why, and what helps; field cases D21, D22 and D27.
_KNOWN = (
    (
        r"80[34]\b|forward compatibility|unsupported display driver",
        "libcuda is not of the kernel module's version: a compat library, or a driver upgrade without a reboot",
        "reboot the node; remove /usr/local/cuda/compat from the image's library path",
    ),
    (
        r"802\b|system not yet initialized",
        "the NVLink switches are not set up yet",
        "start nvidia-fabricmanager on the node, of the driver's version",
    ),
    (r"no CUDA|no NVIDIA|100\b", "the container was given no GPU", "start it with --gpus all"),
)


def judge(facts: Facts, topology: Topology) -> Iterator[Finding]:
    """Judge by the CUDA driver, then by torch, then by what the node and the topology have."""
    here = known(facts.container, "the container")
    error = here.fault("CUDA driver") or (here.torch.error if here.torch else None)
    if error:
        yield _refused(error)
        return
    wanted = topology.gpus.count or (len(facts.node.nvidia.gpus) if facts.node and facts.node.nvidia else None)
    if not here.gpus or (wanted is not None and len(here.gpus) != wanted):
        yield failed(
            f"programs see {plural(len(here.gpus), 'GPU')}, {'some' if wanted is None else wanted} are wanted",
            cause="the container was not given all GPUs, or CUDA_VISIBLE_DEVICES hides some",
            cure="start it with --gpus all and without CUDA_VISIBLE_DEVICES; compare with nvidia-smi on the node",
        )
    yield from _torch(here)
    capability = topology.gpus.compute_capability
    strange = [gpu for gpu in here.gpus if capability not in (None, gpu.compute_capability)]
    for gpu in strange:
        yield failed(
            f"{gpu.name} has compute capability {gpu.compute_capability}, the topology has {capability}",
            f"GPU {gpu.gpu}",
            cause="the image's kernels are compiled for another GPU",
            cure="take the image and the topology of this GPU",
        )
    if here.gpus and len(here.gpus) == (wanted or len(here.gpus)) and not strange:
        yield passed(f"programs see {plural(len(here.gpus), 'GPU')}: {here.gpus[0].name}", gpus=len(here.gpus))


def _refused(error: str) -> Finding:
    for pattern, cause, cure in _KNOWN:
        if re.search(pattern, error, re.IGNORECASE):
            return failed(f"CUDA does not start: {error}", cause=cause, cure=cure)
    cause = "driver, toolkit and image do not fit, or a GPU is broken"
    return failed(f"CUDA does not start: {error}", cause=cause, cure="read the node's kernel log for NVRM and Xid")


def _torch(here: ContainerFacts) -> Iterator[Finding]:
    """A torch that sees other GPUs than the driver shows it is of another kind than the image needs."""
    if here.torch and len(here.torch.gpus) != len(here.gpus):
        yield failed(
            f"the driver shows {plural(len(here.gpus), 'GPU')}, torch {here.torch.version} sees {len(here.torch.gpus)}",
            cause="this torch is compiled for another CUDA, or for the CPU",
            cure="take an image whose torch has a CUDA version: `python -c 'import torch; print(torch.version.cuda)'`",
        )
