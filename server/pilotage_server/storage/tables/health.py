"""The table of places that get no more than single jobs, or did so until lately."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Column, Text
from sqlmodel import Field

from pilotage_server.storage.tables.base import Base, time_column


class ThrottleRow(Base, table=True):
    """A place that was found to be a black hole, or that an operator has closed or opened; `place` is its key."""

    __tablename__ = "throttles"
    place: str = Field(primary_key=True)
    state: str
    since: datetime = Field(sa_column=time_column())
    reason: str = Field(sa_column=Column(Text, nullable=False))
    ordered_by: str
    failures: int
    ends: int
    proofs: int
    pause_s: float
    next_trial: datetime | None = Field(default=None, sa_column=time_column(nullable=True))
    judged: datetime | None = Field(default=None, sa_column=time_column(nullable=True))
