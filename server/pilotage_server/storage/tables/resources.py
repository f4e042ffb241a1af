"""The tables of the resource tree, of bans, and of submit pools."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Column, Text
from sqlmodel import Field

from pilotage_server.storage.tables.base import Base, id_column, time_column


class TreeRow(Base, table=True):
    """One version of the resource tree, as it was given; the highest version is in force."""

    __tablename__ = "trees"
    version: int = Field(primary_key=True)
    text: str = Field(sa_column=Column(Text, nullable=False))
    format: str
    created: datetime = Field(sa_column=time_column())
    created_by: str


class BanRow(Base, table=True):
    """A site, CE or queue out of use; `ce` and `queue` empty = all below; `until` None = until taken back."""

    __tablename__ = "bans"
    id: int | None = Field(default=None, sa_column=id_column())
    site: str
    ce: str
    queue: str
    reason: str
    by: str
    since: datetime = Field(sa_column=time_column())
    until: datetime | None = Field(default=None, sa_column=time_column(nullable=True))


class PoolRow(Base, table=True):
    """A submit pool: its full canonical text, and when and by which tree it was mapped, from which its queues follow.

    `mapped` None = it has no mapping and is eligible nowhere. Whatever has one was mapped anew by each tree that came
    later, when that was made, without a word here: 10,000 rows to write would hold up all else. `idle_since` is when
    the cleanup first saw it without a live job; the next job that arrives makes it None again, so no job costs a write
    here.
    """

    __tablename__ = "pools"
    id: str = Field(primary_key=True, max_length=64)
    vo: str
    canonical: str = Field(sa_column=Column(Text, nullable=False))
    requirements_json: str = Field(sa_column=Column(Text, nullable=False))
    created: datetime = Field(sa_column=time_column())
    idle_since: datetime | None = Field(default=None, sa_column=time_column(nullable=True))
    mapped: datetime | None = Field(default=None, sa_column=time_column(nullable=True))
    tree_version: int = 0
