"""Dockerfiles as instructions, and what BuildKit understands that other builders have to be told."""

from __future__ import annotations

import re
from collections.abc import Iterator

from kiln.errors import UserError

_FROM = re.compile(r"FROM\s+(?:--\S+\s+)*(\S+)(?:\s+AS\s+(\S+))?\s*", re.IGNORECASE)


def instructions(text: str) -> Iterator[str]:
    """Yield comments, blank lines and whole instructions; comments inside an instruction are dropped."""
    parts: list[str] = []
    for line in text.splitlines():
        comment = line.lstrip().startswith("#")
        if comment and re.match(r"#\s*(escape|syntax|check)\s*=", line):
            raise UserError(f"a Dockerfile with the directive {line!r} takes BuildKit")
        if comment and parts:
            continue
        parts.append(line)
        if comment or not line.endswith("\\"):
            yield "\n".join(parts)
            parts = []
    if parts:
        raise UserError(f"the Dockerfile ends inside an instruction: {parts[0]!r}")


def inherit_args(text: str) -> str:
    """Declare in each stage the arguments of the stage that it starts from: elsewhere than in BuildKit they end there.

    Without this a later stage lacks SOURCE_DATE_EPOCH, and its bytecode has times in it.
    """
    stages: dict[str, list[str]] = {}
    here: list[str] = []
    lines: list[str] = []
    for step in instructions(text):
        lines.append(step)
        if found := _FROM.fullmatch(step):
            here = list(stages.get(found[1].lower(), []))
            stages[(found[2] or str(len(stages))).lower()] = here
            lines += here
        elif stages and re.match(r"ARG\s", step, re.IGNORECASE) and step not in here:
            here.append(step)
    return "".join(f"{line}\n" for line in lines)
