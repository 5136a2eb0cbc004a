"""Copies from GPU to GPU: every ordered pair with its bytes verified, GB/s and latency; then all pairs at once."""

from __future__ import annotations

import argparse
import ctypes
import json
import time
from functools import lru_cache, partial
from typing import Any

from . import children, gpu, nvml, sampler
from .child import Say
from .children import Limits, Work

_LIMITS = Limits(deadline_s=900, silence_s=60)
_WORDS = 64 << 20 >> 2  # 64 MiB of int32 a copy
_TIMES = 8
_SMALL_BYTES, _SMALL_TIMES = 16, 100
_ROUNDS = 4
_SPIN_CYCLES = 50_000_000  # about 25 ms, in which the small copies are handed to the GPU, so that only they are timed
# NVML's nvmlGpuTopologyLevel_t: what lies between two GPUs.
_LEVELS = {0: "internal", 10: "one switch", 20: "switches", 30: "host bridge", 40: "NUMA node", 50: "system"}


def facts(argv: list[str], faults: list[dict[str, str]]) -> dict[str, Any]:
    """Measure all pairs, then all at once; a pair that hangs or fails costs itself only."""
    argparse.ArgumentParser(prog="peers").parse_args(argv)
    gpus = gpu.inventory(faults)
    indexes = [one["gpu"] for one in gpus]
    items = [f"{source} {target}" for source in indexes for target in indexes if source != target]
    found = children.each(Work(".peers", ["--pairs"]), items, _LIMITS) if items else {}
    between = _between(gpus, faults)
    return {
        "gpus": len(gpus),
        "pairs": [_row(item, found[item], between) for item in items],
        "concurrent": _concurrent(indexes) if items else None,
    }


def _row(item: str, record: dict[str, Any], between: dict[tuple[int, int], str]) -> dict[str, Any]:
    source, target = (int(word) for word in item.split())
    return {"source": source, "target": target, "between": between.get((source, target)), **record}


def _between(gpus: list[dict[str, Any]], faults: list[dict[str, str]]) -> dict[tuple[int, int], str]:
    """Return what lies between each two GPUs, as NVML knows it."""
    lib: Any = nvml.connect(faults) if gpus else None
    handles = sampler.handles(lib, gpus) if lib else {}
    found: dict[tuple[int, int], str] = {}
    for one, first in handles.items():
        for other, second in handles.items():
            level = None
            if one != other:
                level = sampler.value(lib, partial(lib.nvmlDeviceGetTopologyCommonAncestor, first, second))
            if level in _LEVELS:
                found[one, other] = _LEVELS[level]
    return found


def _concurrent(indexes: list[int]) -> dict[str, Any]:
    ended = children.one(Work(".peers", ["--concurrent", json.dumps(indexes)]), Limits(180))
    found = next((one for one in ended.records if "gb_s" in one), None)
    return found if found and ended.good else {"ended": ended.as_dict()}


def work(argv: list[str], say: Say) -> None:
    """Do `--pairs --items [...]` one by one, or all ordered pairs of `--concurrent [...]` at once."""
    torch = gpu.torch()
    if argv[0] == "--concurrent":
        say(_all_at_once(torch, json.loads(argv[1])))
        return
    say({"ready": True})
    for number, item in enumerate(json.loads(argv[argv.index("--items") + 1])):
        source, target = (int(word) for word in item.split())
        say({"item": item, **_pair(torch, source, target, number)})


def pattern(torch: Any, words: int, seed: int, device: str) -> Any:
    """Make words that differ from their neighbours and from those of any other seed, the same on every GPU."""
    count = torch.arange(words, dtype=torch.int32, device=device)
    return (count * 1664525 + (seed * 22695477 + 1013904223) % (1 << 31)).bitwise_xor(count >> 7)


def wrong(torch: Any, got: Any, want: Any) -> int:
    """Count the words that are not as they should be."""
    return int(torch.count_nonzero(got != want).item())


def _pair(torch: Any, source: int, target: int, seed: int) -> dict[str, Any]:
    """Copy the way torch does it, then the way the driver does it many times; the bytes are verified after both."""
    data, want = pattern(torch, _WORDS, seed, f"cuda:{source}"), pattern(torch, _WORDS, seed, f"cuda:{target}")
    got = want.bitwise_not()
    torch.cuda.synchronize(target)
    torch.cuda.set_device(source)
    got.copy_(data)
    torch.cuda.synchronize(target)
    first = wrong(torch, got, want)
    got.bitwise_not_()
    torch.cuda.synchronize(target)
    seconds = _timed(torch, got, data, _WORDS * 4, _TIMES)
    torch.cuda.synchronize(target)
    small = _timed(torch, got, data, _SMALL_BYTES, _SMALL_TIMES)
    return {
        "access": torch.cuda.can_device_access_peer(source, target),
        "bytes": _WORDS * 4 * (1 + _TIMES), "wrong_words": first + wrong(torch, got, want),
        "gb_s": round(_WORDS * 4 * _TIMES / seconds / 1e9, 2), "latency_us": round(small / _SMALL_TIMES * 1e6, 2),
    }  # fmt: skip


def _timed(torch: Any, target: Any, source: Any, size: int, times: int) -> float:
    """Return the GPU's seconds for copies queued behind a kernel that spins, so that the queueing is not timed.

    torch's own copies wait for the streams of both GPUs each time, so the driver is asked directly.
    """
    stream = torch.cuda.Stream(device=source.device)
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    with torch.cuda.device(source.device), torch.cuda.stream(stream):
        torch.cuda._sleep(_SPIN_CYCLES)
        begin.record()
        for _ in range(times):
            _copy(target, source, size, stream)
        end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1000


def _copy(target: Any, source: Any, size: int, stream: Any) -> None:
    gpu.call(
        "cuMemcpyPeerAsync", ctypes.c_uint64(target.data_ptr()), _context(target.device.index),
        ctypes.c_uint64(source.data_ptr()), _context(source.device.index), ctypes.c_size_t(size),
        ctypes.c_void_p(stream.cuda_stream),
    )  # fmt: skip


@lru_cache(maxsize=64)
def _context(index: int) -> ctypes.c_void_p:
    """Return the context that torch works in on a GPU."""
    device, context = ctypes.c_int(), ctypes.c_void_p()
    gpu.call("cuDeviceGet", ctypes.byref(device), index)
    gpu.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    return context


def _all_at_once(torch: Any, indexes: list[int]) -> dict[str, Any]:
    """Copy between all ordered pairs at the same time, some rounds, and verify all of them."""
    pairs = [(source, target) for source in indexes for target in indexes if source != target]
    data = {source: pattern(torch, _WORDS, source, f"cuda:{source}") for source in indexes}
    got = {pair: torch.zeros(_WORDS, dtype=torch.int32, device=f"cuda:{pair[1]}") for pair in pairs}
    streams = {pair: torch.cuda.Stream(device=pair[0]) for pair in pairs}
    for pair in pairs:  # opens the peer access of each pair, which takes long the first time
        got[pair][:1].copy_(data[pair[0]][:1])
    _wait(torch, indexes)
    began = time.monotonic()
    spans = {pair: _queue(torch, got[pair], data[pair[0]], streams[pair]) for pair in pairs}
    _wait(torch, indexes)
    seconds = time.monotonic() - began
    moved = _WORDS * 4 * _ROUNDS
    slowest = max(pairs, key=lambda pair: spans[pair][0].elapsed_time(spans[pair][1]))
    bad = {pair: wrong(torch, got[pair], pattern(torch, _WORDS, pair[0], f"cuda:{pair[1]}")) for pair in pairs}
    return {
        "pairs": len(pairs), "bytes": moved * len(pairs), "wrong_words": sum(bad.values()),
        "wrong_pairs": [f"{source} -> {target}" for (source, target), words in bad.items() if words],
        "gb_s": round(moved * len(pairs) / seconds / 1e9, 2),
        "slowest_pair": f"{slowest[0]} -> {slowest[1]}",
        "slowest_gb_s": round(moved / spans[slowest][0].elapsed_time(spans[slowest][1]) / 1e6, 2),
    }  # fmt: skip


def _wait(torch: Any, indexes: list[int]) -> None:
    for index in indexes:
        torch.cuda.synchronize(index)


def _queue(torch: Any, target: Any, source: Any, stream: Any) -> tuple[Any, Any]:
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    with torch.cuda.device(source.device), torch.cuda.stream(stream):
        begin.record()
        for _ in range(_ROUNDS):
            _copy(target, source, _WORDS * 4, stream)
        end.record()
    return begin, end
