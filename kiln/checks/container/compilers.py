"""Every nvcc and ptxas in the image can compile for these GPUs."""

from __future__ import annotations

from collections.abc import Iterator

from kiln.facts import Facts, known
from kiln.facts.container import CompilerFacts
from kiln.topologies import Topology
from kiln.verdict import Finding, failed, not_run, passed, warned

REQUIRED = False


def judge(facts: Facts, topology: Topology) -> Iterator[Finding]:
    """Judge what each says of itself; Triton brings its own ptxas, which may be too old (case A20)."""
    here = known(facts.container, "the container")
    wanted = {"sm_" + gpu.compute_capability.replace(".", "") for gpu in here.gpus}
    if not here.compilers or not wanted:
        yield not_run("there is no nvcc and no ptxas, or no GPU to compile for")
        return
    nvccs = [one for one in here.compilers if one.name == "nvcc"]
    if len(nvccs) > 1:
        yield warned(
            f"{len(nvccs)} toolkits: " + ", ".join(f"{one.version} {one.path}" for one in nvccs),
            cause="kernels are compiled with the one that happens to stand first, headers may be of the other",
            cure="leave one in the image, and set CUDA_HOME to it",
        )
    bad = [one for one in here.compilers if one.archs is not None and not _knows(one, wanted)]
    for one in bad:
        yield failed(
            f"{one.name} {one.version or ''} does not know {', '.join(sorted(wanted))}".replace("  ", " "),
            one.path,
            cause="kernels that are compiled at run time end with `is not defined for option 'gpu-name'`",
            cure="set TRITON_PTXAS_PATH to the ptxas of CUDA 13" if one.name != "nvcc" else "take a newer toolkit",
        )
    if not bad and len(nvccs) <= 1:
        yield passed(", ".join(f"{one.name} {one.version}" for one in here.compilers))


def _knows(one: CompilerFacts, wanted: set[str]) -> bool:
    return wanted <= {arch.rstrip("af") for arch in one.archs or ()}
