"""Findings, or binaries, that differ by their file alone, told once: a package may hold thousands of a kind."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from kiln.audit.arch import Row
from kiln.audit.rules import Finding


class _Filed(Protocol):
    @property
    def file(self) -> str: ...


_Of = TypeVar("_Of", bound=_Filed)


@dataclass(frozen=True)
class Findings:
    """Findings that say the same of several files of one top folder."""

    first: Finding
    files: tuple[str, ...]


def findings(found: Iterable[Finding]) -> list[Findings]:
    """Put findings together, in the order of each kind's first."""
    kinds = _by_kind((one, replace(one, file=_top(one.file))) for one in found)
    return [Findings(alike[0], tuple(one.file for one in alike)) for alike in kinds]


def rows(found: Iterable[Row]) -> list[tuple[Row, tuple[str, ...]]]:
    """Put binaries of which the GPU takes nothing together by their targets, with their files; others stay alone."""
    kinds = _by_kind((row, row.file if row.runs else (_top(row.file), row.targets)) for row in found)
    return [(_sum(alike), tuple(row.file for row in alike)) for alike in kinds]


def label(files: tuple[str, ...]) -> str:
    """Name the first of some files, and how many there are beside it."""
    return f"{files[0]} and {len(files) - 1:,} more below {_top(files[0])}/" if len(files) > 1 else files[0]


def _by_kind(found: Iterable[tuple[_Of, Hashable]]) -> Iterable[list[_Of]]:
    kinds: dict[Hashable, list[_Of]] = {}
    for one, kind in found:
        kinds.setdefault(kind, []).append(one)
    return kinds.values()


def _top(file: str) -> str:
    return file.partition("/")[0]


def _sum(alike: list[Row]) -> Row:
    parts, covered, kernels = (sum(numbers) for numbers in zip(*(_counts(row) for row in alike), strict=True))
    return replace(alike[0], parts=parts, covered=covered, kernels=kernels)


def _counts(row: Row) -> tuple[int, int, int]:
    return row.parts, row.covered, row.kernels
