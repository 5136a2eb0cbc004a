"""One rank of an all-reduce: joins its group, reduces tensors of several sizes, checks every value."""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import time
from datetime import timedelta
from typing import Any

from . import gpu
from .child import Say

SIZES = (32 << 10, 256 << 10, 32 << 20, 256 << 20)
_TIMES = {32 << 10: 200, 256 << 10: 100, 32 << 20: 20, 256 << 20: 8}
_WARM = 5
_PERIOD = 1021  # a prime: no chunk of a ring begins at the same place of the pattern


def work(argv: list[str], say: Say) -> None:
    """Say {"step": …} before each thing that may hang, and {"bytes", "seconds", "wrong"} after each size."""
    options = _parse(argv)
    torch = importlib.import_module("torch") if options.device == "cpu" else gpu.torch()
    device = "cpu" if options.device == "cpu" else f"cuda:{options.gpu}"
    if device != "cpu":
        torch.cuda.set_device(device)
    dist = importlib.import_module("torch.distributed")
    say({"step": "join"})
    dist.init_process_group(
        options.backend, init_method=f"file://{options.store}", rank=options.rank, world_size=options.world,
        timeout=timedelta(hours=1),
    )  # fmt: skip
    # The CPU is there for tests of this program: the large ones would take minutes.
    for size in SIZES if device != "cpu" else SIZES[:2]:
        say({"step": f"{size} bytes"})
        say({"bytes": size, **_reduce(torch, dist, device, size, options)})
    say({"step": "leave"})
    dist.destroy_process_group()
    say({"step": "done"})


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="rank")
    for name in ("--rank", "--world", "--gpu"):
        parser.add_argument(name, type=int, required=True)
    for name in ("--store", "--backend", "--device", "--fault"):
        parser.add_argument(name, default="")
    return parser.parse_args(argv)


def _reduce(torch: Any, dist: Any, device: str, size: int, options: argparse.Namespace) -> dict[str, Any]:
    """Check the values of a first and of a last reduction, and time those between."""
    count = torch.arange(size // 4, dtype=torch.int32, device=device) % _PERIOD
    mine = (count + options.rank + 1).to(torch.float32)
    # Whole numbers far below 2^24: the sum is exact in whatever order it is made.
    want = (count * options.world + options.world * (options.world + 1) // 2).to(torch.float32)
    first = mine.clone()
    dist.all_reduce(first)
    if size == SIZES[1]:
        _misbehave(options, first)
    wrong = int((first != want).sum().item())
    scratch = torch.zeros_like(mine)
    for _ in range(_WARM):
        dist.all_reduce(scratch)
    seconds = _timed(torch, dist, device, scratch, _TIMES[size])
    last = mine.clone()
    dist.all_reduce(last)
    return {"seconds": seconds, "wrong": wrong + int((last != want).sum().item())}


def _timed(torch: Any, dist: Any, device: str, data: Any, times: int) -> float:
    """Return the seconds of one reduction: by the GPU's events, or by the clock where there is no GPU."""
    if device == "cpu":
        began = time.monotonic()
        for _ in range(times):
            dist.all_reduce(data)
        return (time.monotonic() - began) / times
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    begin.record()
    for _ in range(times):
        dist.all_reduce(data)
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1000 / times


def _misbehave(options: argparse.Namespace, got: Any) -> None:
    """Do what --fault asks of this rank: die, hang, or find a wrong value."""
    kind, _, rank = options.fault.partition(":")
    if not kind or int(rank) != options.rank:
        return
    if kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    while kind == "hang":
        time.sleep(1)
    got[0] += 1
