"""How a transfer is shown: a bar, a line every few seconds, a stage of a build's view, or not at all."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress as Bars

    from kiln.view import View

_PLAIN_EVERY_S = 5.0


class Progress(Protocol):
    """What a transfer tells; called from several threads."""

    def begin(self, files: int, size_bytes: int) -> None:
        """Say how much there is to do."""

    def advance(self, size_bytes: int) -> None:
        """Say that bytes have come; negative if some of them had to be dropped."""

    def file_done(self) -> None:
        """Say that a file is complete."""


@dataclass
class Counter:
    """The counts themselves; shows nothing."""

    files: int = 0
    size_bytes: int = 0
    done_files: int = 0
    done_bytes: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, files: int, size_bytes: int) -> None:
        self.files, self.size_bytes = files, size_bytes
        self.show()

    def advance(self, size_bytes: int) -> None:
        with self.lock:
            self.done_bytes += size_bytes
            self.show()

    def file_done(self) -> None:
        with self.lock:
            self.done_files += 1
            self.show()

    def show(self) -> None:
        """Show the counts."""

    def text(self) -> str:
        """Return `12/228 files, 1.2 of 4.4 GB`."""
        return f"{self.done_files}/{self.files} files, {self.done_bytes / 1e9:.2f} of {self.size_bytes / 1e9:.2f} GB"


@dataclass
class Plain(Counter):
    """A line every five seconds and one at the end, with the time that is left at the pace so far."""

    out: TextIO = field(default_factory=lambda: sys.stderr)
    started: float = field(default_factory=time.monotonic)
    said: float = 0.0

    def show(self) -> None:
        now = time.monotonic()
        last = 0 < self.files == self.done_files
        if last or now - max(self.said, self.started) > _PLAIN_EVERY_S:
            self.said = now
            self.out.write(f"fetch: {self.text()}{self._eta(now)}\n")
            self.out.flush()

    def _eta(self, now: float) -> str:
        if not 0 < self.done_bytes < self.size_bytes:
            return ""
        left_s = (now - self.started) * (self.size_bytes - self.done_bytes) / self.done_bytes
        return f", {left_s:.0f} s left"


@dataclass
class ViewProgress(Counter):
    """The counts as one stage of a build's view."""

    view: View = field(kw_only=True)
    stage: str = "fetch"

    def show(self) -> None:
        self.view.update(self.stage, self.text(), float(self.done_bytes), float(self.size_bytes))


@contextmanager
def terminal(out: TextIO = sys.stderr) -> Iterator[Progress]:
    """Give the progress that suits `out`: bytes, speed and time left as a bar, or plain lines."""
    if not out.isatty():
        yield Plain(out=out)
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Bars(*columns, TimeRemainingColumn(), console=Console(file=out)) as bars:
        bars.add_task("fetch", total=None)
        yield Bar(bars=bars)


@dataclass
class Bar(Counter):
    """A bar with bytes, speed and time left."""

    bars: Bars = field(kw_only=True)

    def show(self) -> None:
        text = f"fetch {self.done_files}/{self.files}"
        task = self.bars.task_ids[0]
        self.bars.update(task, description=text, completed=self.done_bytes, total=self.size_bytes)
