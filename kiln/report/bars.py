"""Bars and the matrix of a page: lengths in percent of a track, shades by rank, each with its value in words."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from kiln.receipt import Receipt, Server
from kiln.view import clock

SHADES = 6


@dataclass(frozen=True)
class Bar:
    """One bar of a track: where it begins and how long it is, in percent; `mark` is where a limit stands."""

    label: str
    start: float
    width: float
    words: str
    kind: str = ""
    mark: float | None = None


@dataclass(frozen=True)
class Cell:
    """One cell of a matrix: its value in words, and its shade: 0 is half the best or less, SHADES - 1 the best."""

    words: str
    shade: int


def phases(receipt: Receipt) -> tuple[Bar, ...]:
    """Return the phases of a run on one track."""
    end = max((phase.start_s + phase.seconds for phase in receipt.phases), default=0.0) or 1.0
    return tuple(
        Bar(one.name, 100 * one.start_s / end, 100 * one.seconds / end, seconds(one.seconds), str(one.verdict))
        for one in receipt.phases
    )  # fmt: skip


def startup(server: Server) -> tuple[Bar, ...]:
    """Return what a start-up is made of, each as long as it took."""
    known = {name: value for name, value in server.startup_s.items() if value is not None}
    end = max(known.values(), default=0.0) or 1.0
    return tuple(Bar(name, 0.0, 100 * value / end, seconds(value)) for name, value in known.items())


def states(server: Server) -> tuple[Bar, ...]:
    """Return the states of a server on one track; the last one is still on, so its end is the track's."""
    steps = server.timeline
    if not steps:
        return ()
    end = steps[-1].time_s * 1.15 or 1.0
    spans = [(one, after.time_s) for one, after in pairwise(steps)] + [(steps[-1], end)]
    return tuple(
        Bar(one.state, 100 * one.time_s / end, 100 * (until - one.time_s) / end,
            f"from {seconds(one.time_s)}{f': {one.why}' if one.why else ''}", one.state)
        for one, until in spans
    )  # fmt: skip


def rates(receipts: Iterable[Receipt]) -> tuple[Bar, ...]:
    """Return the throughput of each node against its floor, all on one scale."""
    served = [(one, one.server, one.server.throughput_tok_s) for one in receipts if one.server]
    known = [(one, server, rate) for one, server, rate in served if rate is not None]
    top = max((max(rate, server.floor_tok_s or 0.0) for _, server, rate in known), default=0.0) or 1.0
    return tuple(_rate(one, server, rate, top) for one, server, rate in known)


def _rate(receipt: Receipt, server: Server, rate: float, top: float) -> Bar:
    floor = server.floor_tok_s
    words = [f"{rate:,.0f} tok/s"]
    words += [f"floor {floor:,.0f} ({100 * rate / floor:.0f} %)"] if floor else ["no floor in this topology"]
    words += [f"{server.power_w:,.0f} W, {rate / server.power_w:.2f} tok/s per W"] if server.power_w else []
    kind = "" if not floor else "PASS" if rate >= floor else "FAIL"
    label = f"{receipt.node.name_hash} {receipt.preset}".strip()
    mark = 100 * floor / top if floor else None
    return Bar(label, 0.0, 100 * rate / top, " · ".join(words), kind, mark)


def matrix(receipt: Receipt) -> tuple[tuple[Cell, ...], ...]:
    """Return the bandwidth between each two GPUs, from row to column, shaded by its share of the best."""
    best = max((value for row in receipt.peer_gb_s for value in row if value is not None), default=0.0) or 1.0
    return tuple(tuple(_cell(value, best, on_itself=row == column) for column, value in enumerate(values))
                 for row, values in enumerate(receipt.peer_gb_s))  # fmt: skip


def _cell(value: float | None, best: float, *, on_itself: bool) -> Cell:
    if value is None or on_itself:
        return Cell("–" if on_itself else "?", -1)
    return Cell(f"{value:.1f}", max(0, min(SHADES - 1, int((value / best - 0.5) * 2 * SHADES))))


def seconds(value: float) -> str:
    """Return a duration in words: "0.42 s", "17 s", "4:05"."""
    return clock(value) if value >= 120 else f"{value:.0f} s" if value >= 10 else f"{value:.2g} s"
