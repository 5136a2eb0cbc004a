"""Follow a server to its verdict: states and reasons over time, compilers, NCCL, and the stacks where it is stuck."""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

from . import commands, compiling, files, health, nvml, sampler

_STACK_S = 20.0
_NVML_S = 5.0
_LONGEST_STACK = 20000
_NCCL = re.compile(r"\S*/libnccl\.so\S*")


def facts(argv: list[str], faults: list[dict[str, str]]) -> dict[str, Any]:
    """Return the timeline and what was seen on the way. `timed_out`: the deadline came before a final state.

    Times are seconds since this began to look.
    """
    options = _parse(argv)
    watch = health.Watch(options.port, options.expect, _Marks(options.log, faults).read)
    limits = health.Limits(grace_s=options.grace, stall_s=options.stall)
    timeline: list[dict[str, Any]] = []
    looks: list[health.Look] = []
    began = time.monotonic()

    def tell(look: health.Look, state: str, reason: str) -> None:
        looks[:] = [look]
        if not timeline or timeline[-1]["state"] != state or _kind(timeline[-1]["why"]) != _kind(reason):
            timeline.append({"time_s": round(time.monotonic() - began, 1), "state": state, "why": reason})

    with compiling.watching(options.port) as compilers:
        state = health.follow(watch, options.deadline, tell, limits)
    seconds = round(time.monotonic() - began, 1)
    found, last = health.processes(), looks[0]
    server = health.find_server(found, options.port)
    workers = [one for one in health.tree(found, server.pid) if one.role] if server else []
    return {
        "state": state, "seconds": seconds, "timed_out": state not in (health.READY, health.STUCK, health.DEAD),
        "timeline": timeline, "alive": list(last.alive), "missing": list(last.missing), "orphans": list(last.orphans),
        "expected": health.expected(server.argv, options.expect) if server else None,
        "compiled": compilers.counted(),
        "nccl": [{"process": one.role, "libraries": _nccl(one.pid, faults)} for one in workers if _is_rank(one)],
        "stacks": [_stack(one, faults) for one in workers] if state == health.STUCK else [],
    }  # fmt: skip


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="serve")
    parser.add_argument("--port", type=int)
    parser.add_argument("--expect", type=health.sizes, default={})
    parser.add_argument("--deadline", type=float, default=1800.0)
    parser.add_argument("--stall", type=float, default=health.Limits().stall_s)
    parser.add_argument("--grace", type=float, default=60.0)
    parser.add_argument("--log", type=Path)
    return parser.parse_args(argv)


def _kind(reason: str) -> str:
    """Return a reason without its numbers."""
    return re.sub(r"\d+(\.\d+)?", "#", reason)


def _is_rank(one: health.Process) -> bool:
    return one.role.startswith("scheduler")


class _Marks:
    """Progress that /proc does not tell: the log's size, the memory of the GPUs."""

    def __init__(self, log: Path | None, faults: list[dict[str, str]]) -> None:
        self.log, self.faults = log, faults
        self.nvml: Any = None
        self.asked = False

    def read(self) -> dict[str, int]:
        """Return the marks that can be read; NVML may hang with the driver, and is then not asked again."""
        marks: dict[str, int] = {}
        if self.log and self.log.exists():
            marks["log"] = self.log.stat().st_size
        box: list[int] = []
        if not self.asked or self.nvml is not None:
            thread = threading.Thread(target=lambda: box.extend(self._vram()), daemon=True)
            thread.start()
            thread.join(_NVML_S)
            if thread.is_alive():
                self.faults.append({"source": "nvml", "error": f"no answer within {_NVML_S:.0f} s"})
                self.nvml, self.asked = None, True
        return {**marks, "vram_mib": box[0]} if box else marks

    def _vram(self) -> list[int]:
        if not self.asked:
            self.asked, self.nvml = True, nvml.connect(self.faults)
        lib = self.nvml
        if lib is None:
            return []
        count = sampler.value(lib, lib.nvmlDeviceGetCount) or 0
        handles = [sampler.value(lib, partial(lib.nvmlDeviceGetHandleByIndex, index)) for index in range(count)]
        used = [sampler.look(lib, handle)["memory_used_mib"] for handle in handles if handle is not None]
        known = [int(one) for one in used if one is not None]
        return [sum(known)] if known else []


def _nccl(pid: int, faults: list[dict[str, str]]) -> list[str] | None:
    """Return the NCCL libraries that a process has mapped, plugins left out; None if that cannot be read."""
    text = files.read(Path(f"/proc/{pid}/maps"), faults)
    return None if text is None else sorted(set(_NCCL.findall(text)))


def _stack(one: health.Process, faults: list[dict[str, str]]) -> dict[str, Any]:
    """Return where a process is, in Python; a stopped one cannot be halted, and need not be."""
    program = shutil.which("py-spy") or str(Path(sys.executable).with_name("py-spy"))
    text = commands.run(
        [program, "dump", "--nonblocking", "--pid", str(one.pid)], faults, _STACK_S, name=f"stack {one.role}"
    )
    return {"process": f"{one.role}:{one.pid}", "text": text and text[:_LONGEST_STACK]}
