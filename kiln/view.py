"""The live view of a build: one line a stage on a terminal, one line an event elsewhere. Prints to stderr only."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from typing import TextIO

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

_MARKS = {"waiting": "·", "running": "▸", "done": "✓", "cached": "≡", "failed": "✗"}
_PLAIN_EVERY_S = 15.0


@dataclass
class Stage:
    """State of one stage; `done` of `total` is work in seconds or items, whichever the caller counts.

    The pace is that since `counted_from`, when `counted_done` was done: what went before was no such work.
    """

    name: str
    state: str = "waiting"
    detail: str = ""
    started: float = 0.0
    seconds: float = 0.0
    done: float = 0.0
    total: float = 0.0
    counted_from: float = 0.0
    counted_done: float = 0.0

    def elapsed_s(self) -> float:
        return time.monotonic() - self.started if self.state == "running" else self.seconds

    def eta_s(self) -> float | None:
        """What is left at the pace so far; None before there is a pace."""
        done = self.done - self.counted_done
        if self.state != "running" or not self.total or done <= 0:
            return None
        return (time.monotonic() - (self.counted_from or self.started)) * (self.total - self.done) / done


@dataclass
class View:
    """Stages in order. Use as a context manager; safe to use without a terminal."""

    names: tuple[str, ...]
    out: TextIO = field(default_factory=lambda: sys.stderr)
    quiet: bool = False

    def __post_init__(self) -> None:
        self.stages = {name: Stage(name) for name in self.names}
        self.console = Console(file=self.out, highlight=False)
        self._live: Live | None = None
        self._said = 0.0

    def __enter__(self) -> View:
        if self.console.is_terminal and not self.quiet:
            self._live = Live(get_renderable=self._table, console=self.console, refresh_per_second=4)
            self._live.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._live:
            self._live.stop()

    def start(self, name: str, detail: str = "") -> None:
        stage = self.stages[name]
        stage.state, stage.detail, stage.started = "running", detail, time.monotonic()
        self._say(stage, force=True)

    def update(self, name: str, detail: str, done: float = 0.0, total: float = 0.0) -> None:
        stage = self.stages[name]
        if total and not stage.total:
            stage.counted_from, stage.counted_done = time.monotonic(), done
        stage.detail, stage.done, stage.total = detail, done, total
        self._say(stage)

    def finish(self, name: str, state: str = "done", detail: str = "") -> None:
        stage = self.stages[name]
        stage.seconds = stage.elapsed_s() if stage.state == "running" else 0.0
        stage.state, stage.detail = state, detail or stage.detail
        self._say(stage, force=True)

    def _say(self, stage: Stage, force: bool = False) -> None:
        if self._live or self.quiet or not (force or time.monotonic() - self._said > _PLAIN_EVERY_S):
            return
        self._said = time.monotonic()
        self.console.print(_line(stage), markup=False, emoji=False, soft_wrap=True)

    def _table(self) -> Table:
        table = Table(box=None, show_header=False, pad_edge=False)
        for stage in self.stages.values():
            cells = (_MARKS[stage.state], stage.name, clock(stage.elapsed_s()), _eta(stage), stage.detail)
            table.add_row(*(Text(cell) for cell in cells))
        return table


def clock(seconds: float) -> str:
    """`m:ss`, or `h:mm:ss` from an hour on."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _eta(stage: Stage) -> str:
    left = stage.eta_s()
    return f"ETA {clock(left)}" if left is not None else ""


def _line(stage: Stage) -> str:
    return f"{_MARKS[stage.state]} {stage.name:<12} {clock(stage.elapsed_s()):>7} {_eta(stage)} {stage.detail}".rstrip()
