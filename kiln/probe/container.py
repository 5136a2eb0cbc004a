"""What a program in the container gets: limits, /dev/shm, the driver's library, torch, NCCL, FlashInfer, compilers."""

from __future__ import annotations

import ctypes
import importlib
import os
import re
import resource
import shutil
import tempfile
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

from . import children, commands, files, gpu, host, module
from .child import Say
from .children import Limits, Work

_DEADLINE_S = 180
_COMMAND_S = 20
_PACKAGES = ("torch", "flashinfer-python", "flashinfer-cubin", "flashinfer-jit-cache", "sglang", "nvidia-nccl-cu12",
             "nvidia-nccl-cu13")  # fmt: skip
_ENVIRONMENT = re.compile(r"(CUDA|NCCL|FLASHINFER|TORCH|TRITON|SGLANG|NVIDIA)_\w+|LD_LIBRARY_PATH|LD_PRELOAD|MAX_JOBS")


def facts(argv: list[str], faults: list[dict[str, str]]) -> dict[str, Any]:
    """Read what needs no library here, and the libraries in a child: importing them may hang on a broken GPU."""
    del argv
    gpus = gpu.inventory(faults)
    ended = children.one(Work(".container"), Limits(_DEADLINE_S))
    if not ended.good:
        faults.append({"source": "libraries", "error": ended.error() or ""})
    found = {key: value for record in ended.records for key, value in record.items()}
    return {
        "gpus": [{key: one[key] for key in ("gpu", "name", "compute_capability", "memory_bytes")} for one in gpus],
        "driver": _driver(), "libcuda": found.get("libcuda"), "torch": found.get("torch"), "nccl": found.get("nccl"),
        "flashinfer": found.get("flashinfer"), "packages": _packages(), "shm": host.shm(faults), "limits": _limits(),
        "cache": _cache(faults), "compilers": _compilers(faults),
        "environment": {key: value for key, value in sorted(os.environ.items()) if _ENVIRONMENT.fullmatch(key)},
    }  # fmt: skip


def _driver() -> str | None:
    """Return the version of the kernel module that runs; the container sees the node's /proc/driver."""
    return (module.loaded([]) or {}).get("version")


def _packages() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _limits() -> dict[str, int]:
    """Return the limits that hold for this process, -1 for none."""
    kinds = {"memlock_bytes": resource.RLIMIT_MEMLOCK, "nofile": resource.RLIMIT_NOFILE,
             "stack_bytes": resource.RLIMIT_STACK}  # fmt: skip
    soft = {name: resource.getrlimit(kind)[0] for name, kind in kinds.items()}
    return {name: -1 if value == resource.RLIM_INFINITY else value for name, value in soft.items()}


def _cache(faults: list[dict[str, str]]) -> dict[str, Any]:
    """Say where compiled kernels go, on which file system, and whether a file can be made there by this user."""
    base = Path(os.environ.get("FLASHINFER_WORKSPACE_BASE") or Path.home()) / ".cache" / "flashinfer"
    disk = host.disk("cache", str(base), faults)
    try:
        base.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=base):
            error = None
    except OSError as problem:
        error = str(problem)
    return {"path": str(base), "kind": disk["kind"] if disk else None, "writable": error is None, "error": error}


def _compilers(faults: list[dict[str, str]]) -> list[dict[str, Any]]:
    """Return every nvcc and ptxas that a program here may come to use, with the architectures it knows."""
    return [_compiler(path, faults) for path in compilers(dict(os.environ))]


def compilers(environment: dict[str, str], roots: list[Path] | None = None) -> list[Path]:
    """List nvcc and ptxas: on PATH, of CUDA_HOME, of Triton, and those that Triton's settings name; links once."""
    folders = [Path(one) for one in environment.get("PATH", "").split(os.pathsep) if one]
    folders += [Path(environment[name]) / "bin" for name in ("CUDA_HOME", "CUDA_PATH") if environment.get(name)]
    found = [folder / name for folder in folders for name in ("nvcc", "ptxas")]
    for root in _triton() if roots is None else roots:
        found += sorted(root.glob("**/bin/ptxas*"))
    found += [Path(value) for name, value in environment.items() if re.fullmatch(r"TRITON_PTXAS\w*_PATH", name)]
    real = {path.resolve(): path for path in reversed(found) if shutil.which(str(path))}
    return list(reversed(list(real.values())))


def _triton() -> list[Path]:
    try:
        files_of = metadata.distribution("triton")
    except metadata.PackageNotFoundError:
        return []
    return [Path(str(files_of.locate_file("triton/backends/nvidia")))]


def _compiler(path: Path, faults: list[dict[str, str]]) -> dict[str, Any]:
    nvcc = path.name == "nvcc"
    version = commands.run([str(path), "--version"], faults, _COMMAND_S) or ""
    words = commands.run([str(path), "--list-gpu-code" if nvcc else "--help"], faults, _COMMAND_S)
    release = re.search(r"release [\d.]+, V([\d.]+)", version)
    archs = None if words is None else sorted(set(re.findall(r"\bsm_\d+\w?\b", words)))
    return {"path": str(path), "version": release[1] if release else None, "archs": archs}


def work(argv: list[str], say: Say) -> None:
    """Say what the libraries tell, one record each, so that one that crashes costs itself only."""
    del argv
    say({"libcuda": _libcuda()})
    say({"torch": _torch()})
    say({"nccl": _nccl()})
    say({"flashinfer": _flashinfer()})


def _mapped(pattern: str) -> dict[int, str]:
    """Return the files mapped into this process whose name fits, by their inode."""
    lines = (line.split(None, 5) for line in (files.read(Path("/proc/self/maps")) or "").splitlines())
    rows = [words for words in lines if len(words) == 6 and re.search(pattern, words[5].rpartition("/")[2])]
    return {int(words[4]): words[5].strip() for words in rows}


def _libcuda() -> dict[str, Any] | None:
    """Load the driver's library as a program does, and say which file that is and what CUDA it speaks."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    number = ctypes.c_int()
    code = library.cuDriverGetVersion(ctypes.byref(number))
    path = next(iter(_mapped(r"^libcuda\.so").values()), None)
    version = re.search(r"libcuda\.so\.(\d+\.\d+(\.\d+)?)$", path or "")
    return {
        "path": path, "version": version[1] if version else None,
        "cuda": None if code else f"{number.value // 1000}.{number.value % 1000 // 10}",
    }  # fmt: skip


def _torch() -> dict[str, Any] | None:
    """Import torch and let it find the GPUs; `error` is what it says if it finds none."""
    try:
        torch = importlib.import_module("torch")
    except ImportError:
        return None
    error = None
    try:
        torch.cuda.init()
    except (AssertionError, RuntimeError) as problem:
        error = str(problem)[:500]
    count = 0 if error else torch.cuda.device_count()
    return {
        "version": torch.__version__, "cuda": torch.version.cuda, "archs": torch.cuda.get_arch_list(), "error": error,
        "gpus": ["{}.{}".format(*torch.cuda.get_device_capability(index)) for index in range(count)],
    }  # fmt: skip


def _nccl() -> list[dict[str, Any]]:
    """Return each NCCL in this process: torch's, and the one that engines load by its name besides."""
    with suppress(OSError):
        ctypes.CDLL("libnccl.so.2")
    found = []
    for path in _mapped(r"^libnccl\.so").values():
        number = ctypes.c_int()
        code = ctypes.CDLL(path).ncclGetVersion(ctypes.byref(number))
        found.append({"path": path, "version": None if code else _nccl_version(number.value)})
    return found


def _nccl_version(number: int) -> str:
    """Write NCCL_VERSION_CODE as a version: 23007 is 2.30.7."""
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"


def _flashinfer() -> dict[str, Any] | None:
    """Import FlashInfer and ask for what it would compile; None if it is not installed."""
    try:
        flashinfer = importlib.import_module("flashinfer")
    except ModuleNotFoundError as error:
        if error.name == "flashinfer":
            return None
        raise
    context = importlib.import_module("flashinfer.compilation_context").CompilationContext()
    archs = sorted(f"{major}.{minor}" for major, minor in context.TARGET_CUDA_ARCHS)
    return {"version": flashinfer.__version__, "archs": archs}
