"""Processes, from /proc: which of them a child started, and how to be rid of them."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

_GONE_S = 2.0


class Process(NamedTuple):
    """What /proc/<pid>/stat says; a number alone may soon be another's, so `started` goes with it."""

    pid: int
    name: str
    state: str
    parent: int
    session: int
    started: int


def read(pid: int) -> Process | None:
    """Read one process; None if it is gone."""
    with suppress(OSError, ValueError, IndexError):
        head, _, tail = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")
        words = tail.split()
        return Process(pid, head.partition("(")[2], words[0], int(words[1]), int(words[3]), int(words[19]))
    return None


def family(pid: int, mark: str) -> list[Process]:
    """Return the living processes that `pid` started: below it, in its session, or with `mark` in their environment.

    An orphan has another parent and a daemon another session, but both still have the environment.
    """
    seen = (read(int(path.name)) for path in Path("/proc").iterdir() if path.name.isdigit())
    known = [process for process in seen if process]
    found = {one.pid for one in known if one.session == pid or _marked(one.pid, mark)} | {pid}
    while True:
        more = {process.pid for process in known if process.parent in found} - found
        if not more:
            return [process for process in known if process.pid in found - {pid} and process.state != "Z"]
        found |= more


def sweep(pid: int, mark: str) -> None:
    """Kill a child's family and reap what became ours: this process is its orphans' parent (PR_SET_CHILD_SUBREAPER).

    Gives up after two seconds: what hangs in a driver cannot be killed.
    """
    until = time.monotonic() + _GONE_S
    killed = set()
    while time.monotonic() < until:
        alive = family(pid, mark)
        for process in alive:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(process.pid, signal.SIGKILL)
                killed.add(process.pid)
        for one in killed:
            with suppress(ChildProcessError):
                os.waitpid(one, os.WNOHANG)
        if not alive:
            return
        time.sleep(0.02)


def _marked(pid: int, mark: str) -> bool:
    if pid == os.getpid():
        return False
    with suppress(OSError):
        return mark.encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return False
