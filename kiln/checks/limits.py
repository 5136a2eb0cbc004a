"""Numbers against a topology's limits, and against their equals: a limit that is not there judges nothing."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median

from kiln.topologies import Limit
from kiln.verdict import Finding, Verdict, failed, passed, warned


def grade(value: float, limit: Limit | None, *, more_is_worse: bool = False) -> Verdict:
    """Return PASS, WARN or FAIL for a number."""
    sign = -1 if more_is_worse else 1
    if limit is None or sign * value >= sign * limit.warn:
        return Verdict.PASS
    return Verdict.WARN if sign * value >= sign * limit.fail else Verdict.FAIL


def finding(
    verdict: Verdict, message: str, subject: str = "", *, cause: str, cure: str, numbers: Mapping[str, float]
) -> Finding:
    """Make the finding of a verdict; one that passes has neither cause nor cure."""
    if verdict is Verdict.PASS:
        return passed(message, subject, **numbers)
    make = failed if verdict is Verdict.FAIL else warned
    return make(message, subject, cause=cause, cure=cure, **numbers)


def against(limit: Limit | None, unit: str, *, more_is_worse: bool = False) -> str:
    """Write a limit behind a number: "of 52 GB/s", "none in this topology"."""
    if limit is None:
        return "no limit in this topology"
    return f"{'at most' if more_is_worse else 'at least'} {limit.warn:g} {unit} wanted"


def outliers(values: Mapping[str, float], fraction: float) -> dict[str, float]:
    """Return those below a fraction of the median, as their part of it; of fewer than three nobody can tell."""
    if len(values) < 3:
        return {}
    middle = median(values.values())
    return {name: value / middle for name, value in values.items() if value < fraction * middle}
