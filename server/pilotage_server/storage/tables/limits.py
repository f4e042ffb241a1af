"""The table of what running limits count."""

from __future__ import annotations

from sqlmodel import Field

from pilotage_server.storage.tables.base import Base


class RunningCountRow(Base, table=True):
    """How many jobs with a lease one limit counts; `key` is the canonical text of its place, attribute and value."""

    __tablename__ = "running_counts"
    key: str = Field(primary_key=True)
    running: int
