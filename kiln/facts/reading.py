"""What every probe prints: one JSON object on one line, its facts and what it could not read."""

from __future__ import annotations

import json
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from kiln.errors import KilnError

VERSION = 1


class Fact(BaseModel):
    """Base of all facts: frozen; a key that nobody knows is refused, so that probe and reader cannot drift apart."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Fault(Fact):
    """Something that a probe could not read: where it looked, and what it got."""

    source: str
    error: str


class Report(Fact):
    """A probe's whole answer."""

    probe: str
    version: int
    seconds: float
    faults: tuple[Fault, ...] = ()
    facts: dict[str, Any]


Read = TypeVar("Read", bound=BaseModel)


class BadReport(KilnError):
    """A probe's answer that cannot be read; its message holds the end of what came instead."""


def report(text: str) -> Report:
    """Read a probe's output: the last line that is a JSON object. Raises BadReport."""
    line = next((one for one in reversed(text.splitlines()) if one.startswith("{")), "")
    try:
        found = Report.model_validate(json.loads(line))
    except (ValueError, ValidationError) as error:
        raise BadReport(f"the probe's answer cannot be read ({error}): {text[-500:]!r}") from None
    if found.version != VERSION:
        raise BadReport(f"the probe speaks version {found.version}, this kiln reads {VERSION}")
    return found


def read(text: str, kind: type[Read]) -> Read:
    """Read a probe's facts as `kind`, which has a field `faults`. Raises BadReport naming the field."""
    answer = report(text)
    try:
        return kind.model_validate({**answer.facts, "faults": [one.model_dump() for one in answer.faults]})
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(step) for step in first["loc"])
        raise BadReport(f"probe {answer.probe}: {where}: {first['msg']}") from None
