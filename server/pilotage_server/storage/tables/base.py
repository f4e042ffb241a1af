"""What all tables stand on: the metadata with its names, the types of ids and times.

Times are aware and in UTC.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import ClassVar

from sqlalchemy import BigInteger, Column, DateTime, Dialect, Integer, MetaData, TypeDecorator
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
"""Ids that people and feeds hold on to: SQLite must not give the id of a removed row away again."""


class UtcDateTime(TypeDecorator[datetime]):
    """A time that goes in and comes out aware and in UTC, whatever the database keeps of its zone."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Return the time in UTC; a naive one is a fault of ours."""
        assert value is None or value.tzinfo is not None, "times are aware"
        return value and value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Return the time in UTC; SQLite gives naive ones back."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class Base(SQLModel):
    """Common ground of all tables."""

    metadata: ClassVar[MetaData] = metadata


def id_column() -> Column[int]:
    """Return the column of an id that the database gives."""
    return Column(BigId, primary_key=True, autoincrement=True)


def time_column(*, nullable: bool = False, index: bool = False) -> Column[datetime]:
    """Return the column of a time."""
    return Column(UtcDateTime(), nullable=nullable, index=index)
