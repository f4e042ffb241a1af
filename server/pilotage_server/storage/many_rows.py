"""Many rows of a table at once, given column by column: added, or changed, each to values of its own.

Rules
-----
New rows go in by one statement: what varies goes in as arrays (for SQLite as JSON, where that is exact), what all
rows share as single values, which costs half of row after row. Changes of rows go so to PostgreSQL; SQLite has them
in blocks, one prepared statement for each block, as a statement for each row costs it twice as much. Values are those
that the columns have in Python; times are aware, and are turned here into what the database keeps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import chain, compress
from typing import Any

from sqlalchemy import Float, LargeBinary, Table
from sqlalchemy.engine import make_url
from sqlmodel import Session

from pilotage_server.storage import bulk
from pilotage_server.storage.tables.base import UtcDateTime

Columns = Mapping[str, Sequence[Any]]
"""By the names of columns, their values, one for each row."""

_FEW = 16
"""So few rows SQLite finds one by one in less time than it takes to read a list of them."""

_POSTGRESQL = make_url("postgresql+psycopg://").get_dialect()()
_BLOCKS = (64, 8)
"""Rows that SQLite changes by one statement, as long as there are so many; what is left goes row by row."""


def add(session: Session, table: Table, columns: Columns) -> None:
    """Insert rows."""
    if not _count(columns):
        return
    dialect = bulk.dialect_name(session)
    kept = _kept(session, table, columns)
    if dialect == "sqlite" and not _has_exact_json(table, kept):
        bulk.many(session, _insertion(table, tuple(kept)), list(zip(*kept.values(), strict=True)))
    else:
        bulk.once(session, *_insertion_at_once(dialect, table, kept))


def add_numbered(session: Session, table: Table, columns: Columns) -> Sequence[int]:
    """Insert rows into a table that gives them their ids, and return these, in the order of the rows."""
    count = _count(columns)
    if not count:
        return ()
    if not bulk.is_sqlite(session):
        statement, *values = _insertion_at_once("postgresql", table, columns)
        return [row[0] for row in bulk.rows(session, f"{statement} RETURNING id", *values)]
    add(session, table, columns)
    return _newest(session, count)


def add_for(session: Session, statement: str, values: bulk.Values, ids: Sequence[int]) -> None:
    """Insert what a statement makes of the values and of rows with these ids, which it names once, by `= ANY(?)`."""
    if bulk.is_sqlite(session) and len(ids) <= _FEW:
        bulk.many(session, statement.replace("= ANY(?)", "= ?"), [(*values, id_) for id_ in ids])
    else:
        bulk.once(session, statement, *values, list(ids))


def add_numbered_for(session: Session, statement: str, values: bulk.Values, ids: Sequence[int]) -> Sequence[int]:
    """Do so in a table that gives rows their ids, and return these; there is a row for each of `ids`, in order."""
    if not bulk.is_sqlite(session):
        return [row[0] for row in bulk.rows(session, f"{statement} RETURNING id", *values, list(ids))]
    add_for(session, statement, values, ids)
    return _newest(session, len(ids))


def _newest(session: Session, count: int) -> Sequence[int]:
    """Return the ids of the rows that SQLite has inserted last, in a table that numbers its rows."""
    # It has one writer and gives no id a second time: new rows have them one after the other.
    ((last,),) = bulk.rows(session, "SELECT last_insert_rowid()")
    return range(last - count + 1, last + 1)


def change(session: Session, table: Table, where: Columns, to: Columns) -> None:
    """Give rows, each found by its own values of the columns in `where`, their values of those in `to`."""
    if not _count(where):
        return
    if bulk.is_sqlite(session):
        _change_in_blocks(session, table, where, to)
    else:
        bulk.once(session, *_update_at_once(table, where, to))


def change_if(session: Session, table: Table, where: Columns, to: Columns) -> set[Any]:
    """Do the same, and return the ids of the rows that were found.

    `where` begins with the ids; what else is in it is compared, and a row that has other values stays as it is.
    """
    if not _count(where):
        return set()
    if not bulk.is_sqlite(session):
        statement, *values = _update_at_once(table, where, to)
        return {row[0] for row in bulk.rows(session, f"{statement} RETURNING {table.name}.id", *values)}
    # SQLite has one writer: what is compared stays as it is until it is changed.
    there = set(bulk.rows(session, _seen(table, tuple(where)), list(where["id"])))
    are_there = [row in there for row in zip(*where.values(), strict=True)]
    if not all(are_there):
        where, to = (_only(columns, are_there) for columns in (where, to))
    change(session, table, where, to)
    return set(where["id"])


def _change_in_blocks(session: Session, table: Table, where: Columns, to: Columns) -> None:
    """Change rows in SQLite: `where` and what varies goes in row by row, what all rows share once for each block."""
    common = {name: values[:1] for name, values in to.items() if values.count(values[0]) == len(values)}
    shared = tuple(values[0] for values in _kept(session, table, common).values())
    own = {name: values for name, values in to.items() if name not in common}
    kept = *_kept(session, table, where).values(), *_kept(session, table, own).values()
    rows = list(zip(*kept, strict=True))
    done = 0
    for size in (*_BLOCKS, 1):
        begins = range(done, len(rows) - size + 1, size)
        blocks = [(*shared, *chain.from_iterable(rows[begin : begin + size])) for begin in begins]
        bulk.many(session, _update(table, tuple(common), tuple(where), tuple(own), size), blocks)
        done += len(begins) * size


def _only(columns: Columns, wanted: Sequence[bool]) -> Columns:
    return {name: list(compress(values, wanted)) for name, values in columns.items()}


def _count(columns: Columns) -> int:
    return len(next(iter(columns.values())))


def _kept(session: Session, table: Table, columns: Columns) -> Columns:
    """Return the columns as the database keeps them."""
    if not bulk.is_sqlite(session):
        return columns
    times = {name for name in columns if isinstance(table.c[name].type, UtcDateTime)}
    return {name: _moments(session, values) if name in times else values for name, values in columns.items()}


def _has_exact_json(table: Table, columns: Columns) -> bool:
    """Whether rows are many, and SQLite reads just the same values back from JSON: it may round fractions."""
    return _count(columns) > 1 and not any(
        isinstance(table.c[name].type, Float | LargeBinary) and values.count(values[0]) < len(values)
        for name, values in columns.items()
    )


def _moments(session: Session, times: Sequence[Any]) -> list[Any]:
    """Return the times as columns of times keep them; most are one and the same."""
    kept = {time: time and bulk.moment(session, time) for time in set(times)}
    return [kept[time] for time in times]


@lru_cache(maxsize=256)
def _insertion(table: Table, names: tuple[str, ...]) -> str:
    return f"INSERT INTO {table.name} ({_list(names)}) VALUES ({', '.join('?' * len(names))})"  # noqa: S608 - names of ours


@lru_cache(maxsize=512)
def _update(table: Table, shared: tuple[str, ...], where: tuple[str, ...], own: tuple[str, ...], size: int) -> str:
    """Return SQLite's statement that changes a block of rows: the shared values come first, then row after row."""
    given = [f"each.column{place}" for place, _ in enumerate(where + own, 1)]
    changed = [f'"{name}" = {value}' for name, value in zip(own, given[len(where) :], strict=True)]
    values = ", ".join([*(f'"{name}" = ?' for name in shared), *changed])
    found = " AND ".join(f'{table.name}."{name}" = {value}' for name, value in zip(where, given, strict=False))
    row = f"({', '.join('?' * len(given))})"
    source = f"(VALUES {', '.join([row] * size)}) AS each"
    return f"UPDATE {table.name} SET {values} FROM {source} WHERE {found}"  # noqa: S608 - names of ours


@lru_cache(maxsize=256)
def _seen(table: Table, names: tuple[str, ...]) -> str:
    return f"SELECT {_list(names)} FROM {table.name} WHERE id = ANY(?)"  # noqa: S608 - names of ours


def _list(names: Iterable[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)


def _insertion_at_once(dialect: str, table: Table, columns: Columns) -> tuple[Any, ...]:
    """Return the statement that inserts all rows, in their order, followed by its values."""
    given = tuple(columns.values())
    varies = _varies(given)
    statement = _insertion_of_arrays(dialect, table, tuple(columns), varies)
    if dialect != "sqlite":
        return statement, *_arrays_first(given, varies)
    rows = list(zip(*compress(given, varies), strict=True))
    return statement, rows, *_shared(given, varies)


def _update_at_once(table: Table, where: Columns, to: Columns) -> tuple[Any, ...]:
    """Return PostgreSQL's statement that changes all rows, followed by its values."""
    given = (*where.values(), *to.values())
    # What is compared stays an array: a state that is named would let the planner read all jobs that have it.
    varies = (*(True for _ in where), *_differ(tuple(to.values())))
    return _update_by_arrays(table, tuple(where), tuple(to), varies), *_arrays_first(given, varies)


def _varies(columns: Sequence[Sequence[Any]]) -> tuple[bool, ...]:
    """Return which columns have more than one value; the first one counts as such, so that there is one."""
    return True, *_differ(columns[1:])


def _differ(columns: Sequence[Sequence[Any]]) -> tuple[bool, ...]:
    return tuple(values.count(values[0]) < len(values) for values in columns)


def _arrays_first(columns: Sequence[Sequence[Any]], varies: Sequence[bool]) -> list[Any]:
    return [*(list(values) for values in compress(columns, varies)), *_shared(columns, varies)]


def _shared(columns: Sequence[Sequence[Any]], varies: Sequence[bool]) -> list[Any]:
    return [values[0] for values, differ in zip(columns, varies, strict=True) if not differ]


@lru_cache(maxsize=1024)
def _insertion_of_arrays(dialect: str, table: Table, names: tuple[str, ...], varies: tuple[bool, ...]) -> str:
    values = ", ".join(f"v{place}" for place in range(len(names)))
    source = _source_of_json(varies) if dialect == "sqlite" else _source(table, names, varies)
    return f"INSERT INTO {table.name} ({_list(names)}) SELECT {values} FROM {source} ORDER BY nth"  # noqa: S608 - names of ours


@lru_cache(maxsize=1024)
def _update_by_arrays(table: Table, where: tuple[str, ...], to: tuple[str, ...], varies: tuple[bool, ...]) -> str:
    values = ", ".join(f'"{name}" = v{place}' for place, name in enumerate(to, len(where)))
    found = " AND ".join(f'{table.name}."{name}" = v{place}' for place, name in enumerate(where))
    return f"UPDATE {table.name} SET {values} FROM {_source(table, where + to, varies)} WHERE {found}"  # noqa: S608 - names of ours


def _source(table: Table, names: Sequence[str], varies: Sequence[bool]) -> str:
    """Return what gives the values v0, v1… of one row after the other, and `nth`, their number."""
    types = [table.c[name].type.compile(dialect=_POSTGRESQL) for name in names]
    arrays = [place for place, differ in enumerate(varies) if differ]
    shared = [place for place, differ in enumerate(varies) if not differ]
    unnested = ", ".join(f"?::{types[place]}[]" for place in arrays)
    source = f"unnest({unnested}) WITH ORDINALITY AS each ({', '.join(f'v{place}' for place in arrays)}, nth)"
    if not shared:
        return source
    return f"{source}, (SELECT {', '.join(f'?::{types[place]} AS v{place}' for place in shared)}) AS shared"


def _source_of_json(varies: Sequence[bool]) -> str:
    """Return the same in SQLite's words: the arrays are one of JSON, row by row."""
    arrays, shared = ([place for place, differs in enumerate(varies) if differs is which] for which in (True, False))
    values = ", ".join(f"json_extract(value, '$[{nth}]') AS v{place}" for nth, place in enumerate(arrays))
    source = f"(SELECT key AS nth, {values} FROM json_each(?)) AS each"  # noqa: S608 - names of ours
    if not shared:
        return source
    return f"{source}, (SELECT {', '.join(f'? AS v{place}' for place in shared)}) AS shared"
