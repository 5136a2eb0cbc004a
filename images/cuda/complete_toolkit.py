#!/usr/bin/env python3
"""Complete the CUDA wheels of an environment into one toolkit and link it.

The wheels hold the compiler, headers and libraries of a stock toolkit, but no `lib64`, no unversioned `.so` links and
no libcuda stub. CUDA 13 wheels share one tree (`nvidia/cu13`); CUDA 12 wheels have one each, which are linked into the
compiler's. Stand-alone: standard library and gcc. The output is a function of the wheels and of gcc.
"""

from __future__ import annotations

import argparse
import filecmp
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

TOOLS = ("bin/nvcc", "bin/ptxas", "bin/cudafe++", "bin/fatbinary", "bin/nvlink", "nvvm/bin/cicc")
# Each needs one of the alternatives: CUDA 13 moved CCCL's headers below include/cccl.
HEADERS = (
    ("include/cuda.h",),
    ("include/cuda_runtime.h",),
    ("include/crt/host_config.h",),
    ("include/cub/cub.cuh", "include/cccl/cub/cub.cuh"),
    ("include/cuda/std/type_traits", "include/cccl/cuda/std/type_traits"),
    ("include/thrust/version.h", "include/cccl/thrust/version.h"),
    ("nvvm/libdevice/libdevice.10.bc",),
)
LIBRARIES = ("libcudart.so", "libcudart_static.a", "libcudadevrt.a")
VERSIONED = re.compile(r"(?P<stem>lib[^/]+\.so)\.[0-9.]+")
# The prototypes of cuda.h, the targets of its renaming macros, and the names of their per-thread-stream variants.
DRIVER_NAME = re.compile(r"\bcu[A-Z]\w*")
DRIVER_STREAM_NAME = re.compile(r"__CUDA_API_(PTDS|PTSZ)\(\s*(cu[A-Z]\w*)\s*\)")


class ToolkitError(Exception):
    """The wheels do not hold what a toolkit needs."""


def find_root(nvidia: Path) -> Path:
    """Return the one tree below `nvidia` that has the compiler."""
    roots = sorted(path.parent.parent for path in nvidia.glob("*/bin/nvcc"))
    if len(roots) == 1:
        return roots[0]
    if roots:
        raise ToolkitError(f"more than one nvcc below {nvidia}: {', '.join(root.name for root in roots)}")
    trees = ", ".join(sorted(path.name for path in nvidia.iterdir() if path.is_dir())) if nvidia.is_dir() else "nothing"
    raise ToolkitError(f"no bin/nvcc below {nvidia} (found: {trees}); the nvcc wheel is missing or carries ptxas only")


def merge_trees(nvidia: Path, root: Path) -> None:
    """Link the headers and libraries of the other trees into the compiler's (CUDA 12 wheels)."""
    if re.fullmatch(r"cu\d+", root.name):
        return
    for tree in sorted(path for path in nvidia.iterdir() if path.is_dir() and path != root):
        for part in ("include", "lib"):
            if (tree / part).is_dir():
                link_tree(tree / part, root / part)


def link_tree(source: Path, target: Path) -> None:
    """Link every entry of `source` into `target`; go down only where both have a folder."""
    target.mkdir(exist_ok=True)
    for entry in sorted(source.iterdir()):
        here = target / entry.name
        if entry.name in ("__init__.py", "__pycache__"):
            continue
        if entry.is_dir() and here.is_dir() and not here.is_symlink():
            link_tree(entry, here)
        elif not os.path.lexists(here):
            here.symlink_to(os.path.relpath(entry, target))
        elif here.is_file() and not filecmp.cmp(here, entry, shallow=False):
            raise ToolkitError(f"{here} and {entry} differ")


def link_libraries(root: Path) -> None:
    """Give `lib` its other name, and every versioned library its unversioned one (the highest version wins)."""
    replace_link(root / "lib64", "lib")
    for library in sorted((root / "lib").iterdir(), key=lambda path: version_key(path.name)):
        match = VERSIONED.fullmatch(library.name)
        if match:
            name = root / "lib" / match["stem"]
            if name.is_symlink() or not name.exists():
                replace_link(name, library.name)


def version_key(name: str) -> tuple[str, tuple[int, ...]]:
    stem, _, version = name.partition(".so.")
    return stem, tuple(int(part) for part in version.split(".") if part.isdigit())


def replace_link(path: Path, target: str) -> None:
    if path.is_symlink():
        path.unlink()
    elif path.exists():
        raise ToolkitError(f"{path} exists and is not a link")
    path.symlink_to(target)


def driver_names(header: Path) -> list[str]:
    """Return the names of the driver's functions in cuda.h; a few type names more do no harm."""
    text = re.sub(r"/\*.*?\*/", "", header.read_text(encoding="utf-8", errors="replace"), flags=re.DOTALL)
    names = set(DRIVER_NAME.findall(text))
    names.update(f"{name}_{kind.lower()}" for kind, name in DRIVER_STREAM_NAME.findall(text))
    if "cuInit" not in names or len(names) < 300:
        raise ToolkitError(f"{header} declares only {len(names)} names of the driver")
    return sorted(names)


def make_driver_stub(root: Path) -> int:
    """Build lib/stubs/libcuda.so; return how many names it has.

    The names must be there: gcc links with --as-needed, so an empty stub would drop libcuda.so.1 from NEEDED without a
    word, and kernels that call the driver would fail at their first call.
    """
    names = driver_names(root / "include" / "cuda.h")
    stub = root / "lib" / "stubs" / "libcuda.so"
    stub.parent.mkdir(exist_ok=True)
    source = "".join(f"void {name}(void) {{}}\n" for name in names)
    flags = ("-shared", "-nostdlib", "-fPIC", "-w", "-fno-builtin", "-frandom-seed=0")
    link = ("-Wl,-soname,libcuda.so.1", "-Wl,--build-id=none", "-s")
    command = ["gcc", *flags, "-x", "c", "-", *link, "-o", str(stub)]
    done = subprocess.run(command, input=source.encode(), capture_output=True, check=False)
    if done.returncode != 0:
        raise ToolkitError(f"gcc could not build the libcuda stub:\n{done.stderr.decode(errors='replace')}")
    stub.chmod(0o755)
    return len(names)


def set_executable(root: Path) -> None:
    """Wheels unpacked by some installers lose the mode bits."""
    for folder in ("bin", "nvvm/bin"):
        for path in sorted((root / folder).iterdir()):
            if path.is_file() and not path.is_symlink():
                path.chmod(0o644 if path.suffix in (".profile", ".h", ".py") else 0o755)


def missing_parts(root: Path) -> Iterator[str]:
    """Yield each part of a toolkit that is not there."""
    yield from (tool for tool in TOOLS if not os.access(root / tool, os.X_OK))
    for alternatives in HEADERS:
        if not any((root / name).exists() for name in alternatives):
            yield " or ".join(alternatives)
    yield from (f"lib/{name}" for name in LIBRARIES if not (root / "lib" / name).exists())


def check_compiler(root: Path) -> str:
    """Compile an empty kernel and return nvcc's version line."""
    nvcc = str(root / "bin" / "nvcc")
    source = b"#include <cub/cub.cuh>\n#include <cuda/std/type_traits>\n__global__ void nothing() {}\n"
    command = [nvcc, "-x", "cu", "-E", "-o", os.devnull, "-"]
    done = subprocess.run(command, input=source, capture_output=True, check=False)
    if done.returncode != 0:
        raise ToolkitError(f"{nvcc} cannot preprocess a kernel:\n{done.stderr.decode(errors='replace')}")
    version = subprocess.run([nvcc, "--version"], capture_output=True, check=True).stdout.decode()
    return next(line for line in version.splitlines() if "release" in line)


def complete(nvidia: Path, link: Path) -> None:
    """Make the toolkit below `nvidia` whole and point `link` at it."""
    nvidia = nvidia.absolute()
    root = find_root(nvidia)
    merge_trees(nvidia, root)
    if not (root / "lib").is_dir():
        raise ToolkitError(f"{root} has no lib: the wheel of the CUDA runtime is missing")
    link_libraries(root)
    set_executable(root)
    missing = list(missing_parts(root))
    if missing:
        raise ToolkitError(f"{root} is not a whole toolkit; missing: {', '.join(missing)}")
    names = make_driver_stub(root)
    link.parent.mkdir(parents=True, exist_ok=True)
    replace_link(link, str(root))
    print(f"{link} -> {root}")
    print(check_compiler(root))
    print(f"libcuda stub: {names} names")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--nvidia", type=Path, required=True, help="site-packages/nvidia of the environment")
    parser.add_argument("--link", type=Path, default=Path("/usr/local/cuda"))
    args = parser.parse_args()
    try:
        complete(args.nvidia, args.link)
    except ToolkitError as error:
        print(f"complete_toolkit: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
