"""What a stage cost: wall time, the machine's busy CPU time and the peak of memory in use, from /proc."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

_TICKS_PER_S = 100
_PERIOD_S = 0.5


@dataclass(frozen=True)
class Cost:
    """`cpu_s` and `peak_bytes` are the whole machine's: builds run in the engine, which is no child of ours."""

    wall_s: float
    cpu_s: float
    peak_bytes: int


class Meter:
    """Measure what happens inside a `with` block; `cost` is there afterwards."""

    def __init__(self) -> None:
        self.cost = Cost(0.0, 0.0, 0)
        self._stop = threading.Event()
        self._peak = 0
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> Meter:
        self._start, self._cpu = time.monotonic(), busy_s()
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join()
        self.cost = Cost(time.monotonic() - self._start, busy_s() - self._cpu, max(self._peak, used_bytes()))

    def _sample(self) -> None:
        while not self._stop.wait(_PERIOD_S):
            self._peak = max(self._peak, used_bytes())


def busy_s(stat: Path = Path("/proc/stat")) -> float:
    """Seconds of user, nice, system, irq and softirq time of all CPUs since boot."""
    fields = [int(field) for field in stat.read_text().splitlines()[0].split()[1:]]
    return sum(fields[index] for index in (0, 1, 2, 5, 6)) / _TICKS_PER_S


def used_bytes(meminfo: Path = Path("/proc/meminfo")) -> int:
    """Memory in use: total less available."""
    kib = {line.split(":")[0]: int(line.split()[1]) for line in meminfo.read_text().splitlines()[:3]}
    return (kib["MemTotal"] - kib["MemAvailable"]) * 1024
