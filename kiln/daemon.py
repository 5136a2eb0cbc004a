"""A daemon that kiln started: remembered on disk, recognised later, and never mistaken for another process."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from kiln import whole
from kiln.errors import KilnError


@dataclass(frozen=True)
class Daemon:
    """`started` is the start time in ticks and the boot it belongs to: with `pid` it names one process for ever."""

    pid: int
    started: str
    address: str


def remember(state: Path, pid: int, address: str) -> Daemon:
    """Write the state file of a process that was just started. Raises ProcessLookupError if it is gone already."""
    started = start_time(pid)
    if started is None:
        raise ProcessLookupError(pid)
    daemon = Daemon(pid, started, address)
    whole.write(state, json.dumps(asdict(daemon)).encode())
    return daemon


def recall(state: Path) -> Daemon | None:
    """Return the daemon of a state file, dead or alive; None if there is no readable one."""
    try:
        return Daemon(**json.loads(state.read_text()))
    except (OSError, ValueError, TypeError):
        return None


def is_alive(daemon: Daemon) -> bool:
    """Tell whether that very process still runs."""
    return start_time(daemon.pid) == daemon.started


def stop(daemon: Daemon, *, timeout_s: float = 30) -> bool:
    """Ask the process to end, kill it after `timeout_s`; False if it did not run any more."""
    try:
        handle = os.pidfd_open(daemon.pid)
    except ProcessLookupError:
        return False
    try:
        if not is_alive(daemon):
            return False
        signal.pidfd_send_signal(handle, signal.SIGTERM)
        if not _ends_within(daemon, timeout_s):
            signal.pidfd_send_signal(handle, signal.SIGKILL)
            _ends_within(daemon, 10)
        return True
    except ProcessLookupError:  # it ended between the look and the signal
        return True
    finally:
        os.close(handle)


def _ends_within(daemon: Daemon, timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if not is_alive(daemon):
            return True
        time.sleep(0.05)
    return False


def start_time(pid: int) -> str | None:
    """Return when a process started, as a word that no later process shares; None for a dead one or a zombie."""
    try:
        # The name in parentheses may hold spaces and parentheses itself: proc(5).
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" else f"{fields[19]}@{boot_id()}"


def boot_id() -> str:
    """Return the kernel's name for this boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def wait(daemon: Daemon, answers: Callable[[], bool], timeout_s: float) -> bool:
    """Wait until a daemon answers; False as soon as it has ended, or after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline and is_alive(daemon):
        if answers():
            return True
        time.sleep(0.1)
    return False


def settle(state: Path, pid: int, address: str, log: Path, answers: Callable[[], bool], timeout_s: float) -> Daemon:
    """Remember a process that was just started and wait until it answers; stops it and raises if it does not."""
    try:
        daemon = remember(state, pid, address)
    except ProcessLookupError:
        raise KilnError(f"the process for {address} ended at once; the end of {log}:\n{_tail(log)}") from None
    if wait(daemon, answers, timeout_s):
        return daemon
    fate = f"did not answer within {timeout_s:.0f} s" if stop(daemon) else "ended"
    raise KilnError(f"the process for {address} {fate}; the end of {log}:\n{_tail(log)}")


def _tail(log: Path, lines: int = 15) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:]) if log.exists() else ""
