"""What a phase works with: the opened node, the time that is left, and probes at their places."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from testinfra.host import Host

from kiln.errors import KilnError
from kiln.smoke.connection import TimedOut
from kiln.smoke.job import Job
from kiln.smoke.node import Opened
from kiln.smoke.places import InImage, OnNode, Place


class CannotRun(KilnError):
    """Nothing further can be run: the deadline has passed, the run was interrupted, the node is gone."""


@dataclass
class Clock:
    """The run's deadline. `stop` is set when the run is told to end."""

    seconds: float
    stop: threading.Event = field(default_factory=threading.Event)
    began: float = field(default_factory=time.monotonic)

    def left(self, limit_s: float) -> float:
        """Return how long something may take that wants `limit_s`. Raises CannotRun."""
        if self.stop.is_set():
            raise CannotRun("the run was interrupted")
        left_s = self.seconds - (time.monotonic() - self.began)
        if left_s < 1:
            raise CannotRun(f"the deadline of {self.seconds:.0f} s has passed")
        return min(limit_s, left_s)

    def extended(self, extra_s: float) -> Clock:
        """Return a clock by which at least `extra_s` are left."""
        return replace(self, seconds=max(self.seconds, time.monotonic() - self.began + extra_s))


@dataclass
class Access:
    """The way to one opened node; `say` is told what is being done, `times` when each probe was begun."""

    job: Job
    host: Host
    opened: Opened
    clock: Clock
    say: Callable[[str], None]
    times: dict[str, float] = field(default_factory=dict)

    def on_node(self) -> Place:
        """The node's own python3, as root where that needs no password."""
        return OnNode(self.host, self.opened)

    def in_image(self, *options: str) -> InImage:
        """A container of the image."""
        return InImage(self.host, self.opened, self.job.image, self.job.id, options)

    def for_gpus(self) -> Place:
        """Where what computes on GPUs runs: the image, or the Python that was given."""
        if self.job.python:
            return OnNode(self.host, self.opened, self.job.python, as_root=False)
        return self.in_image()

    def probe(self, place: Place, name: str, args: Sequence[str], limit_s: float) -> str:
        """Run a probe within the time that is left. Raises CannotRun and what the place raises."""
        left_s = self.clock.left(limit_s)
        self.say(name)
        self.times[name] = round(time.monotonic() - self.clock.began, 2)
        try:
            return place.probe(name, args, left_s)
        except TimedOut:
            if left_s == limit_s:
                raise
            raise CannotRun(f"the deadline of {self.clock.seconds:.0f} s came while {name} ran") from None
