"""Packages that resolve and still do not fit: FlashInfer's parts, CUDA's family, torch's flavour."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from kiln.errors import Problem
from kiln.intent import Stack

# Packages whose version begins with CUDA's own minor.
_CUDA_FAMILY = (
    "cuda-toolkit", "nvidia-cuda-cccl", "nvidia-cuda-crt", "nvidia-cuda-cupti", "nvidia-cuda-nvcc", "nvidia-cuda-nvrtc",
    "nvidia-cuda-runtime", "nvidia-nvjitlink", "nvidia-nvtx", "nvidia-nvvm",
)  # fmt: skip
_NAME = re.compile(r"(?P<stem>.+?)(-cu(?P<major>\d+))?")


@dataclass(frozen=True)
class Cuda:
    """One of the stack's two CUDAs: the key that says it, and its minor."""

    key: Literal["cuda", "toolkit"]
    minor: str

    def __str__(self) -> str:
        return f"{'CUDA' if self.key == 'cuda' else 'toolkit'} {self.minor}"

    def fits(self, version: str) -> bool:
        """Say whether a version of the family is of this minor."""
        return f"{version}.".startswith(f"{self.minor}.")


def cuda_of(name: str, stack: Stack) -> Cuda | None:
    """Return the CUDA that a package of the family has to have; None for a package of no family.

    Up to CUDA 12 the names end in the major, -cu12; so where the toolkit is of another, a name tells whose it is.
    """
    match = _NAME.fullmatch(name)
    if match is None or match["stem"] not in _CUDA_FAMILY:
        return None
    if stack.toolkit and match["major"] != stack.cuda.partition(".")[0]:
        return Cuda("toolkit", stack.toolkit)
    return Cuda("cuda", stack.cuda)


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
    found = {name: (version, cuda_of(name, stack)) for name, version in sorted(versions.items())}
    return [
        Problem("", f"stack {stack.name}: {name} {version} beside {own}", _constrain(name))
        for name, (version, own) in found.items()
        if own and not own.fits(version)
    ]


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
