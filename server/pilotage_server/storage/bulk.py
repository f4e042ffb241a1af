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
from typing import Any, Self

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError
from sqlmodel import Session

Values = tuple[Any, ...]

_UTC = "+00:00"
_LOCKS = re.compile(r"\s+FOR (NO KEY )?UPDATE( OF \w+)?( SKIP LOCKED| NOWAIT)?\b")


class Driver:
    """The driver's own connection in a transaction; what SQLAlchemy adds to a statement costs more than many rows.

    In a block `with driver` the driver's errors become SQLAlchemy's.
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
        """Run a statement once and return the cursor that has what it gives."""
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


def give_driver(session: Session, driver: Driver) -> None:
    """Let the statements of the session that are given here go to this driver."""
    session.info[_DRIVER] = driver


def driver(session: Session) -> Driver:
    """Return the driver of the session's transaction."""
    found: Driver = session.info[_DRIVER]
    return found


def dialect_name(session: Session) -> str:
    """Return what the session's database speaks: "sqlite" or "postgresql"."""
    return driver(session).name


def is_sqlite(session: Session) -> bool:
    """Whether the session's database is SQLite."""
    return driver(session).is_sqlite


def rows(session: Session, statement: str, *values: Any) -> Sequence[tuple[Any, ...]]:
    """Run a statement once and return the rows it gives."""
    with driver(session) as mine:
        found: Sequence[tuple[Any, ...]] = mine.execute(statement, values).fetchall()
        return found


def once(session: Session, statement: str, *values: Any) -> int:
    """Run a statement once and return how many rows it has touched."""
    with driver(session) as mine:
        touched: int = mine.execute(statement, values).rowcount
        return touched


def many(session: Session, statement: str, values: Sequence[Values]) -> int:
    """Run a statement for each of `values` and return how many rows they have touched; for none, do nothing."""
    if not values:
        return 0
    with driver(session) as mine:
        touched: int = mine.execute_many(statement, values).rowcount
        return touched


def moment(session: Session, time: datetime) -> datetime | str:
    """Return an aware time as columns of times keep it: SQLite has them as text in UTC."""
    return _as_text(time) if is_sqlite(session) else time


@lru_cache(maxsize=1024)
def _as_text(time: datetime) -> str:
    return time.astimezone(UTC).replace(tzinfo=None).isoformat(" ", "microseconds")


def time_of(value: datetime | str) -> datetime:
    """Return the aware time in UTC of what a column of times gives."""
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
