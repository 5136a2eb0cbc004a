"""Facts of kernel numerics: how near each backend comes to a reference."""

from __future__ import annotations

from kiln.facts.fabric import EndedFacts
from kiln.facts.reading import Fact, Fault


class Point(Fact):
    """One row count; with `refused`, the backend's own words, there are no numbers."""

    rows: int
    refused: str | None
    cosine: float | None = None
    worst_row: float | None = None
    relative_error: float | None = None
    not_finite: int | None = None
    zero_rows: int | None = None
    all_zero: bool | None = None


class CaseFacts(Fact):
    """One kernel of one backend: its points, or why there are none."""

    name: str
    points: tuple[Point, ...] = ()
    not_run: str | None = None
    ended: EndedFacts | None = None


class NumericsFacts(Fact):
    """What the probe `numerics` found. `asked` are the patterns asked for, `unknown` those that no case has."""

    gpu: str | None
    asked: tuple[str, ...]
    unknown: tuple[str, ...]
    cases: tuple[CaseFacts, ...]
    faults: tuple[Fault, ...] = ()
