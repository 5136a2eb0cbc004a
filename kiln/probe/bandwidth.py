"""Copies between pinned host memory and each GPU in turn: GB/s (1e9 bytes), and the PCIe link during the copies."""

from __future__ import annotations

import argparse
import json
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from . import children, files, gpu, nvml, sampler
from .child import Say
from .children import Limits, Work

_LIMITS = Limits(deadline_s=280, silence_s=60)
_BYTES = 256 << 20
_TIMES = 20
_LOOK_S = 0.01


def facts(argv: list[str], faults: list[dict[str, str]]) -> dict[str, Any]:
    """Measure every GPU; one that hangs or fails costs itself only."""
    argparse.ArgumentParser(prog="bandwidth").parse_args(argv)
    gpus = gpu.inventory(faults)
    items = [f"{one['gpu']} {one['uuid']} {one['bus_id']}" for one in gpus]
    found = children.each(Work(".bandwidth"), items, _LIMITS)
    return {"bytes": _BYTES, "gpus": [_row(one, found[item]) for one, item in zip(gpus, items)]}


def _row(one: dict[str, Any], record: dict[str, Any]) -> dict[str, Any]:
    return {"gpu": one["gpu"], "name": one["name"], **record}


def work(argv: list[str], say: Say) -> None:
    """Measure the GPUs of --items, "<index> <UUID> <bus address>" each."""
    items = json.loads(argv[argv.index("--items") + 1])
    torch = gpu.torch()
    lib = nvml.connect([])
    say({"ready": True})
    for item in items:
        index, uuid, bus_id = item.split()
        _move_near(bus_id)
        handles = sampler.handles(lib, [{"gpu": int(index), "uuid": uuid}]) if lib else {}
        say({"item": item, **_measure(torch, int(index), lib, handles.get(int(index)))})


def _move_near(bus_id: str) -> None:
    """Let this process run, and so allocate host memory, on the processors next to a GPU, where that is allowed."""
    cpus = files.read(Path("/sys/bus/pci/devices") / bus_id / "local_cpulist") or ""
    ranges = [part.partition("-") for part in cpus.split(",") if part]
    near = {cpu for first, _, last in ranges for cpu in range(int(first), int(last or first) + 1)}
    if near:
        with suppress(OSError):
            os.sched_setaffinity(0, near)


def _measure(torch: Any, index: int, lib: Any, handle: Any) -> dict[str, Any]:
    torch.cuda.set_device(index)
    host = torch.empty(_BYTES, dtype=torch.uint8, pin_memory=True)
    device = torch.empty(_BYTES, dtype=torch.uint8, device=f"cuda:{index}")
    looks = Looks(lib, handle)
    into, out = _copies(torch, device, host, looks), _copies(torch, host, device, looks)
    return {"h2d_gb_s": into, "d2h_gb_s": out, **looks.lowest()}


class Looks:
    """The states of a GPU's PCIe link that were seen while it was busy; none without NVML."""

    def __init__(self, lib: Any, handle: Any) -> None:
        self.lib, self.handle = lib, handle
        self.seen: list[tuple[int | None, int | None]] = []

    def until(self, end: Any) -> None:
        """Look until an event; a look that was not over before the event does not count."""
        while self.handle and not end.query():
            seen = sampler.link(self.lib, self.handle)
            if not end.query():
                self.seen.append(seen)
            time.sleep(_LOOK_S)

    def lowest(self) -> dict[str, int | None]:
        """Return the lowest state: a link that drops a generation in mid copy is what is looked for."""
        generations = [one for one, _ in self.seen if one is not None]
        widths = [one for _, one in self.seen if one is not None]
        lowest = {"link_generation": min(generations, default=None), "link_width": min(widths, default=None)}
        return {"looks": len(self.seen), **lowest}


def _copies(torch: Any, target: Any, source: Any, looks: Looks) -> float:
    """Return GB/s of copies queued one behind the other; the first one, which wakes the link, does not count."""
    target.copy_(source, non_blocking=True)
    torch.cuda.synchronize()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(_TIMES):
        target.copy_(source, non_blocking=True)
    end.record()
    looks.until(end)
    end.synchronize()
    return round(_BYTES * _TIMES / float(begin.elapsed_time(end)) / 1e6, 2)
