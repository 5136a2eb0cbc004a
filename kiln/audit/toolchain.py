"""Toolchain: every compiler knows the GPU's target, and the headers are all there. Nothing of the target is run."""

from __future__ import annotations

from collections.abc import Iterator

from kiln.audit.records import Target
from kiln.audit.rules import Finding

# One file of each part that compiled CUDA code includes; CUDA 13 has those of CCCL one folder deeper.
HEADERS = ("cuda.h", "cuda_runtime.h", "crt/host_defines.h", "nv/target", "cub/cub.cuh", "cuda/std/type_traits",
           "thrust/version.h")  # fmt: skip


def check(target: Target, cmake_arch: str) -> Iterator[Finding]:
    """Yield compilers that do not know `sm_<cmake_arch>`, and toolkits that lack headers."""
    for record, facts in target.binaries():
        if facts.compiler is None:
            continue
        if f"sm_{cmake_arch}" not in facts.compiler.targets:
            message = f"release {facts.compiler.release or 'unknown'} does not know sm_{cmake_arch}"
            yield Finding("toolchain", record.short, record.path.rpartition("/")[2], message, facts.compiler.targets)
        if record.path.endswith("/bin/nvcc"):
            yield from _headers(target, record.path.removesuffix("/bin/nvcc"))


def _headers(target: Target, toolkit: str) -> Iterator[Finding]:
    folders = (f"{toolkit}/include/", f"{toolkit}/include/cccl/")
    missing = [name for name in HEADERS if not any(folder + name in target.records for folder in folders)]
    if missing:
        message = f"the toolkit's headers lack {', '.join(missing)}"
        yield Finding("toolchain", f"{toolkit}/include", "headers", message, tuple(missing))
