"""Curves of samples as paths of inline SVG: one small panel for each GPU and metric, all of a metric on one scale."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from kiln.receipt import Receipt, Sample

WIDTH, HEIGHT = 240, 132
LEFT, RIGHT, TOP, BOTTOM = 36, 232, 8, 108
# A hole of this many sampling steps breaks the line: what was not sampled is not drawn.
_HOLE_STEPS = 5
Point = tuple[float, float]


@dataclass(frozen=True)
class Metric:
    """A field of a sample; `top` and `bottom` fix an end of the scale, None leaves it to the values."""

    field: str
    title: str
    unit: str
    bottom: float | None = 0.0
    top: float | None = None


METRICS = (
    Metric("power_w", "Power", "W"),
    Metric("temperature_c", "Temperature", "°C", bottom=None),
    Metric("utilization_percent", "Utilisation", "%", top=100.0),
)


@dataclass(frozen=True)
class Scale:
    """Values to pixels, one axis. `ticks`: pixel and label."""

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        """Return the pixel of a value."""
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)

    @property
    def ticks(self) -> tuple[tuple[float, str], ...]:
        values = (self.low, (self.low + self.high) / 2, self.high)
        return tuple((self.at(value), f"{value:g}") for value in values)


@dataclass(frozen=True)
class Panel:
    """One GPU: its line, the pixel of its limit if it has one, and the values in words."""

    gpu: int
    path: str
    limit_y: float | None
    words: str


@dataclass(frozen=True)
class Chart:
    """One metric: the scales, the band between the lowest and the highest GPU, and the panels."""

    metric: Metric
    x: Scale
    y: Scale
    band: str
    panels: tuple[Panel, ...]


def charts(receipt: Receipt, points: int) -> tuple[Chart, ...]:
    """Return a chart for each metric that has values, each line thinned to about so many points."""
    samples = sorted(receipt.samples, key=lambda sample: sample.time_s)
    if not samples or points < 2:
        return ()
    found = (_chart(receipt, metric, samples, points) for metric in METRICS)
    return tuple(chart for chart in found if chart)


def _chart(receipt: Receipt, metric: Metric, samples: Sequence[Sample], points: int) -> Chart | None:
    lines: dict[int, list[Point]] = {}
    for sample in samples:
        value = getattr(sample, metric.field)
        if value is not None:
            lines.setdefault(sample.gpu, []).append((sample.time_s, value))
    if not lines:
        return None
    caps = {gpu.index: gpu.power_limit_w for gpu in receipt.node.gpus} if metric.field == "power_w" else {}
    values = [value for line in lines.values() for _, value in line]
    limits = [cap for cap in caps.values() if cap is not None]
    x = Scale(samples[0].time_s, max(samples[-1].time_s, samples[0].time_s + 1), LEFT, RIGHT)
    y = _vertical(metric, [*values, *limits])
    panels = [_panel(gpu, line, x, y, caps.get(gpu), metric, points) for gpu, line in sorted(lines.items())]
    return Chart(metric, x, y, _band(lines, x, y, points) if len(lines) > 1 else "", tuple(panels))


def _vertical(metric: Metric, values: Sequence[float]) -> Scale:
    low = metric.bottom if metric.bottom is not None else math.floor(min(values) / 10) * 10
    step = 10.0 if max(values) - low <= 100 else 100.0
    high = metric.top if metric.top is not None else math.ceil(max(values) / step) * step
    return Scale(low, max(high, low + step), BOTTOM, TOP)


def _panel(
    gpu: int, line: Sequence[Point], x: Scale, y: Scale, cap: float | None, metric: Metric, points: int
) -> Panel:
    path = "".join(_stroke(run, x, y) for run in thin(line, points))
    values = [value for _, value in line]
    words = f"{min(values):.0f}–{max(values):.0f} {metric.unit}"
    return Panel(gpu, path, y.at(cap) if cap is not None else None, words)


def _stroke(run: Sequence[Point], x: Scale, y: Scale) -> str:
    pixels = [f"{x.at(time):.1f} {y.at(value):.1f}" for time, value in run]
    # A single point is drawn as a dot by a round line end.
    return f"M{pixels[0]}L{' '.join(pixels[1:] or pixels)}"


def thin(line: Sequence[Point], most: int) -> list[list[Point]]:
    """Cut a line at its holes and keep the lowest and the highest of each stretch: peaks stay, about `most` points."""
    steps = [after - before for (before, _), (after, _) in pairwise(line)]
    span = line[-1][0] - line[0][0]
    hole = max(_HOLE_STEPS * median(steps), 2 * span / most) if steps else math.inf
    runs: list[list[Point]] = [[line[0]]]
    for before, point in pairwise(line):
        if point[0] - before[0] > hole:
            runs.append([])
        runs[-1].append(point)
    return [[*_extremes(run, max(2, round(most * len(run) / len(line))))] for run in runs]


def _extremes(run: Sequence[Point], most: int) -> Iterator[Point]:
    if len(run) <= most:
        yield from run
        return
    stretches = max(1, most // 2)
    for number in range(stretches):
        stretch = run[len(run) * number // stretches : len(run) * (number + 1) // stretches]
        low, high = (pick(stretch, key=lambda point: point[1]) for pick in (min, max))
        yield from sorted({low, high})


def _band(lines: dict[int, list[Point]], x: Scale, y: Scale, points: int) -> str:
    """Return the area between the lowest and the highest GPU at each time."""
    count = max(2, points // 2)
    bounds: list[list[float]] = [[] for _ in range(count)]
    for line in lines.values():
        for time, value in line:
            place = min(count - 1, int((time - x.low) / (x.high - x.low) * count))
            bounds[place] = [min([value, *bounds[place]]), max([value, *bounds[place]])]
    path, run = "", list[tuple[int, float, float]]()
    for number, bound in enumerate([*bounds, []]):
        if bound:
            run.append((number, *bound))  # type: ignore[arg-type]
        elif run:
            path += _area(run, x, y, count)
            run = []
    return path


def _area(run: Sequence[tuple[int, float, float]], x: Scale, y: Scale, count: int) -> str:
    width = (x.end - x.start) / count
    upper = [f"{x.start + (number + 0.5) * width:.1f} {y.at(high):.1f}" for number, _, high in run]
    lower = [f"{x.start + (number + 0.5) * width:.1f} {y.at(low):.1f}" for number, low, _ in reversed(run)]
    return f"M{'L'.join([*upper, *lower])}Z"
