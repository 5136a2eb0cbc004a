"""Processes that a test expects to end: a killed one is gone only after the kernel has run it a last time."""

from __future__ import annotations

import time

from kiln.probe import offspring


def gone(pid: int, within_s: float = 10, *, reaped: bool = False) -> bool:
    """Say whether a process ends within this time; a zombie has ended, unless it must have been `reaped` as well."""
    end = time.monotonic() + within_s
    while (process := offspring.read(pid)) is not None and (reaped or process.state != "Z"):
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True
