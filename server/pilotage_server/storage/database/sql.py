"""SQL in the form that drivers take: single statements, and inserts and updates of many rows.

Rules
-----
Statements are written for PostgreSQL with `?` for values and translated for SQLite: `= ANY(?)` takes a list, and row
locks (FOR UPDATE, SKIP LOCKED) are dropped, because SQLite has one writer. A statement is a constant, so that drivers
keep it prepared. Its text contains no values and no other `?` or `%`. Values are not converted: times go in through
`column_time` and come out through `utc_time`.

Many rows are given column by column. PostgreSQL gets one statement: columns that vary as arrays, and columns with one
value as single values, which costs half of row after row. SQLite gets one prepared statement for each block of rows,
with the values that vary row by row, because a statement for each row costs two to four times as much.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache, partial
from itertools import chain, compress
from typing import Any, Self

from sqlalchemy import Connection, Table
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError
from sqlmodel import Session

from pilotage_server.storage.database.tables import UtcDateTime

Values = tuple[Any, ...]

_UTC = "+00:00"
_LOCKS = re.compile(r"\s+FOR (NO KEY )?UPDATE( OF \w+)?( SKIP LOCKED| NOWAIT)?\b")


class Driver:
    """The driver's own connection: SQLAlchemy's overhead for a statement costs more than many rows.

    A block `with driver` translates the driver's errors to SQLAlchemy's.
    """

    __slots__ = ("_connection", "_dialect", "_fault", "is_sqlite", "name")

    def __init__(self, connection: Connection) -> None:
        self._connection: Any = connection.connection.driver_connection
        self._dialect = connection.dialect
        self._fault = connection.dialect.loaded_dbapi.Error
        self.name = connection.dialect.name
        self.is_sqlite = self.name == "sqlite"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, self._fault):
            is_lost = self._dialect.is_disconnect(error, self._connection, None)
            raise DBAPIError.instance(
                None, None, error, self._fault, connection_invalidated=is_lost, dialect=self._dialect
            ) from error

    def execute(self, statement: str, values: Values = ()) -> Any:
        """Run a statement once and return the cursor with its result."""
        cursor = self._connection.cursor()
        if self.is_sqlite:
            cursor.execute(_in_sqlite(statement), tuple(map(_list_as_json, values)))
        else:
            cursor.execute(_in_postgresql(statement), values)
        return cursor

    def execute_many(self, statement: str, values: Sequence[Values]) -> Any:
        """Run a statement for each of `values` and return the cursor."""
        cursor = self._connection.cursor()
        cursor.executemany(_in_sqlite(statement) if self.is_sqlite else _in_postgresql(statement), values)
        return cursor

    def commit(self) -> None:
        """Put the transaction on disk."""
        self._connection.commit()

    def roll_back(self) -> None:
        """Undo the transaction."""
        self._connection.rollback()


_DRIVER = "the driver of this transaction"


def set_driver(session: Session, driver: Driver) -> None:
    """Use this driver for the statements that this module runs for the session."""
    session.info[_DRIVER] = driver


def driver(session: Session) -> Driver:
    """Return the driver of the session's transaction."""
    found: Driver = session.info[_DRIVER]
    return found


def dialect_name(session: Session) -> str:
    """Return the dialect of the session's database: "sqlite" or "postgresql"."""
    return driver(session).name


def is_sqlite(session: Session) -> bool:
    """Whether the session's database is SQLite."""
    return driver(session).is_sqlite


def rows(session: Session, statement: str, *values: Any) -> Sequence[tuple[Any, ...]]:
    """Run a statement once and return its rows."""
    with driver(session) as connection:
        found: Sequence[tuple[Any, ...]] = connection.execute(statement, values).fetchall()
        return found


def execute(session: Session, statement: str, *values: Any) -> int:
    """Run a statement once and return the number of affected rows."""
    with driver(session) as connection:
        touched: int = connection.execute(statement, values).rowcount
        return touched


def execute_many(session: Session, statement: str, values: Sequence[Values]) -> int:
    """Run a statement for each of `values` and return the number of affected rows."""
    if not values:
        return 0
    with driver(session) as connection:
        touched: int = connection.execute_many(statement, values).rowcount
        return touched


def column_time(session: Session, time: datetime) -> datetime | str:
    """Return an aware time as a time column stores it: text in UTC in SQLite."""
    return _as_text(time) if is_sqlite(session) else time


@lru_cache(maxsize=1024)
def _as_text(time: datetime) -> str:
    return time.astimezone(UTC).replace(tzinfo=None).isoformat(" ", "microseconds")


def utc_time(value: datetime | str) -> datetime:
    """Return the aware time in UTC for a value of a time column."""
    return _of_text(value) if isinstance(value, str) else value.astimezone(UTC)


@lru_cache(maxsize=4096)
def _of_text(value: str) -> datetime:
    return datetime.fromisoformat(value if value.endswith(_UTC) else value + _UTC)


def _list_as_json(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, list) else value


@lru_cache(maxsize=1024)
def _in_sqlite(statement: str) -> str:
    return _LOCKS.sub("", statement).replace("= ANY(?)", "IN (SELECT value FROM json_each(?))")


@lru_cache(maxsize=1024)
def _in_postgresql(statement: str) -> str:
    return statement.replace("?", "%s")


Columns = Mapping[str, Sequence[Any]]
"""The values of columns by column name, one value for each row."""

_FEW = 16
"""Up to so many rows SQLite finds faster one by one than by reading a JSON list."""

_POSTGRESQL = make_url("postgresql+psycopg://").get_dialect()()
_BLOCKS = (64, 8)
"""Numbers of rows that SQLite changes by one statement; the rest is changed row by row."""


def insert_rows(session: Session, table: Table, columns: Columns) -> None:
    """Insert rows."""
    if not _count(columns):
        return
    if is_sqlite(session):
        _insert_in_blocks(session, table, columns)
    else:
        execute(session, *_insertion_at_once(table, columns))


def insert_numbered_rows(session: Session, table: Table, columns: Columns) -> Sequence[int]:
    """Insert rows into a table that numbers them, and return their ids in the order of the rows."""
    count = _count(columns)
    if not count:
        return ()
    if not is_sqlite(session):
        statement, *values = _insertion_at_once(table, columns)
        return [row[0] for row in rows(session, f"{statement} RETURNING id", *values)]
    insert_rows(session, table, columns)
    return _newest(session, count)


def insert_for_ids(session: Session, statement: str, values: Values, ids: Sequence[int]) -> None:
    """Run an INSERT … SELECT with these values and ids; it uses the ids once, as `= ANY(?)`."""
    if is_sqlite(session) and len(ids) <= _FEW:
        execute_many(session, statement.replace("= ANY(?)", "= ?"), [(*values, id_) for id_ in ids])
    else:
        execute(session, statement, *values, list(ids))


def insert_numbered_for_ids(session: Session, statement: str, values: Values, ids: Sequence[int]) -> Sequence[int]:
    """Do the same in a table that numbers its rows, and return the new ids: one for each of `ids`, in order."""
    if not is_sqlite(session):
        return [row[0] for row in rows(session, f"{statement} RETURNING id", *values, list(ids))]
    insert_for_ids(session, statement, values, ids)
    return _newest(session, len(ids))


def _newest(session: Session, count: int) -> Sequence[int]:
    """Return the ids of the last `count` rows that SQLite has inserted, in a table that numbers its rows."""
    # SQLite has one writer and never reuses these ids: those of new rows are consecutive.
    ((last,),) = rows(session, "SELECT last_insert_rowid()")
    return range(last - count + 1, last + 1)


def update_rows(session: Session, table: Table, where: Columns, to: Columns) -> None:
    """Update rows: each row is found by its values in `where` and gets its values in `to`."""
    if not _count(where):
        return
    if is_sqlite(session):
        _change_in_blocks(session, table, where, to)
    else:
        execute(session, *_update_at_once(table, where, to))


def update_rows_if(session: Session, table: Table, where: Columns, to: Columns) -> set[Any]:
    """Update rows as `update_rows` does, and return the ids of the rows that were found.

    The first column of `where` is the id; a row whose other columns differ from `where` stays unchanged.
    """
    if not _count(where):
        return set()
    if not is_sqlite(session):
        statement, *values = _update_at_once(table, where, to)
        return {row[0] for row in rows(session, f"{statement} RETURNING {table.name}.id", *values)}
    # SQLite has one writer: no other transaction can change a row between the comparison and the update.
    present = set(rows(session, _seen(table, tuple(where)), list(where["id"])))
    is_present = [row in present for row in zip(*where.values(), strict=True)]
    if not all(is_present):
        where, to = (_only(columns, is_present) for columns in (where, to))
    update_rows(session, table, where, to)
    return set(where["id"])


def _insert_in_blocks(session: Session, table: Table, columns: Columns) -> None:
    """Insert rows in SQLite, in order."""
    first, *others = columns  # at least one column must be a value of each row
    shared, own = _shared_and_own({name: columns[name] for name in others})
    own = {first: columns[first], **own}
    _run_in_blocks(session, table, shared, (own,), partial(_insertion, table, tuple(shared), tuple(own)))


def _change_in_blocks(session: Session, table: Table, where: Columns, to: Columns) -> None:
    """Update rows in SQLite."""
    shared, own = _shared_and_own(to)
    statement = partial(_update, table, tuple(shared), tuple(where), tuple(own))
    _run_in_blocks(session, table, shared, (where, own), statement)


def _shared_and_own(columns: Columns) -> tuple[Columns, Columns]:
    """Return the columns that have one value, and those that vary."""
    own = {name: values for name, values in columns.items() if values.count(values[0]) < len(values)}
    return {name: values for name, values in columns.items() if name not in own}, own


def _run_in_blocks(
    session: Session, table: Table, shared: Columns, own: Sequence[Columns], statement: Callable[[int], str]
) -> None:
    """Run statements for blocks of so many rows; their values are the shared ones, then the own ones row by row."""
    common = tuple(values[0] for values in _kept(session, table, shared).values())
    rows = list(zip(*(values for columns in own for values in _kept(session, table, columns).values()), strict=True))
    done = 0
    for size in (*_BLOCKS, 1):
        begins = range(done, len(rows) - size + 1, size)
        blocks = [(*common, *chain.from_iterable(rows[begin : begin + size])) for begin in begins]
        execute_many(session, statement(size), blocks)
        done += len(begins) * size


def _only(columns: Columns, wanted: Sequence[bool]) -> Columns:
    return {name: list(compress(values, wanted)) for name, values in columns.items()}


def _count(columns: Columns) -> int:
    return len(next(iter(columns.values())))


def _kept(session: Session, table: Table, columns: Columns) -> Columns:
    """Return the columns as the database stores them."""
    if not is_sqlite(session):
        return columns
    times = {name for name in columns if isinstance(table.c[name].type, UtcDateTime)}
    return {name: _column_times(session, values) if name in times else values for name, values in columns.items()}


def _column_times(session: Session, times: Sequence[Any]) -> list[Any]:
    """Return the times as time columns store them; most of them are equal."""
    kept = {time: time and column_time(session, time) for time in set(times)}
    return [kept[time] for time in times]


@lru_cache(maxsize=512)
def _insertion(table: Table, shared: tuple[str, ...], own: tuple[str, ...], size: int) -> str:
    """Return SQLite's statement that inserts a block of rows; its values are the shared ones, then row after row."""
    names = _list((*shared, *own))
    values = ", ".join([*("?" for _ in shared), *(f"column{index}" for index, _ in enumerate(own, 1))])
    return f"INSERT INTO {table.name} ({names}) SELECT {values} FROM {_block(len(own), size)}"  # noqa: S608 - names of ours


@lru_cache(maxsize=512)
def _update(table: Table, shared: tuple[str, ...], where: tuple[str, ...], own: tuple[str, ...], size: int) -> str:
    """Return SQLite's statement that updates a block of rows; its values are the shared ones, then row after row."""
    given = [f"each.column{index}" for index, _ in enumerate(where + own, 1)]
    changed = [f'"{name}" = {value}' for name, value in zip(own, given[len(where) :], strict=True)]
    values = ", ".join([*(f'"{name}" = ?' for name in shared), *changed])
    found = " AND ".join(f'{table.name}."{name}" = {value}' for name, value in zip(where, given, strict=False))
    return f"UPDATE {table.name} SET {values} FROM {_block(len(given), size)} WHERE {found}"  # noqa: S608 - names of ours


def _block(columns: int, size: int) -> str:
    """Return the FROM item of a block of rows, whose columns are column1 and so on."""
    row = f"({', '.join('?' * columns)})"
    return f"(VALUES {', '.join([row] * size)}) AS each"


@lru_cache(maxsize=256)
def _seen(table: Table, names: tuple[str, ...]) -> str:
    return f"SELECT {_list(names)} FROM {table.name} WHERE id = ANY(?)"  # noqa: S608 - names of ours


def _list(names: Iterable[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)


def _insertion_at_once(table: Table, columns: Columns) -> tuple[Any, ...]:
    """Return PostgreSQL's statement that inserts all rows in their order, followed by its values."""
    given = tuple(columns.values())
    varies = (True, *_differ(given[1:]))  # at least one column must be an array
    return _insertion_of_arrays(table, tuple(columns), varies), *_arrays_first(given, varies)


def _update_at_once(table: Table, where: Columns, to: Columns) -> tuple[Any, ...]:
    """Return PostgreSQL's statement that updates all rows, followed by its values."""
    given = (*where.values(), *to.values())
    # Compared columns stay arrays: with a single state as a value the planner might read all jobs in that state.
    varies = (*(True for _ in where), *_differ(tuple(to.values())))
    return _update_by_arrays(table, tuple(where), tuple(to), varies), *_arrays_first(given, varies)


def _differ(columns: Sequence[Sequence[Any]]) -> tuple[bool, ...]:
    """Return which columns have more than one value."""
    return tuple(values.count(values[0]) < len(values) for values in columns)


def _arrays_first(columns: Sequence[Sequence[Any]], varies: Sequence[bool]) -> list[Any]:
    return [*(list(values) for values in compress(columns, varies)), *_shared(columns, varies)]


def _shared(columns: Sequence[Sequence[Any]], varies: Sequence[bool]) -> list[Any]:
    return [values[0] for values, differ in zip(columns, varies, strict=True) if not differ]


@lru_cache(maxsize=1024)
def _insertion_of_arrays(table: Table, names: tuple[str, ...], varies: tuple[bool, ...]) -> str:
    values = ", ".join(f"v{index}" for index in range(len(names)))
    source = _source(table, names, varies)
    return f"INSERT INTO {table.name} ({_list(names)}) SELECT {values} FROM {source} ORDER BY nth"  # noqa: S608 - names of ours


@lru_cache(maxsize=1024)
def _update_by_arrays(table: Table, where: tuple[str, ...], to: tuple[str, ...], varies: tuple[bool, ...]) -> str:
    values = ", ".join(f'"{name}" = v{index}' for index, name in enumerate(to, len(where)))
    found = " AND ".join(f'{table.name}."{name}" = v{index}' for index, name in enumerate(where))
    return f"UPDATE {table.name} SET {values} FROM {_source(table, where + to, varies)} WHERE {found}"  # noqa: S608 - names of ours


def _source(table: Table, names: Sequence[str], varies: Sequence[bool]) -> str:
    """Return the FROM item that yields v0, v1… of each row, and `nth`, the number of the row."""
    types = [table.c[name].type.compile(dialect=_POSTGRESQL) for name in names]
    arrays = [index for index, differ in enumerate(varies) if differ]
    shared = [index for index, differ in enumerate(varies) if not differ]
    unnested = ", ".join(f"?::{types[index]}[]" for index in arrays)
    source = f"unnest({unnested}) WITH ORDINALITY AS each ({', '.join(f'v{index}' for index in arrays)}, nth)"
    if not shared:
        return source
    return f"{source}, (SELECT {', '.join(f'?::{types[index]} AS v{index}' for index in shared)}) AS shared"


def insert_if_absent(session: Session, table: Table, values: Mapping[str, Any]) -> bool:
    """Insert a row unless its key exists; return whether it was inserted.

    It waits for a transaction that is inserting a row with the same key.
    """
    on_sqlite = is_sqlite(session)
    insert = sqlite.insert(table) if on_sqlite else postgresql.insert(table)
    inserted = insert.values(**values).on_conflict_do_nothing().returning(*table.primary_key.columns)
    # Not every driver returns the row count of such an insert; all return the inserted row.
    return session.execute(inserted).first() is not None
