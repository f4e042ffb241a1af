"""Plots of several quantities over time as SVG, readable on white and on black."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

_WIDTH, _HEIGHT = 460, 280
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 12, 52, 40
_STEPS = 4
_COLOURS = ("#2a78c8", "#d98a1f", "#5aa36a")
_STYLE = (
    "text{font:12px sans-serif;fill:#777}.title{font-weight:bold}.grid{stroke:#999;stroke-opacity:.35}"
    ".line{fill:none;stroke-width:2}.goal{stroke:#888;stroke-dasharray:5 4}"
)

Line = Sequence[tuple[float, float]]
"""Points of (hours, value)."""


@dataclass(frozen=True, slots=True)
class TimePanel:
    """One plot: named lines over hours; y goes from 0 to `top`, with a line at `goal`."""

    title: str
    lines: Mapping[str, Line]
    top: float
    goal: float

    def svg(self, right: float, down: float) -> str:
        """Return the panel, shifted by so many pixels."""
        end_h = max(hours for line in self.lines.values() for hours, _ in line)
        inside = [f'<text class="title" x="{_LEFT}" y="18">{escape(self.title)}</text>', *self._axes(end_h)]
        inside.append(self._horizontal("goal", self.goal))
        for number, (name, line) in enumerate(self.lines.items()):
            points = " ".join(f"{_x(hours, end_h):.1f},{self._y(y):.1f}" for hours, y in line)
            colour = _COLOURS[number]
            inside.append(f'<polyline class="line" stroke="{colour}" points="{points}"/>')
            inside.append(f'<text x="{_LEFT + 125 * number}" y="38" style="fill:{colour}">{escape(name)}</text>')
        return f'<g transform="translate({right},{down})">{"".join(inside)}</g>'

    def _axes(self, end_h: float) -> list[str]:
        parts = []
        for step in range(_STEPS + 1):
            mark, hours = self.top * step / _STEPS, end_h * step / _STEPS
            parts.append(self._horizontal("grid", mark))
            parts.append(f'<text x="{_LEFT - 6}" y="{self._y(mark) + 4:.1f}" text-anchor="end">{mark:,.0f}</text>')
            x = _x(hours, end_h)
            parts.append(f'<text x="{x:.1f}" y="{_HEIGHT - 22}" text-anchor="middle">{hours:.0f}</text>')
        middle = (_LEFT + _WIDTH - _RIGHT) / 2
        return [*parts, f'<text x="{middle}" y="{_HEIGHT - 5}" text-anchor="middle">hours</text>']

    def _horizontal(self, kind: str, y: float) -> str:
        height = f"{self._y(y):.1f}"
        return f'<line class="{kind}" x1="{_LEFT}" y1="{height}" x2="{_WIDTH - _RIGHT}" y2="{height}"/>'

    def _y(self, y: float) -> float:
        return _HEIGHT - _BOTTOM - y / self.top * (_HEIGHT - _TOP - _BOTTOM)


def _x(hours: float, end_h: float) -> float:
    return _LEFT + hours / end_h * (_WIDTH - _LEFT - _RIGHT)


def time_drawing(rows: Sequence[Sequence[TimePanel]]) -> str:
    """Return an SVG file with the panels of each row side by side."""
    size = f'width="{_WIDTH * max(map(len, rows))}" height="{_HEIGHT * len(rows)}"'
    inside = "\n".join(
        panel.svg(place * _WIDTH, number * _HEIGHT)
        for number, row in enumerate(rows)
        for place, panel in enumerate(row)
    )
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>\n<style>{_STYLE}</style>\n{inside}\n</svg>\n'
