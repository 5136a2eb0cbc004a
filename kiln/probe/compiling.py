"""Which compilers run below a server, and what they make, watched in the background: a warm image needs none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from . import background, health

# A compiler of less than that may be missed; the shortest unit of FlashInfer takes seconds.
EVERY_S = 0.5


class Seen:
    """The compilers that were seen, each by process id and start."""

    def __init__(self) -> None:
        self.found: dict[tuple[int, int], tuple[str, str]] = {}

    def look(self, port: int | None) -> None:
        """Note the compilers at work at this moment."""
        known = health.processes()
        server = health.find_server(known, port)
        for one in health.tree(known, server.pid) if server else ():
            program = Path(one.argv[0]).name
            if program in health.COMPILERS:
                self.found[one.pid, one.started] = (program, health.module_of(one.argv))

    def counted(self) -> list[dict[str, Any]]:
        """Return how often each program made each module."""
        counts = Counter(self.found.values())
        return [{"program": program, "module": module, "count": counts[program, module]}
                for program, module in sorted(counts)]  # fmt: skip


@contextmanager
def watching(port: int | None) -> Iterator[Seen]:
    """Watch until the block ends."""
    seen = Seen()
    with background.repeating(lambda: seen.look(port), EVERY_S, wait_s=10):
        yield seen
