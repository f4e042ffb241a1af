"""Values as tables: in notebooks, and for pandas."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

Row = TypeVar("Row")

SHOWN_ROWS = 20


class Rows(list[Row]):
    """A list of values of one class, which notebooks show as a table of the fields in its `SHOWN`."""

    def to_dataframe(self) -> Any:
        """Return a pandas DataFrame with the keys of `as_json`; raises ImportError if pandas is not installed."""
        import pandas

        return pandas.DataFrame([row.as_json() for row in self])  # type: ignore[attr-defined]

    def _repr_html_(self) -> str:
        names: Sequence[str] = type(self[0]).SHOWN if self else ()  # type: ignore[attr-defined]
        return html_table(names, ([getattr(row, name) for name in names] for row in self[:SHOWN_ROWS]), len(self))


def html_table(headings: Iterable[str], rows: Iterable[Iterable[object]], total: int) -> str:
    """Return a table with escaped cells; below it how many of `total` rows are not shown."""
    lines = [_line("th", headings), *(_line("td", map(_cell, row)) for row in rows)]
    left = total - len(lines) + 1
    more = f"<p>and {left} more</p>" if left else ""
    return f"<table>{''.join(lines)}</table>{more}" if total else "<p>none</p>"


def _line(tag: str, cells: Iterable[str]) -> str:
    return f"<tr>{''.join(f'<{tag}>{html.escape(cell)}</{tag}>' for cell in cells)}</tr>"


def _cell(value: object) -> str:
    match value:
        case None:
            return ""
        case datetime():
            return value.astimezone().strftime("%Y-%m-%d %H:%M:%S")
        case Mapping():
            return " ".join(f"{name}={each}" for name, each in value.items())
        case _:
            return str(value)
