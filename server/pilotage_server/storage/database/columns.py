"""What tables are made of: their metadata and base class, types of columns, and partial indexes."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, ClassVar

from sqlalchemy import (
    BigInteger,
    Column,
    DateTime,
    Dialect,
    Index,
    Integer,
    MetaData,
    String,
    TextClause,
    TypeDecorator,
    text,
)
from sqlalchemy.types import TypeEngine
from sqlmodel import SQLModel

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)
BigId = BigInteger().with_variant(Integer, "sqlite")
"""64 bits everywhere; SQLite gives rowids to INTEGER keys only."""
NEVER_REUSED = {"sqlite_autoincrement": True}
"""For ids that people and feeds keep: SQLite must not reuse the id of a removed row."""


class UtcDateTime(TypeDecorator[datetime]):
    """A time that is aware and in UTC in Python, whatever the database stores of its zone."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Return the time in UTC; a naive time is a bug."""
        assert value is None or value.tzinfo is not None, "times are aware"
        return value and value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Return the time in UTC; SQLite returns naive times."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class Base(SQLModel):
    """The base of all tables."""

    metadata: ClassVar[MetaData] = metadata


def id_column() -> Column[int]:
    """Return the column of an id that the database assigns."""
    return Column(BigId, primary_key=True, autoincrement=True)


def time_column(*, nullable: bool = False, index: bool = False) -> Column[datetime]:
    """Return the column of a time."""
    return Column(UtcDateTime(), nullable=nullable, index=index)


def partial_index(name: str, *columns: str | TextClause, where: str) -> Index:
    """Return an index of the rows that satisfy a condition."""
    return Index(name, *columns, sqlite_where=text(where), postgresql_where=text(where))


def zero(kind: type[Any] | TypeEngine[Any]) -> Column[Any]:
    """Return a column with the server default 0 or false."""
    return Column(kind, nullable=False, server_default="0")


def no_text() -> Column[str]:
    """Return a text column with the server default ""."""
    return Column(String, nullable=False, server_default="")
