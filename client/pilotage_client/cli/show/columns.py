"""Listings: commands that print values of one kind as a table or as JSON, with columns that users choose and sort by.

A listing declares its columns once. Every key of its JSON objects is a column too, under the name of the key; the
type of the key says how it is aligned and printed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property, wraps
from typing import Any, Generic, TypeVar, cast

import click
from click.shell_completion import CompletionItem

from pilotage.errors import InvalidInputError, Violation
from pilotage.text import did_you_mean
from pilotage_client.cli.options import echo_json, time_text
from pilotage_client.cli.show.tables import Table, TableColumn, cell_text
from pilotage_client.cli.show.terminal import COLOR, state_style

Item = TypeVar("Item")
Command = TypeVar("Command", bound=Callable[..., Any])

HELP = "help"
"""The value of --columns that lists the columns."""
_ALWAYS, _USUAL = 0, 5
_NUMBER_TYPE = re.compile(r"(int|float)\b")


@dataclass(frozen=True, slots=True)
class View:
    """What the options of a listing ask for: JSON, columns (empty = the usual ones), and the column to sort by."""

    as_json: bool = False
    columns: tuple[str, ...] = ()
    sort: str = ""
    descending: bool = False

    def __bool__(self) -> bool:
        """Return whether some option was given."""
        return self != View()


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table; `name` is that for --columns and --sort, and usually a key of the JSON object.

    `value` takes it from the item (None = it is the value of the key), and `text` is what the table shows of it.
    `right`, `priority` and `shortest` are as in `TableColumn`; `right` None = by the type of the key. `state` = its
    texts have the colours of states.
    """

    name: str
    heading: str = ""
    value: Callable[[Any], object] | None = None
    text: Callable[[Any], str] | None = None
    right: bool | None = None
    priority: int = _USUAL
    shortest: int | None = None
    state: bool = False


class Listing(Generic[Item]):
    """A kind of values with the columns of its usual table.

    `output` is the type of its JSON objects, and `to_json` makes them. `rows` makes the rows of an item, by name of the
    column, where they are not one that follows from its JSON object.
    """

    def __init__(
        self,
        output: type[Any],
        to_json: Callable[[Item], Mapping[str, Any]],
        *columns: Column,
        empty: str,
        rows: Callable[[Item], Iterable[Mapping[str, object]]] | None = None,
    ) -> None:
        self.output = output
        self.to_json = to_json
        self.empty = empty
        self.usual = columns
        self._rows = rows

    @cached_property
    def columns(self) -> Mapping[str, Column]:
        """All columns by name: those of the usual table, then the other keys of the JSON object."""
        named = {column.name: column for column in self.usual}
        if self._rows is None:  # else rows are no JSON objects
            others = (name for name in self.output.__annotations__ if name not in named)
            named |= {name: Column(name, shortest=12) for name in others}
        return named

    def echo(self, items: Iterable[Item], view: View, *, empty: str | None = None) -> None:
        """Print the items as the options ask; `empty` = what is printed if there are none, None = as declared."""
        chosen = self.chosen(view)
        if view.as_json and not view.columns:
            for item in self.ordered(items, view):
                echo_json(self.to_json(item))
        elif view.as_json:
            for item in self.ordered(items, view):
                for row in self.values(item, chosen):
                    echo_json({column.name: _plain(value) for column, value in zip(chosen, row, strict=True)})
        else:
            table = self.table(items, view)
            if table.rows:
                table.echo()
            elif shown := self.empty if empty is None else empty:
                click.echo(shown)

    def table(self, items: Iterable[Item], view: View) -> Table:
        """Return the items as a table."""
        chosen = self.chosen(view)
        texts = [self._text_of(column) for column in chosen]
        rows = [
            [cell_text(text(value)) for text, value in zip(texts, row, strict=True)]
            for item in self.ordered(items, view)
            for row in self.values(item, chosen)
        ]
        return Table([self._table_column(column) for column in chosen], rows)

    def chosen(self, view: View) -> Sequence[Column]:
        """Return the columns to show; raises InvalidInputError for names of other listings."""
        if view.sort:
            self._column(view.sort, "--sort")
        return [self._column(name, "--columns") for name in view.columns] or self.usual

    def ordered(self, items: Iterable[Item], view: View) -> Iterable[Item]:
        """Return the items by the first row of each; missing values come last."""
        if not view.sort:
            return items
        column = self._column(view.sort, "--sort")

        def value(item: Item) -> object:
            return next((row[0] for row in self.values(item, [column])), None)

        valued = [(value(item), item) for item in items]
        known = [pair for pair in valued if pair[0] not in (None, "")]
        known.sort(key=lambda pair: _sort_key(pair[0]), reverse=view.descending)
        return [item for _, item in (*known, *(pair for pair in valued if pair[0] in (None, "")))]

    def values(self, item: Item, columns: Sequence[Column]) -> Iterator[Sequence[object]]:
        """Yield the values of these columns for each row of the item."""
        if self._rows is not None:
            yield from ([row.get(column.name) for column in columns] for row in self._rows(item))
            return
        keys = {} if all(column.value for column in columns) else self.to_json(item)
        yield [column.value(item) if column.value else keys.get(column.name) for column in columns]

    def _column(self, name: str, option: str) -> Column:
        if name not in self.columns:
            raise _unknown(name, option, self.columns)
        return self.columns[name]

    def _type(self, column: Column) -> str:
        """Return the type of the key of a column, as it is written; "" = it is no key."""
        annotation = self.output.__annotations__.get(column.name, "")
        return str(getattr(annotation, "__forward_arg__", annotation))

    def _text_of(self, column: Column) -> Callable[[Any], object]:
        if column.text is not None:
            return column.text
        return local_time if self._type(column).startswith("Time") else _text

    def _table_column(self, column: Column) -> TableColumn:
        right = bool(_NUMBER_TYPE.match(self._type(column))) if column.right is None else column.right
        heading = column.heading or column.name.upper().replace("_", " ")
        style = state_style if column.state else None
        return TableColumn(heading, right, column.priority, column.shortest, style)


def local_time(time: datetime | str | None) -> str:
    """Return a time, also as RFC 3339, as local time; empty for None."""
    return time_text(datetime.fromisoformat(time) if isinstance(time, str) else time)


_TIME_IN_TEXT = re.compile(
    r"(?P<time>\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?)(?P<zone>Z| UTC|[+-]\d\d:\d\d)", re.ASCII
)


def with_local_times(text: str | None) -> str:
    """Return a text of the server with the times in it as local times; empty for None."""

    def local(found: re.Match[str]) -> str:
        zone = found["zone"] if found["zone"][0] in "+-" else "+00:00"
        return local_time(found["time"] + zone)

    return _TIME_IN_TEXT.sub(local, text or "")


def _text(value: object) -> object:
    match value:
        case bool():
            return "yes" if value else "no"
        case datetime():
            return time_text(value)
        case float():
            return f"{value:.2f}"
        case Mapping():
            return " ".join(f"{name}={_text(each)}" for name, each in value.items())
        case list() | tuple():
            return ", ".join(str(_text(each)) for each in value)
        case _:
            return value


def _plain(value: object) -> object:
    """Return a value of a column as JSON has it."""
    if isinstance(value, datetime):
        return value.isoformat()
    return None if value == "" else value


def _sort_key(value: Any) -> tuple[bool, Any]:
    """Return what values of a column are compared by: numbers come before texts, lists count."""
    match value:
        case list() | tuple() | Mapping():
            return False, len(value)
        case str():
            return True, value.casefold()
        case datetime():
            return True, value.isoformat()
        case _:
            return False, value


def _unknown(name: str, option: str, columns: Iterable[str]) -> InvalidInputError:
    hint = did_you_mean(name, columns) or ";"
    return InvalidInputError(Violation(option, f"there is no column {name}{hint} `-o help` lists them"))


def view_options(*listings: Listing[Any]) -> Callable[[Command], Command]:
    """Add --columns, --sort, --color and --json to a command of these listings; they reach it as `view`."""
    names = dict.fromkeys(name for listing in listings for name in listing.columns)

    def columns_of(context: click.Context, _: click.Parameter, text: str | None) -> tuple[str, ...]:
        if text is not None and text.strip() == HELP:
            click.echo("\n\n".join(map(_columns_help, listings)))
            context.exit()
        return _read_columns(text or "", names)

    def sort_of(_: click.Context, __: click.Parameter, text: str | None) -> tuple[str, bool]:
        return _read_sort(text or "", names)

    def complete(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
        before, comma, begin = incomplete.rpartition(",")
        return [CompletionItem(before + comma + name) for name in names if name.startswith(begin.lower())]

    def decorate(command: Command) -> Command:
        @wraps(command)
        def viewing(*args: Any, columns: tuple[str, ...], sort: tuple[str, bool], as_json: bool, **kwargs: Any) -> Any:
            return command(*args, view=View(as_json, columns, *sort), **kwargs)

        viewed: Any = viewing
        for option in (
            click.option("--json", "as_json", is_flag=True, help="One JSON object a line."),
            COLOR,
            click.option(
                "--sort", metavar="NAME[:desc]", callback=sort_of, shell_complete=complete, help="Sort by a column."
            ),
            click.option(
                "-o",
                "--columns",
                metavar="NAME,...",
                callback=columns_of,
                shell_complete=complete,
                help="Show these columns; `-o help` lists them.",
            ),
        ):
            viewed = option(viewed)
        return cast(Command, viewed)

    return decorate


def _read_columns(text: str, names: Iterable[str]) -> tuple[str, ...]:
    """Return the columns of an option such as "id,state"; raises InvalidInputError for unknown names."""
    chosen = tuple(name.strip().lower() for name in text.split(",") if name.strip())
    for name in chosen:
        if name not in names:
            raise _unknown(name, "--columns", names)
    return chosen


def _read_sort(text: str, names: Iterable[str]) -> tuple[str, bool]:
    """Return the column of an option such as "jobs:desc", and whether it is descending; raises InvalidInputError."""
    name, _, order = text.strip().lower().partition(":")
    if name and name not in names:
        raise _unknown(name, "--sort", names)
    if order not in ("", "asc", "desc"):
        raise InvalidInputError(Violation("--sort", f"{order} is not an order; write {name} or {name}:desc"))
    return name, order == "desc"


def _columns_help(listing: Listing[Any]) -> str:
    """Return the names of the columns of a listing; those of the usual table come first."""
    usual = [column.name for column in listing.usual]
    others = [name for name in listing.columns if name not in usual]
    lines = [f"usual: {', '.join(usual)}"]
    return "\n".join([*lines, f"others: {', '.join(others)}"] if others else lines)
