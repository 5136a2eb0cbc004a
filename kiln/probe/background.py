"""A look that is repeated in the background while something else runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def repeating(look: Callable[[], None], every_s: float, wait_s: float) -> Iterator[None]:
    """Call `look` every so often until the block ends.

    A look into a driver that hangs must not hold up the end: it is not waited for longer than `wait_s`.
    """
    over = threading.Event()

    def repeat() -> None:
        while not over.is_set():
            look()
            over.wait(every_s)

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(wait_s)
