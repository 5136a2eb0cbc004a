"""What engines print while they build, line by line: BuildKit's plain progress, and the steps of other builders."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Kind = Literal["start", "output", "done", "cached", "error", "canceled", "paused", "status"]
_LINE = re.compile(r"#(\d+) (.*)", re.DOTALL)
_OUTPUT = re.compile(r"(\d+\.\d+) ?(.*)", re.DOTALL)
_DONE = re.compile(r"DONE (\d+\.\d+)s")
_STEP = re.compile(r"\[[^]]+\] .*|(exporting to|importing cache|resolve image config) .*", re.DOTALL)
# buildah: `[2/3] STEP 1/4: RUN …`; the classic builder: `Step 1/4 : RUN …`.
_NUMBERED = re.compile(r"(?:\[\d+/\d+\] )?(?:STEP|Step) (\d+)/\d+ ?: (.*)", re.DOTALL)
_ERROR = re.compile(r"(?:Error: |ERROR: )(.*)", re.DOTALL)
_STATUS = re.compile(
    r"\[Warning\] .*|(?:\[\d+/\d+\] )?COMMIT .*|Successfully (?:built|tagged) .*|Removing intermediate container .*"
    r"| ?-{2,3}> .*|[0-9a-f]{64}",
    re.DOTALL,
)


@dataclass(frozen=True)
class Line:
    """What one line says of step `step`: its title, a line of its output at `seconds`, or how it ended.

    `step` is 0 for the output of builders that do not number it.
    """

    step: int
    kind: Kind
    text: str
    seconds: float | None = None


def parse(line: str) -> Line | None:
    """Read one line of BuildKit; None for what belongs to no step, such as the summary of an error at the end."""
    match = _LINE.fullmatch(line)
    return _of_step(int(match[1]), match[2]) if match else None


def parse_steps(line: str) -> Line:
    """Read one line of buildah or the classic builder; what is none of their own words is a step's output."""
    if step := _NUMBERED.fullmatch(line):
        return Line(int(step[1]), "start", step[2])
    if "> Using cache" in line and _STATUS.fullmatch(line):
        return Line(0, "cached", "")
    if error := _ERROR.fullmatch(line):
        return Line(0, "error", error[1])
    return Line(0, "status" if _STATUS.fullmatch(line) else "output", line)


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
