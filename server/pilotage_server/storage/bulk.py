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
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from sqlalchemy import CursorResult
from sqlmodel import Session

Values = tuple[Any, ...]

_LOCKS = re.compile(r"\s+FOR (NO KEY )?UPDATE( OF \w+)?( SKIP LOCKED| NOWAIT)?\b")


def rows(session: Session, statement: str, *values: Any) -> Sequence[Any]:
    """Run a statement once and return the rows it gives, as tuples."""
    return _run(session, statement, values).fetchall()


def once(session: Session, statement: str, *values: Any) -> int:
    """Run a statement once and return how many rows it has touched."""
    return _run(session, statement, values).rowcount


def many(session: Session, statement: str, values: Sequence[Values]) -> int:
    """Run a statement for each of `values` and return how many rows they have touched; for none, do nothing."""
    if not values:
        return 0
    connection = session.connection()
    return connection.exec_driver_sql(_translated(statement, connection.dialect.name), list(values)).rowcount


def moment(session: Session, time: datetime) -> datetime | str:
    """Return an aware time as columns of times keep it: SQLite has them as text in UTC."""
    if session.get_bind().dialect.name != "sqlite":
        return time
    return time.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")


def time_of(value: datetime | str) -> datetime:
    """Return the aware time in UTC of what a column of times gives."""
    if isinstance(value, str):
        return datetime.fromisoformat(value).replace(tzinfo=UTC)
    return value.astimezone(UTC)


def _run(session: Session, statement: str, values: Values) -> CursorResult[Any]:
    connection = session.connection()
    dialect = connection.dialect.name
    given = values if dialect != "sqlite" else tuple(_list_as_json(value) for value in values)
    return connection.exec_driver_sql(_translated(statement, dialect), given)


def _list_as_json(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, list) else value


@lru_cache(maxsize=1024)
def _translated(statement: str, dialect: str) -> str:
    if dialect != "sqlite":
        return statement.replace("?", "%s")
    return _LOCKS.sub("", statement).replace("= ANY(?)", "IN (SELECT value FROM json_each(?))")
