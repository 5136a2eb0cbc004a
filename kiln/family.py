"""Packages that resolve and still do not fit: FlashInfer's parts, CUDA's family, torch's flavour."""

from __future__ import annotations

from collections.abc import Mapping

from kiln.errors import Problem
from kiln.intent import Stack

# Packages whose version begins with CUDA's own minor.
_CUDA_FAMILY = (
    "cuda-toolkit", "nvidia-cuda-cccl", "nvidia-cuda-crt", "nvidia-cuda-cupti", "nvidia-cuda-nvcc", "nvidia-cuda-nvrtc",
    "nvidia-cuda-runtime", "nvidia-nvjitlink", "nvidia-nvtx", "nvidia-nvvm",
)  # fmt: skip


def problems(stack: Stack, versions: Mapping[str, str]) -> list[Problem]:
    """Return every disagreement in a resolution, given as name → version."""
    return [*_flashinfer(stack, versions), *_cuda_family(stack, versions), *_torch_flavour(stack, versions)]


def _flashinfer(stack: Stack, versions: Mapping[str, str]) -> list[Problem]:
    wanted = stack.components.get("flashinfer")
    parts = {name: versions[name] for name in ("flashinfer-cubin", "flashinfer-jit-cache") if name in versions}
    return [
        Problem("", f"stack {stack.name}: {name} {version} beside flashinfer {wanted}", _constrain(name))
        for name, version in parts.items()
        if wanted and version.split("+")[0] != wanted
    ]


def _cuda_family(stack: Stack, versions: Mapping[str, str]) -> list[Problem]:
    family = {one for name in _CUDA_FAMILY for one in (name, f"{name}-cu{stack.cuda.split('.')[0]}")}
    others = {name: version for name, version in versions.items() if _is_other_major(name, stack)}
    wrong = {name: versions[name] for name in sorted(family & versions.keys())}
    wrong = {name: version for name, version in wrong.items() if not f"{version}.".startswith(f"{stack.cuda}.")}
    return [
        Problem("", f"stack {stack.name}: {name} {version} beside CUDA {stack.cuda}", _constrain(name))
        for name, version in {**wrong, **others}.items()
    ]


def _is_other_major(name: str, stack: Stack) -> bool:
    """Say whether a package of the family is named after another CUDA major, such as nvidia-cuda-nvcc-cu12."""
    stem, _, major = name.rpartition("-cu")
    return stem in _CUDA_FAMILY and major.isdigit() and major != stack.cuda.split(".")[0]


def _torch_flavour(stack: Stack, versions: Mapping[str, str]) -> list[Problem]:
    torch = versions.get("torch")
    local = (torch or "").partition("+")[2]
    asked = stack.components.get("torch", "").partition("+")[2]
    fitting = {"", asked if asked == "cpu" else "", f"cu{stack.cuda.replace('.', '')}"}
    if torch is None or local in fitting:
        return []
    text = f"stack {stack.name}: torch {torch} is not of CUDA {stack.cuda}"
    return [Problem("", text, f"stacks.{stack.name}.components.torch in versions.yaml")]


def _constrain(name: str) -> str:
    return f"add {name} to the stack's constraints in versions.yaml"
