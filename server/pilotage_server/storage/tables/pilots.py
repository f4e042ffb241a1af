"""The tables of pilots and their slots."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Boolean, Column, Index, Text, false, text
from sqlmodel import Field

from pilotage_server.storage.tables.base import Base, time_column
from pilotage_server.storage.tables.conditions import EMPTY


class PilotRow(Base, table=True):
    """A pilot, by its stamp; `vos_json` is a list, empty = all that the queue allows.

    `came_back_empty` = it has ended as nobody wished, and never ran a job. `glidein_seen` = when its batch system last
    said that its glidein is there, while it had not come.
    """

    __tablename__ = "pilots"
    __table_args__ = (
        Index("ix_pilots_queue", "site", "ce", "queue", "registered"),
        Index("ix_pilots_empty", "ended", sqlite_where=text(EMPTY), postgresql_where=text(EMPTY)),
    )
    stamp: str = Field(primary_key=True)
    site: str
    ce: str
    queue: str
    vos_json: str
    state: str = Field(index=True)
    reason: str = ""
    glidein_id: str = ""
    node: str = ""
    node_json: str = Field(default="", sa_column=Column(Text, nullable=False))
    drain_reason: str = ""
    drain_evicts: bool = False
    jobs_ended: int = 0
    registered: datetime = Field(sa_column=time_column())
    registered_by: str
    last_seen: datetime | None = Field(default=None, sa_column=time_column(nullable=True))
    ends: datetime | None = Field(default=None, sa_column=time_column(nullable=True))
    ended: datetime | None = Field(default=None, sa_column=time_column(nullable=True, index=True))
    came_back_empty: bool = Field(default=False, sa_column=Column(Boolean, nullable=False, server_default=false()))
    glidein_seen: datetime | None = Field(default=None, sa_column=time_column(nullable=True))


class SlotRow(Base, table=True):
    """A slot as its pilot last reported it; `ad` is its ClassAd, without what `state_json` tells."""

    __tablename__ = "slots"
    pilot_stamp: str = Field(primary_key=True)
    name: str = Field(primary_key=True)
    state_json: str = Field(sa_column=Column(Text, nullable=False))
    ad: str = Field(default="", sa_column=Column(Text, nullable=False, server_default=""))


class NodeSettingsRow(Base, table=True):
    """What operators have set on a node; its version grows with every change."""

    __tablename__ = "node_settings"
    site: str = Field(primary_key=True)
    node: str = Field(primary_key=True)
    version: int
    settings_json: str = Field(sa_column=Column(Text, nullable=False))
