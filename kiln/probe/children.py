"""Child processes of the GPU probes: each in its own process group, with a deadline, killed and swept up after.

A GPU that hangs takes its process with it, and a process that waits for the GPU cannot be asked to stop; so every test
runs in a child, and what the child left is a value.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import offspring
from .child import RECORDS

_PR_SET_CHILD_SUBREAPER = 36  # prctl(2)
_KILL_S = 5.0  # how long a killed process may take to go; one that hangs in the driver stays
_POLL_S = 0.05
_OUTPUT_BYTES = 1 << 20


@dataclass(frozen=True)
class Work:
    """One child: the module whose `work` it runs (".peers" of this package), its arguments, more environment."""

    module: str
    argv: Sequence[str] = ()
    env: dict[str, str] = field(default_factory=dict)
    name: str = ""


@dataclass(frozen=True)
class Limits:
    """Seconds for a child: in all, between records, until the first one, and after another of its group ended badly.

    The first record has its own limit, as a first import of torch reads gigabytes.
    """

    deadline_s: float
    silence_s: float = float("inf")
    start_s: float = 180.0
    grace_s: float = 5.0


@dataclass
class Ended:
    """What a child left.

    `reason`: "exit", "signal", "deadline", "peer" (killed since another child ended badly), or "unkillable" (it is
    still there after SIGKILL). `leftovers` counts processes that it left behind and that were killed; `running` names
    those that ran when its time was over.
    """

    name: str
    reason: str
    code: int | None
    seconds: float
    records: list[dict[str, Any]]
    output: str
    leftovers: int = 0
    running: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        return self.reason == "exit" and self.code == 0

    @property
    def not_run(self) -> str | None:
        """Return why the child could not look, if it said so."""
        return next((str(one["not_run"]) for one in self.records if set(one) == {"not_run"}), None)

    def error(self) -> str | None:
        """Say in one line why it did not end well."""
        last = next((line.strip() for line in reversed(self.output.splitlines()) if line.strip()), "")
        if self.good:
            return None
        if self.reason == "exit":
            return last[-500:] or f"exit status {self.code}"
        if self.reason == "signal":
            return f"killed by {_signal(self.code)}; last words: {last[-300:]}"
        names = f"; running: {', '.join(self.running)}" if self.running else ""
        return {
            "deadline": f"no end after {self.seconds:.0f} s{names}; last words: {last[-300:]}",
            "peer": "killed, as another process of its group had ended",
            "unkillable": f"still there {_KILL_S:.0f} s after SIGKILL: it hangs in the driver",
        }[self.reason]

    def as_dict(self) -> dict[str, Any]:
        """Return it as facts, without its records and its output."""
        return {
            "reason": self.reason, "code": self.code, "seconds": round(self.seconds, 2), "error": self.error(),
            "not_run": self.not_run, "leftovers": self.leftovers,
        }  # fmt: skip


class _Running:
    """A child that runs: its process, its files, and when it last said something."""

    def __init__(self, work: Work, folder: Path) -> None:
        self.work = work
        self.records, self.output = folder / "records", folder / "output"
        folder.mkdir()
        self.records.touch()
        self.mark = f"{RECORDS}={self.records}"
        env = {
            **os.environ, **work.env, RECORDS: str(self.records), "PROBE_PARENT": str(os.getpid()),
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID", "PYTHONUNBUFFERED": "1", "PYTHONPATH": _path(),
        }  # fmt: skip
        argv = [sys.executable, "-m", f"{__package__}.child", work.module, *work.argv]
        self.began = self.said = time.monotonic()
        self.size = 0
        with self.output.open("wb") as out:
            self.proc = subprocess.Popen(
                argv, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
            )

    def late(self, limits: Limits) -> bool:
        """Say whether its time is over; a new record counts as progress."""
        now, size = time.monotonic(), self.records.stat().st_size
        if size != self.size:
            self.size, self.said = size, now
        silence_s = limits.silence_s if size else max(limits.start_s, limits.silence_s)
        return now - self.began > limits.deadline_s or now - self.said > silence_s

    def end(self, why: str) -> Ended:
        """Kill what is left of it and of what it started; `why` is the reason if it had not ended by itself."""
        ended, seconds = self.proc.poll() is not None, time.monotonic() - self.began
        family = offspring.family(self.proc.pid, self.mark)
        with suppress(ProcessLookupError):
            os.killpg(self.proc.pid, signal.SIGKILL)
        offspring.sweep(self.proc.pid, self.mark)
        with suppress(subprocess.TimeoutExpired):
            self.proc.wait(_KILL_S)
        code = self.proc.returncode
        if code is None:
            why = "unkillable"
        elif ended:
            why = "signal" if code < 0 else "exit"
        return Ended(
            self.work.name or self.work.module, why, code, seconds, _records(self.records), _tail(self.output),
            len(family) if ended else 0, [] if ended else sorted({process.name for process in family}),
        )  # fmt: skip


def together(
    works: Sequence[Work], limits: Limits, on_poll: Callable[[float], None] = lambda _seconds: None
) -> list[Ended]:
    """Run children at the same time and return what each left, in their order; none is alive afterwards.

    When one ends badly, the others have `grace_s` left: a rank that lost its peer waits for ever.
    """
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    signal.signal(signal.SIGTERM, _stop)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="kiln-") as place:
        children = [_Running(work, Path(place) / str(index)) for index, work in enumerate(works)]
        ended: dict[int, Ended] = {}
        try:
            _follow(children, limits, ended, lambda: on_poll(time.monotonic() - began))
        finally:
            for index in set(range(len(children))) - set(ended):
                ended[index] = children[index].end("deadline")
        return [ended[index] for index in range(len(children))]


def _stop(_number: int, _frame: Any) -> None:
    """Leave by an exception, which ends the children: `timeout` sends this signal before it kills."""
    raise SystemExit(128 + signal.SIGTERM)


def _follow(children: list[_Running], limits: Limits, ended: dict[int, Ended], poll: Callable[[], None]) -> None:
    """Fill `ended` until every child has an entry."""
    last = float("inf")
    while len(ended) < len(children):
        for index in set(range(len(children))) - set(ended):
            child = children[index]
            if child.proc.poll() is not None:
                ended[index] = child.end("exit")
            elif child.late(limits):
                ended[index] = child.end("deadline")
            elif time.monotonic() > last:
                ended[index] = child.end("peer")
            if index in ended and not ended[index].good:
                last = min(last, time.monotonic() + limits.grace_s)
        poll()
        time.sleep(_POLL_S)


def one(work: Work, limits: Limits) -> Ended:
    """Run one child and return what it left."""
    return together([work], limits)[0]


def each(work: Work, items: Sequence[str], limits: Limits) -> dict[str, dict[str, Any]]:
    """Do items one after the other in one child; where it dies of one, a new child goes on with the next.

    The child gets `--items` with a JSON list, says {"ready": true} once it could begin, then one record with the key
    "item" each. Returns the record of each item without that key, or {"ended": …} of the child that died of it.
    A child that is not ready dies of all items.
    """
    found: dict[str, dict[str, Any]] = {}
    left = list(items)
    while left:
        argv = [*work.argv, "--items", json.dumps(left)]
        ended = one(Work(work.module, argv, work.env, work.name), limits)
        for record in ended.records:
            if "item" in record:
                found[record.pop("item")] = record
        left = [item for item in left if item not in found]
        ready = any(record.get("ready") for record in ended.records)
        for item in left[:1] if ready and ended.reason != "unkillable" else list(left):
            found[item] = {"ended": ended.as_dict()}
            left.remove(item)
    return found


def _path() -> str:
    """Return PYTHONPATH with the place of this package first, a folder or a zip file."""
    root = Path(__file__).parents[__name__.count(".")]
    return os.pathsep.join([str(root), *filter(None, [os.environ.get("PYTHONPATH")])])


def _records(path: Path) -> list[dict[str, Any]]:
    """Read the whole lines; the last one is torn if the child died over it."""
    found = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        with suppress(ValueError):
            found.append(json.loads(line))
    return found


def _tail(path: Path) -> str:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _OUTPUT_BYTES))
        text = file.read().decode("utf-8", "replace")
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def _signal(code: int | None) -> str:
    with suppress(ValueError):
        return signal.Signals(-(code or 0)).name
    return f"signal {-(code or 0)}"
