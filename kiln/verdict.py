"""Verdicts: what a check found, why, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any


class Verdict(StrEnum):
    """A check's word. NOT_RUN is never PASS: what was not looked at is not known to be good."""

    PASS = "PASS"
    WARN = "WARN"
    NOT_RUN = "NOT_RUN"
    FAIL = "FAIL"


GOOD = (Verdict.PASS, Verdict.WARN)
_ORDER = tuple(Verdict)


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the worst of some verdicts; NOT_RUN if there are none."""
    return max(verdicts, key=_ORDER.index, default=Verdict.NOT_RUN)


@dataclass(frozen=True)
class Finding:
    """One thing that a check says of one subject ("GPU 3", "GPU 0 -> 1", empty for the whole node).

    `numbers` are measured values by name, the unit in the name: {"h2d_gb_s": 55.1}. `cause` and `cure` are for whoever
    stands before the node; both are empty for PASS. `required` is false where the overall verdict may do without.
    """

    verdict: Verdict
    message: str
    subject: str = ""
    cause: str = ""
    cure: str = ""
    numbers: Mapping[str, float] = field(default_factory=dict)
    check: str = ""
    required: bool = True

    def as_dict(self) -> dict[str, Any]:
        """Return what goes into a receipt."""
        return asdict(self)


def passed(message: str, subject: str = "", **numbers: float) -> Finding:
    """Make a finding of something good."""
    return Finding(Verdict.PASS, message, subject, numbers=numbers)


def warned(message: str, subject: str = "", *, cause: str, cure: str, **numbers: float) -> Finding:
    """Make a finding of something that costs speed or may break."""
    return Finding(Verdict.WARN, message, subject, cause, cure, numbers)


def failed(message: str, subject: str = "", *, cause: str, cure: str, **numbers: float) -> Finding:
    """Make a finding of something that makes the node, the image or the server unfit."""
    return Finding(Verdict.FAIL, message, subject, cause, cure, numbers)


def not_run(message: str, subject: str = "", *, cause: str = "", cure: str = "", required: bool = True) -> Finding:
    """Make a finding of something that could not be looked at."""
    return Finding(Verdict.NOT_RUN, message, subject, cause, cure, required=required)


def overall(findings: Iterable[Finding]) -> Verdict:
    """Return the verdict of a node: the worst finding; a NOT_RUN counts only where it is required."""
    return worst(one.verdict for one in findings if one.required or one.verdict is not Verdict.NOT_RUN)
