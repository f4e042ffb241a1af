"""Tables: at a terminal within its width and with colours, else in full width and plain.

Too wide a table loses width in its least important columns: they are shortened with an ellipsis, and dropped when
that is not enough. Nothing is wrapped.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import click

from pilotage_client.cli.options import printable
from pilotage_client.cli.show.terminal import console, shows_colors, table_width

if TYPE_CHECKING:
    from rich.text import Text

GAP = 2
_HEADING_STYLE = "bold"
_EMPTY = 1000
"""The priority of columns without any text: they are the first to be dropped."""
_SHORTEST_TEXT = 12
"""The width to which a text is shortened before columns are dropped, unless its column says another."""


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column as it is printed.

    Columns with a higher `priority` number lose their width first, of equal ones the last. `shortest` = the width to
    which texts may be shortened; None = the column has its full width or none. `style` is rich's style of a text.
    """

    heading: str
    right: bool = False
    priority: int = 5
    shortest: int | None = None
    style: Callable[[str], str] | None = None


@dataclass(frozen=True, slots=True)
class Table:
    """Texts below headings."""

    columns: Sequence[TableColumn]
    rows: Sequence[Sequence[str]]

    def fit(self, width: int | None) -> list[tuple[int, int]]:
        """Return the indexes of the columns that are shown, in their order, with their widths; None = any width."""
        widths = [
            max(map(cell_width, (column.heading, *(row[index] for row in self.rows))))
            for index, column in enumerate(self.columns)
        ]
        columns = [
            replace(column, priority=_EMPTY) if self._is_empty(i) else column for i, column in enumerate(self.columns)
        ]
        return fitted_widths(columns, widths, width)

    def hidden(self, shown: Sequence[tuple[int, int]]) -> list[str]:
        """Return the headings of the columns that are not among the shown ones, although they have some text."""
        present = {index for index, _ in shown}
        return [
            column.heading
            for index, column in enumerate(self.columns)
            if index not in present and not self._is_empty(index)
        ]

    def _is_empty(self, index: int) -> bool:
        return not any(row[index] for row in self.rows)

    def plain(self, shown: Sequence[tuple[int, int]]) -> Iterator[str]:
        """Yield the lines without colours."""
        for row in ([column.heading for column in self.columns], *self.rows):
            cells = (_cell(row[index], width, right=self.columns[index].right) for index, width in shown)
            yield (" " * GAP).join(cells).rstrip()

    def text(self, shown: Sequence[tuple[int, int]]) -> Text:
        """Return the lines as rich's text, with the styles of the columns."""
        from rich.text import Text

        text = Text(no_wrap=True)
        for number, row in enumerate(([column.heading for column in self.columns], *self.rows)):
            text.append("\n" if number else "")
            for place, (index, width) in enumerate(shown):
                column = self.columns[index]
                style = _HEADING_STYLE if number == 0 else column.style(row[index]) if column.style else ""
                text.append(" " * GAP if place else "")
                cell = _cell(row[index], width, right=column.right)
                text.append(cell.rstrip() if place == len(shown) - 1 else cell, style)
        return text

    def echo(self) -> None:
        """Print the table; a note on the standard error names columns for which the terminal is too narrow."""
        shown = self.fit(table_width())
        if shows_colors():
            console().print(self.text(shown), soft_wrap=True)
        else:
            click.echo("\n".join(self.plain(shown)))
        if hidden := self.hidden(shown):
            note = f"pilotage: the terminal is too narrow for {', '.join(hidden)}; `-o NAMES` chooses columns"
            click.echo(note, err=True)


def fitted_widths(columns: Sequence[TableColumn], widths: Sequence[int], total: int | None) -> list[tuple[int, int]]:
    """Return the indexes and widths of the columns that fit into `total`; the first in priority is always there."""
    if total is None or sum(widths) + GAP * (len(widths) - 1) <= total:
        return list(enumerate(widths))
    least = [
        width if column.shortest is None else min(width, max(column.shortest, cell_width(column.heading)))
        for column, width in zip(columns, widths, strict=True)
    ]
    order = sorted(range(len(columns)), key=lambda index: (columns[index].priority, index))
    while len(order) > 1 and sum(least[index] for index in order) + GAP * (len(order) - 1) > total:
        order.pop()
    if len(order) == 1:
        return [(order[0], min(widths[order[0]], total))]
    spare = total - sum(least[index] for index in order) - GAP * (len(order) - 1)
    given: dict[int, int] = {}
    for index in order:  # the most important columns get the spare width first
        given[index] = min(widths[index], least[index] + spare)
        spare -= given[index] - least[index]
    return sorted(given.items())


def cell_width(text: str) -> int:
    """Return the columns that a terminal takes for a text: two for CJK characters and emoji."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def shortened(text: str, width: int) -> str:
    """Return a text of at most this width, with an ellipsis if it is cut."""
    if cell_width(text) <= width:
        return text
    from rich.cells import set_cell_size

    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"  # a live view's stream has none
    ellipsis = "…" if encoding.lower().startswith("utf") else "~"
    return set_cell_size(text, width - 1).rstrip() + ellipsis


def _cell(text: str, width: int, *, right: bool) -> str:
    text = shortened(text, width)
    padding = " " * (width - cell_width(text))
    return padding + text if right else text + padding


def echo_table(headings: Sequence[str], rows: Iterable[Sequence[object]], *, empty: str) -> None:
    """Print rows below their headings, or `empty` if there are none; numbers are aligned at the right.

    The first column keeps its width longest, then the next.
    """
    cells = [tuple(row) for row in rows]
    if not cells:
        click.echo(empty)
        return
    are_numbers = [
        all(isinstance(row[index], int | float) or row[index] in (None, "") for row in cells)
        for index in range(len(headings))
    ]
    columns = [
        TableColumn(heading, right=is_number, priority=index, shortest=None if is_number else _SHORTEST_TEXT)
        for index, (heading, is_number) in enumerate(zip(headings, are_numbers, strict=True))
    ]
    Table(columns, [[cell_text(cell) for cell in row] for row in cells]).echo()


def cell_text(value: object) -> str:
    """Return a value on one line, without control characters; None is empty."""
    return "" if value is None else printable(str(value))
