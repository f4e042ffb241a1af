"""Plots of a few points over a logarithmic axis as SVG, readable on white and on black."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import log10

WIDTH, HEIGHT = 360, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 16, 34, 40
_STEPS = 4
_STYLE = (
    "text{font:12px sans-serif;fill:#777}.title{font-weight:bold}.grid{stroke:#999;stroke-opacity:.35}"
    ".line{fill:none;stroke:#2a78c8;stroke-width:2}.dot{fill:#2a78c8}"
)


@dataclass(frozen=True, slots=True)
class Panel:
    """One plot: `points` by x, on a logarithmic axis; y starts at 0."""

    title: str
    x_label: str
    points: Mapping[float, float]

    def svg(self, offset: float) -> str:
        """Return the panel, shifted right by `offset` pixels."""
        top = _round_top(max(self.points.values()))
        marks = [top * step / _STEPS for step in range(_STEPS + 1)]
        places = [(self._x(x), self._y(y, top)) for x, y in sorted(self.points.items())]
        parts = [f'<text class="title" x="{_LEFT}" y="18">{escape(self.title)}</text>']
        for mark in marks:
            y = self._y(mark, top)
            parts.append(f'<line class="grid" x1="{_LEFT}" y1="{y:.1f}" x2="{WIDTH - _RIGHT}" y2="{y:.1f}"/>')
            parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{mark:,g}</text>')
        for x in sorted(self.points):
            label = f'<text x="{self._x(x):.1f}" y="{HEIGHT - 22}" text-anchor="middle">{_short(x)}</text>'
            parts.append(label)
        middle = (_LEFT + WIDTH - _RIGHT) / 2
        parts.append(f'<text x="{middle}" y="{HEIGHT - 5}" text-anchor="middle">{escape(self.x_label)}</text>')
        parts.append(f'<polyline class="line" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in places)}"/>')
        parts += (f'<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="3.5"/>' for x, y in places)
        return f'<g transform="translate({offset},0)">{"".join(parts)}</g>'

    def _x(self, x: float) -> float:
        low, high = log10(min(self.points)), log10(max(self.points))
        return _LEFT + (log10(x) - low) / ((high - low) or 1.0) * (WIDTH - _LEFT - _RIGHT)

    def _y(self, y: float, top: float) -> float:
        return HEIGHT - _BOTTOM - y / top * (HEIGHT - _TOP - _BOTTOM)


def _round_top(highest: float) -> float:
    """Return the end of an axis: 1, 2 or 5 times a power of ten, not below the highest point."""
    power = 10.0 ** int(log10(highest) // 1)
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= highest)


def _short(count: float) -> str:
    """Return a count with a decimal prefix: 10 k, 1 M."""
    if count >= 1e6:
        return f"{count / 1e6:g} M"
    return f"{count / 1e3:g} k" if count >= 1e3 else f"{count:g}"


def drawing(panels: Sequence[Panel]) -> str:
    """Return an SVG file with the panels side by side."""
    size = f'width="{WIDTH * len(panels)}" height="{HEIGHT}"'
    inside = "\n".join(panel.svg(place * WIDTH) for place, panel in enumerate(panels))
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>\n<style>{_STYLE}</style>\n{inside}\n</svg>\n'
