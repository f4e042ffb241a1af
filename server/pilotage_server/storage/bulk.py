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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from sqlalchemy.exc import DBAPIError
from sqlmodel import Session

Values = tuple[Any, ...]

_LOCKS = re.compile(r"\s+FOR (NO KEY )?UPDATE( OF \w+)?( SKIP LOCKED| NOWAIT)?\b")


def rows(session: Session, statement: str, *values: Any) -> Sequence[tuple[Any, ...]]:
    """Run a statement once and return the rows it gives."""
    with _cursor(session) as (cursor, dialect):
        cursor.execute(_translated(statement, dialect), _given(values, dialect))
        found: Sequence[tuple[Any, ...]] = cursor.fetchall()
    return found


def once(session: Session, statement: str, *values: Any) -> int:
    """Run a statement once and return how many rows it has touched."""
    with _cursor(session) as (cursor, dialect):
        cursor.execute(_translated(statement, dialect), _given(values, dialect))
        touched: int = cursor.rowcount
    return touched


def many(session: Session, statement: str, values: Sequence[Values]) -> int:
    """Run a statement for each of `values` and return how many rows they have touched; for none, do nothing."""
    if not values:
        return 0
    with _cursor(session) as (cursor, dialect):
        cursor.executemany(_translated(statement, dialect), values)
        touched: int = cursor.rowcount
    return touched


@contextmanager
def _cursor(session: Session) -> Iterator[tuple[Any, str]]:
    """Give a cursor of the driver's own, and the name of its dialect; what SQLAlchemy adds costs more than a row."""
    connection = session.connection()
    dialect = connection.dialect
    cursor = connection.connection.cursor()
    try:
        yield cursor, dialect.name
    except dialect.loaded_dbapi.Error as error:
        raise DBAPIError.instance(None, None, error, dialect.loaded_dbapi.Error, dialect=dialect) from error
    finally:
        cursor.close()


def _given(values: Values, dialect: str) -> Values:
    """Return values as the driver takes them: SQLite has no lists."""
    return values if dialect != "sqlite" else tuple(map(_list_as_json, values))


def moment(session: Session, time: datetime) -> datetime | str:
    """Return an aware time as columns of times keep it: SQLite has them as text in UTC."""
    if session.get_bind().dialect.name != "sqlite":
        return time
    return time.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")


def time_of(value: datetime | str) -> datetime:
    """Return the aware time in UTC of what a column of times gives."""
    if isinstance(value, str):
        return datetime.fromisoformat(value + "+00:00")
    return value.astimezone(UTC)


def _list_as_json(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, list) else value


@lru_cache(maxsize=1024)
def _translated(statement: str, dialect: str) -> str:
    if dialect != "sqlite":
        return statement.replace("?", "%s")
    return _LOCKS.sub("", statement).replace("= ANY(?)", "IN (SELECT value FROM json_each(?))")
