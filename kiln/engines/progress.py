"""BuildKit's plain progress (`--progress=plain`), line by line."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Kind = Literal["start", "output", "done", "cached", "error", "canceled", "paused", "status"]
_LINE = re.compile(r"#(\d+) (.*)", re.DOTALL)
_OUTPUT = re.compile(r"(\d+\.\d+) ?(.*)", re.DOTALL)
_DONE = re.compile(r"DONE (\d+\.\d+)s")
_STEP = re.compile(r"\[[^]]+\] .*|(exporting to|importing cache|resolve image config) .*", re.DOTALL)


@dataclass(frozen=True)
class Line:
    """What one line says of step `step`: its title, a line of its output at `seconds`, or how it ended."""

    step: int
    kind: Kind
    text: str
    seconds: float | None = None


def parse(line: str) -> Line | None:
    """Read one line; None for what belongs to no step, such as the summary of an error at the end."""
    match = _LINE.fullmatch(line)
    return _of_step(int(match[1]), match[2]) if match else None


def _of_step(step: int, text: str) -> Line:
    if done := _DONE.fullmatch(text):
        return Line(step, "done", "", float(done[1]))
    if text in ("CACHED", "CANCELED", "..."):
        kind: Kind = {"CACHED": "cached", "CANCELED": "canceled"}.get(text, "paused")  # type: ignore[assignment]
        return Line(step, kind, "")
    if text.startswith("ERROR: "):
        return Line(step, "error", text.removeprefix("ERROR: "))
    if output := _OUTPUT.fullmatch(text):
        return Line(step, "output", output[2], float(output[1]))
    return Line(step, "start" if _STEP.fullmatch(text) else "status", text)
