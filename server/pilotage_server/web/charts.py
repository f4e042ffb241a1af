"""Charts over time: the coordinates of lines and labels. The macro `chart` of the templates draws them as SVG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

WIDTH, HEIGHT = 640, 160
LEFT, RIGHT, TOP, BOTTOM = 52, 8, 10, 22
_LINES = 3
"""Horizontal lines above the axis."""

_MINUTES = (1, 2, 5, 10, 15, 30, 60, 120, 240, 360, 1440)
_MOST_MARKS = 6
"""Distances of labels in minutes, and the labels of a chart of less than a day."""


@dataclass(frozen=True, slots=True)
class ChartSeries:
    """A series of a chart: the style of its line, and a value for each time."""

    style: str
    values: Sequence[float]


@dataclass(frozen=True, slots=True)
class LineChart:
    """A chart: horizontal lines with their labels by y, labels of times by x, and points of lines with their styles."""

    title: str
    grid: Sequence[tuple[float, str]]
    marks: Sequence[tuple[float, str]]
    lines: Sequence[tuple[str, str]]
    width: int = WIDTH
    height: int = HEIGHT
    left: int = LEFT
    right: int = WIDTH - RIGHT


def line_chart(title: str, times: Sequence[datetime], series: Sequence[ChartSeries], step: timedelta) -> LineChart:
    """Return a chart whose lines are broken where times are missing; `step` = the regular distance of times."""
    most = _nice(max((value for each in series for value in each.values), default=0.0))
    xs = _places(times, step)
    grid = [(round(_y(most * line / _LINES, most), 1), _short(most * line / _LINES)) for line in range(_LINES + 1)]
    lines = [(each.style, points) for each in series for points in _runs(times, xs, each.values, most, step)]
    return LineChart(title, grid, _marks(times, xs, step), lines)


def _places(times: Sequence[datetime], step: timedelta) -> list[float]:
    if not times:
        return []
    steps = max((times[-1] - times[0]) / step, 1.0)
    return [LEFT + (WIDTH - LEFT - RIGHT) * ((time - times[0]) / step) / steps for time in times]


def _nice(most: float) -> float:
    """Return a round number that is not below the greatest value; a third of it is a whole number."""
    size = 1.0
    while True:
        for factor in (3.0, 6.0, 9.0, 15.0):
            if most <= factor * size:
                return factor * size
        size *= 10


def _short(number: float) -> str:
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:g} {unit}"
    return f"{number:g}"


def _y(value: float, most: float) -> float:
    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / most


def _marks(times: Sequence[datetime], xs: Sequence[float], step: timedelta) -> list[tuple[float, str]]:
    """Return the labels of about six minutes, hours or days, apart from those that would leave the chart."""
    if not times:
        return []
    if step >= timedelta(days=1):
        days = max(1, round(len(times) / 6))
        found = zip(xs[::days], times[::days], strict=True)
        return [(round(x, 1), f"{time:%d %b}") for x, time in found if LEFT + 20 < x < WIDTH - RIGHT - 20]
    minutes = next(each for each in _MINUTES if times[-1] - times[0] <= _MOST_MARKS * timedelta(minutes=each))
    marks = [(x, time) for x, time in zip(xs, times, strict=True) if not (60 * time.hour + time.minute) % minutes]
    return [(round(x, 1), f"{time:%H:%M}") for x, time in marks if LEFT + 14 < x < WIDTH - RIGHT - 14]


def _runs(
    times: Sequence[datetime], xs: Sequence[float], values: Sequence[float], most: float, step: timedelta
) -> list[str]:
    """Return the points of each run of values without a gap."""
    runs: list[list[str]] = []
    before: datetime | None = None
    for time, x, value in zip(times, xs, values, strict=True):
        if before is None or time - before > 1.5 * step:
            runs.append([])
        runs[-1].append(f"{x:.1f},{_y(value, most):.1f}")
        before = time
    # A single point is drawn as a short line.
    return [" ".join(run if len(run) > 1 else 2 * run) for run in runs]
