"""FlashInfer is whole and would compile for these GPUs."""

from __future__ import annotations

from collections.abc import Iterator

from kiln.facts import Facts, known
from kiln.facts.container import ContainerFacts
from kiln.topologies import Topology
from kiln.verdict import Finding, failed, not_run, passed, warned

_PARTS = ("flashinfer-python", "flashinfer-cubin", "flashinfer-jit-cache")


def judge(facts: Facts, topology: Topology) -> Iterator[Finding]:
    """Judge versions of its packages and its architectures; with a Python of the node it may be missing."""
    here = known(facts.container, "the container")
    versions = {name: here.packages[name] for name in _PARTS if name in here.packages}
    if not versions:
        why = "an image of kiln has it" if facts.image else "it is not installed for this Python"
        yield not_run(f"no FlashInfer: {why}", required=facts.image is not None)
        return
    if len({version.partition("+")[0] for version in versions.values()}) > 1:
        yield failed(
            "versions differ: " + ", ".join(f"{name} {version}" for name, version in versions.items()),
            cause="one of the packages was upgraded by a dependency; FlashInfer refuses to load the others",
            cure="install all of them with one version and --no-deps",
        )
        return
    if here.flashinfer:
        yield from _archs(here, here.flashinfer.archs, here.flashinfer.version)
        return
    yield failed(
        f"FlashInfer {next(iter(versions.values()))} cannot be imported: {here.fault('libraries') or 'no reason told'}",
        cause="a package that it needs is missing or too old, or its folder of compiled kernels cannot be made",
        cure="see the finding on that folder; install what the message names",
    )


def _archs(here: ContainerFacts, archs: tuple[str, ...], version: str) -> Iterator[Finding]:
    capabilities = sorted({gpu.compute_capability for gpu in here.gpus})
    missing = [one for one in capabilities if not any(arch.rstrip("af") == one for arch in archs)]
    if missing:
        yield failed(
            f"FlashInfer {version} compiles for {', '.join(archs) or 'nothing'}, the GPUs are {', '.join(missing)}",
            cause="FLASHINFER_CUDA_ARCH_LIST is of another GPU, or the nvcc that it finds is too old for this one",
            cure="take the image of this GPU; set CUDA_HOME to the toolkit of the image",
        )
    elif "FLASHINFER_CUDA_ARCH_LIST" not in here.environment:
        yield warned(
            f"FlashInfer {version} guesses {', '.join(archs)}: FLASHINFER_CUDA_ARCH_LIST is not set",
            cause="what it guesses is also where it looks for compiled kernels, and changes with nvcc's version",
            cure=f"set FLASHINFER_CUDA_ARCH_LIST={' '.join(archs)} where the server starts",
        )
    else:
        yield passed(f"FlashInfer {version} for {', '.join(archs)}")
