"""The tables of races: the sets of jobs that may be repeated, and the races of single ones."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Column, Float, Integer, Text
from sqlmodel import Field

from pilotage_server.storage.tables.base import Base, BigId, time_column


class RaceSetRow(Base, table=True):
    """Jobs of one submission that may be repeated: `id` is that of the first, `last_id` that of the last."""

    __tablename__ = "race_sets"
    id: int = Field(sa_column=Column(BigId, primary_key=True, autoincrement=False))
    last_id: int = Field(sa_column=Column(BigId, nullable=False))
    jobs: int
    urgent: bool
    vo: str
    group: str
    owner: str
    created: datetime = Field(sa_column=time_column())


class RaceRow(Base, table=True):
    """A race of copies of a job, the last one that there was; `ended` None = it goes on, `winner` 0 = nobody."""

    __tablename__ = "races"
    job_id: int = Field(sa_column=Column(BigId, primary_key=True, autoincrement=False))
    vo: str
    group: str
    owner: str
    began: datetime = Field(sa_column=time_column())
    reason: str = Field(sa_column=Column(Text, nullable=False))
    copies: int = Field(sa_column=Column(Integer, nullable=False))
    first_copy: int = Field(sa_column=Column(BigId, nullable=False))
    attempt: int = Field(sa_column=Column(Integer, nullable=False))
    ended: datetime | None = Field(default=None, sa_column=time_column(nullable=True, index=True))
    winner: int = Field(sa_column=Column(BigId, nullable=False))
    outcome: str = Field(sa_column=Column(Text, nullable=False))
    lost_core_s: float = Field(sa_column=Column(Float, nullable=False))
