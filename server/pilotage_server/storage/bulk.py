"""Statements for many rows, given to the driver as they are.

Rules
-----
Statements are text in the words of PostgreSQL with `?` for values, and translated for SQLite: `= ANY(?)` takes a list,
and locks of rows (FOR UPDATE, SKIP LOCKED) are left out, as SQLite has one writer. A statement is a constant, so that
drivers keep it prepared; values never stand in its text, nor do `?` or `%` mean anything else. Nothing converts values:
times go in through `moment` and come out through `time_of`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, NamedTuple

from sqlalchemy import Dialect
from sqlalchemy.exc import DBAPIError
from sqlmodel import Session

Values = tuple[Any, ...]

_UTC = "+00:00"
_LOCKS = re.compile(r"\s+FOR (NO KEY )?UPDATE( OF \w+)?( SKIP LOCKED| NOWAIT)?\b")


def dialect_name(session: Session) -> str:
    """Return what the session's database speaks: "sqlite" or "postgresql"."""
    return _driver(session).dialect.name


def is_sqlite(session: Session) -> bool:
    """Whether the session's database is SQLite."""
    return dialect_name(session) == "sqlite"


def rows(session: Session, statement: str, *values: Any) -> Sequence[tuple[Any, ...]]:
    """Run a statement once and return the rows it gives."""
    found: Sequence[tuple[Any, ...]] = _run(session, statement, values, lambda cursor: cursor.fetchall())
    return found


def once(session: Session, statement: str, *values: Any) -> int:
    """Run a statement once and return how many rows it has touched."""
    touched: int = _run(session, statement, values, _touched)
    return touched


def many(session: Session, statement: str, values: Sequence[Values]) -> int:
    """Run a statement for each of `values` and return how many rows they have touched; for none, do nothing."""
    if not values:
        return 0
    driver = _driver(session)
    with driver.cursor() as cursor:
        cursor.executemany(_translated(statement, driver.dialect.name), values)
        return _touched(cursor)


def _touched(cursor: Any) -> int:
    touched: int = cursor.rowcount
    return touched


def _run(session: Session, statement: str, values: Values, take: Callable[[Any], Any]) -> Any:
    driver = _driver(session)
    name = driver.dialect.name
    with driver.cursor() as cursor:
        cursor.execute(_translated(statement, name), _given(values, name))
        return take(cursor)


class _Driver(NamedTuple):
    """The driver's own connection in a transaction; what SQLAlchemy adds to a statement costs more than many rows."""

    transaction: Any
    connection: Any
    dialect: Dialect

    @property
    def fault(self) -> type[Exception]:
        """The root of the driver's errors."""
        fault: type[Exception] = self.dialect.loaded_dbapi.Error
        return fault

    @contextmanager
    def cursor(self) -> Iterator[Any]:
        """Give a cursor for one statement; its errors become SQLAlchemy's."""
        cursor = self.connection.cursor()
        try:
            yield cursor
        except self.fault as error:
            raise DBAPIError.instance(None, None, error, self.fault, dialect=self.dialect) from error
        finally:
            cursor.close()


_KNOWN = "the driver of this transaction"


def _driver(session: Session) -> _Driver:
    """Return the connection that the session's transaction is on, found once for each of these."""
    known: _Driver | None = session.info.get(_KNOWN)
    if known is not None and known.transaction is session.get_transaction():
        return known
    connection = session.connection()
    known = _Driver(session.get_transaction(), connection.connection, connection.dialect)
    session.info[_KNOWN] = known
    return known


def _given(values: Values, dialect: str) -> Values:
    """Return values as the driver takes them: SQLite has no lists."""
    return values if dialect != "sqlite" else tuple(map(_list_as_json, values))


def moment(session: Session, time: datetime) -> datetime | str:
    """Return an aware time as columns of times keep it: SQLite has them as text in UTC."""
    return _as_text(time) if is_sqlite(session) else time


@lru_cache(maxsize=1024)
def _as_text(time: datetime) -> str:
    return time.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")


def time_of(value: datetime | str) -> datetime:
    """Return the aware time in UTC of what a column of times gives."""
    if isinstance(value, str):
        return datetime.fromisoformat(value if value.endswith(_UTC) else value + _UTC)
    return value.astimezone(UTC)


def _list_as_json(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, list) else value


@lru_cache(maxsize=1024)
def _translated(statement: str, dialect: str) -> str:
    if dialect != "sqlite":
        return statement.replace("?", "%s")
    return _LOCKS.sub("", statement).replace("= ANY(?)", "IN (SELECT value FROM json_each(?))")
