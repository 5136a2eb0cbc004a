"""CUDA IPC: memory of one process opened in a second one on another GPU, read and written, verified on both sides.

Custom all-reduce kernels and CUDA-aware transports stand on this; it fails on nodes where plain copies work.
"""

from __future__ import annotations

import argparse
import ctypes
import tempfile
import time
from pathlib import Path
from typing import Any

from . import children, gpu
from .child import Say
from .children import Limits, Work
from .peers import pattern, wrong

_LIMITS = Limits(deadline_s=150)
_WORDS = 8 << 20 >> 2  # 8 MiB of int32
_BYTES = _WORDS * 4
_LAZY_PEER_ACCESS = 1  # CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS, the flag of the engines' custom all-reduce
_WAIT_S = 130


class _Handle(ctypes.Structure):
    _fields_ = [("reserved", ctypes.c_char * 64)]


def facts(argv: list[str], faults: list[dict[str, str]]) -> dict[str, Any]:
    """Try each GPU with its next neighbour; with one GPU, two processes share it."""
    argparse.ArgumentParser(prog="ipc").parse_args(argv)
    indexes = [one["gpu"] for one in gpu.inventory(faults)]
    pairs = [(one, indexes[(place + 1) % len(indexes)]) for place, one in enumerate(indexes)]
    return {"pairs": [_pair(owner, opener) for owner, opener in pairs]}


def _pair(owner: int, opener: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="kiln-ipc-") as folder:
        sides = {"owner": owner, "opener": opener}
        works = [Work(".ipc", [side, str(index), folder], name=side) for side, index in sides.items()]
        found = children.together(works, _LIMITS)
    words = [record["wrong_words"] for ended in found for record in ended.records if "wrong_words" in record]
    return {
        **sides, "bytes": 2 * _BYTES, "wrong_words": sum(words) if len(words) == len(works) else None,
        "ended": {ended.name: ended.as_dict() for ended in found},
    }  # fmt: skip


def work(argv: list[str], say: Say) -> None:
    """Be the owner or the opener: side, GPU, folder to meet in."""
    torch = gpu.torch()
    torch.cuda.set_device(int(argv[1]))
    torch.cuda.synchronize()
    {"owner": _own, "opener": _open}[argv[0]](torch, f"cuda:{argv[1]}", Path(argv[2]), say)


def _own(torch: Any, device: str, folder: Path, say: Say) -> None:
    """Fill memory with one pattern, hand it out, and expect another one in it afterwards."""
    address, handle = ctypes.c_uint64(), _Handle()
    gpu.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(_BYTES))
    data, got = pattern(torch, _WORDS, 1, device), torch.zeros(_WORDS, dtype=torch.int32, device=device)
    _copy(torch, address.value, data.data_ptr())
    gpu.call("cuIpcGetMemHandle", ctypes.byref(handle), address)
    _hand(folder / "handle", bytes(handle))
    _await(folder / "written")
    _copy(torch, got.data_ptr(), address.value)
    say({"wrong_words": wrong(torch, got, pattern(torch, _WORDS, 2, device))})
    _hand(folder / "seen", b"1")
    gpu.call("cuMemFree_v2", address)


def _open(torch: Any, device: str, folder: Path, say: Say) -> None:
    """Open the owner's memory, read its pattern and write another one."""
    handle = _Handle.from_buffer_copy(_await(folder / "handle"))
    address = ctypes.c_uint64()
    gpu.call("cuIpcOpenMemHandle_v2", ctypes.byref(address), handle, _LAZY_PEER_ACCESS)
    got, data = torch.zeros(_WORDS, dtype=torch.int32, device=device), pattern(torch, _WORDS, 2, device)
    _copy(torch, got.data_ptr(), address.value)
    say({"wrong_words": wrong(torch, got, pattern(torch, _WORDS, 1, device))})
    _copy(torch, address.value, data.data_ptr())
    _hand(folder / "written", b"1")
    _await(folder / "seen")
    gpu.call("cuIpcCloseMemHandle", address)


def _copy(torch: Any, target: int, source: int) -> None:
    torch.cuda.synchronize()
    gpu.call("cuMemcpy", ctypes.c_uint64(target), ctypes.c_uint64(source), ctypes.c_size_t(_BYTES))
    gpu.call("cuCtxSynchronize")


def _hand(path: Path, data: bytes) -> None:
    """Write a file that is whole as soon as it is there."""
    part = path.with_suffix(".part")
    part.write_bytes(data)
    part.rename(path)


def _await(path: Path) -> bytes:
    until = time.monotonic() + _WAIT_S
    while not path.exists():
        if time.monotonic() > until:
            raise TimeoutError(f"the other process did not write {path.name!r} within {_WAIT_S} s")
        time.sleep(0.01)
    return path.read_bytes()
