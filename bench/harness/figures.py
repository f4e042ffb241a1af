"""The figures of a bench, each with its budget, as JSON lines and as a table."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from pilotage_server.app import build_name

KEYS = ("name", "figure", "unit", "budget", "ok")
"""The keys of every line; all lines also have the build of the server, and some have more."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure; `budget` None = it has no budget. `more` are further keys of its line."""

    name: str
    figure: float
    unit: str
    budget: float | None = None
    ok: bool = True
    more: Mapping[str, object] = field(default_factory=dict)

    def line(self) -> str:
        """Return the figure as one JSON object."""
        line = {"name": self.name, "figure": _rounded(self.figure), "unit": self.unit}
        budget = None if self.budget is None else _rounded(self.budget)
        return json.dumps({**line, "budget": budget, "ok": self.ok, "server": build_name(), **self.more})


def measured(name: str, figure: float, unit: str, **more: object) -> Figure:
    """Return a figure without a budget."""
    return Figure(name, figure, unit, more=more)


def at_least(name: str, figure: float, unit: str, budget: float, **more: object) -> Figure:
    """Return a figure that must reach its budget."""
    return Figure(name, figure, unit, budget, figure >= budget, more)


def at_most(name: str, figure: float, unit: str, budget: float, **more: object) -> Figure:
    """Return a figure that must not exceed its budget."""
    return Figure(name, figure, unit, budget, figure <= budget, more)


def state(figures: Iterable[Figure]) -> int:
    """Print each figure as soon as it is measured; returns the exit code: 1 if one exceeds its budget."""
    all_ok = True
    for figure in figures:
        print(figure.line(), flush=True)
        all_ok &= figure.ok
    return 0 if all_ok else 1


def progress(text: str) -> None:
    """Print the progress of a long bench to standard error; standard output has figures only."""
    print(f"# {text}", file=sys.stderr, flush=True)


def table(lines: Iterable[Mapping[str, object]]) -> str:
    """Return the figures of JSON lines as an aligned Markdown table."""
    rows = [list(KEYS), *([_cell(line[key]) for key in KEYS] for line in lines)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(KEYS))]
    rows.insert(1, ["-" * width for width in widths])
    padded = ([cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in rows)
    return "".join(f"| {' | '.join(row)} |\n" for row in padded)


def missed(lines: Iterable[Mapping[str, object]]) -> str:
    """Return the section on missed budgets, with what their runs have shown; "" = all are kept."""
    rows = [
        f"- **{line['name']}**: {_cell(line['figure'])} {line['unit']}, budget {_cell(line['budget'])}; "
        f"{line.get('profile', 'the bench records no profile')}.\n"
        for line in lines
        if not line["ok"]
    ]
    return "\n## Missed budgets\n\n" + "".join(rows) if rows else ""


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "NO"
    return f"{value:,}" if isinstance(value, int | float) else str(value)


def _rounded(figure: float) -> float:
    """Return a figure with four significant digits, and as an integer from 1000."""
    if abs(figure) >= 1000:
        return round(figure)
    return float(f"{figure:.4g}")
