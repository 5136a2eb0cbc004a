"""Parts of a probe that run side by side, so that one that hangs costs itself and nothing else."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any


def gather(
    sections: dict[str, Callable[[list[dict[str, str]]], Any]], faults: list[dict[str, str]], deadline_s: float
) -> dict[str, Any]:
    """Return what each section found; one that raises or has not answered at the deadline is None and a fault.

    The threads are daemons: one that hangs in a system call does not keep the process from ending.
    """
    found: dict[str, Any] = {}
    ends = time.monotonic() + deadline_s
    threads = {name: threading.Thread(target=_section, args=(name, read, found), daemon=True)
               for name, read in sections.items()}  # fmt: skip
    for thread in threads.values():
        thread.start()
    for name, thread in threads.items():
        thread.join(max(0.0, ends - time.monotonic()))
        late = {"source": name, "error": f"no answer within {deadline_s:g} s"}
        value, own = found.get(name, (None, [late]))
        faults.extend(own)
        found[name] = (value, own)
    return {name: found[name][0] for name in sections}


def _section(name: str, read: Callable[[list[dict[str, str]]], Any], found: dict[str, Any]) -> None:
    faults: list[dict[str, str]] = []
    value = None
    try:
        value = read(faults)
    except Exception as error:  # noqa: BLE001 a section that fails must not cost the others
        faults.append({"source": name, "error": f"{type(error).__name__}: {error}"})
    found.setdefault(name, (value, faults))
