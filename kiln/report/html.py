"""A fleet as one page of at most 2 MB: what does not fit is thinned, lines first, then what passed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from kiln.errors import UserError
from kiln.page import render
from kiln.report import bars, curves
from kiln.report.fleet import Fleet, numbers, rate
from kiln.verdict import Verdict

TEMPLATE = Path("pages") / "smoke.html.j2"
LIMIT_BYTES = 2_000_000


class Detail(NamedTuple):
    """How much a page tells: points of a line, outcomes that passed of each node, receipts of the history."""

    points: int
    passed: int
    history: int


# A pixel of a line, "123.4 56.7 ".
_POINT_BYTES = 11
LEVELS = (Detail(240, 1000, 1000), Detail(120, 400, 500), Detail(48, 100, 200), Detail(16, 20, 100), Detail(0, 0, 50))


def page(root: Path, fleet: Fleet) -> str:
    """Return the page with the most detail that fits. Raises UserError for more nodes than fit with the least."""
    for detail in LEVELS:
        if detail is not LEVELS[-1] and _lines_bytes(fleet, detail) > LIMIT_BYTES:
            continue
        text = _page(root, fleet, detail)
        if len(text.encode()) <= LIMIT_BYTES:
            return text
    size = f"{len(text.encode()) / 1e6:.1f} MB, more than {LIMIT_BYTES / 1e6:.0f} MB"
    raise UserError(f"{len(fleet.nodes)} nodes make a page of {size}", hint="name fewer: inv report --receipts …")


def _lines_bytes(fleet: Fleet, detail: Detail) -> int:
    """Return about how large the lines alone will be."""
    cards = (max(1, len(node.receipt.node.gpus)) for node in fleet.nodes)
    samples = (len(node.receipt.samples) for node in fleet.nodes)
    points = sum(min(count, detail.points * gpus) for count, gpus in zip(samples, cards, strict=True))
    return points * len(curves.METRICS) * _POINT_BYTES


def _page(root: Path, fleet: Fleet, detail: Detail) -> str:
    values = {"fleet": fleet, "detail": detail, "bars": bars, "curves": curves, "Verdict": Verdict}
    marks = {Verdict.PASS: "✓", Verdict.WARN: "!", Verdict.NOT_RUN: "○", Verdict.FAIL: "✗"}
    filters: dict[str, Callable[..., object]] = {"mark": marks.__getitem__, "numbers": numbers, "rate": rate}
    return render(root, TEMPLATE, values, filters)
