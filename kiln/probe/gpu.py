"""GPUs as the CUDA driver sees them, through ctypes. GPU checks never fall back to the CPU: there is no other way."""

from __future__ import annotations

import ctypes
import importlib
import uuid
from functools import lru_cache
from types import ModuleType
from typing import Any

from . import children
from .child import NotRun, Say
from .children import Limits, Work

_START_S = 120.0
_MAJOR, _MINOR = 75, 76  # CUdevice_attribute


class CudaError(Exception):
    """A call of the driver's API failed; `code` is its CUresult."""

    def __init__(self, call: str, code: int, text: str) -> None:
        super().__init__(f"{call}: error {code}: {text}")
        self.code = code


@lru_cache(maxsize=1)
def _driver() -> ctypes.CDLL:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise NotRun(f"no CUDA driver: {error}") from None


def call(name: str, *arguments: Any) -> None:
    """Call a function of libcuda.so.1. Raises CudaError, and NotRun if there is no such library."""
    library = _driver()
    code = getattr(library, name)(*arguments)
    if code:
        text = ctypes.c_char_p()
        library.cuGetErrorString(code, ctypes.byref(text))
        raise CudaError(name, code, (text.value or b"unknown").decode())


def torch() -> ModuleType:
    """Import torch for work on a GPU. Raises NotRun if it is missing or sees none."""
    try:
        module = importlib.import_module("torch")
    except ImportError as error:
        raise NotRun(f"no torch: {error}") from None
    try:
        module.cuda.init()
    except (AssertionError, RuntimeError) as error:
        raise NotRun(f"torch {module.__version__} sees no GPU: {error}") from None
    return module


def inventory(faults: list[dict[str, str]]) -> list[dict[str, Any]]:
    """List the GPUs from a child, as the driver hangs on a broken one: index, name, UUID, bus, capability, bytes.

    Empty with a fault if there are none or they cannot be read.
    """
    ended = children.one(Work(".gpu"), Limits(_START_S))
    if not ended.good or ended.not_run:
        faults.append({"source": "CUDA driver", "error": ended.not_run or ended.error() or ""})
    return [record for record in ended.records if "gpu" in record]


def work(_argv: list[str], say: Say) -> None:
    """Say one record for each GPU."""
    call("cuInit", 0)
    count = ctypes.c_int()
    call("cuDeviceGetCount", ctypes.byref(count))
    for index in range(count.value):
        say(_describe(index))


def _describe(index: int) -> dict[str, Any]:
    device, name, size = ctypes.c_int(), ctypes.create_string_buffer(256), ctypes.c_size_t()
    bus, raw, major, minor = ctypes.create_string_buffer(32), (ctypes.c_ubyte * 16)(), ctypes.c_int(), ctypes.c_int()
    call("cuDeviceGet", ctypes.byref(device), index)
    call("cuDeviceGetName", name, len(name), device)
    call("cuDeviceTotalMem_v2", ctypes.byref(size), device)
    call("cuDeviceGetUuid_v2", ctypes.byref(raw), device)
    call("cuDeviceGetPCIBusId", bus, len(bus), device)
    call("cuDeviceGetAttribute", ctypes.byref(major), _MAJOR, device)
    call("cuDeviceGetAttribute", ctypes.byref(minor), _MINOR, device)
    return {
        "gpu": index, "name": name.value.decode(), "uuid": f"GPU-{uuid.UUID(bytes=bytes(raw))}",
        "bus_id": bus.value.decode().lower(), "compute_capability": f"{major.value}.{minor.value}",
        "memory_bytes": size.value,
    }  # fmt: skip
