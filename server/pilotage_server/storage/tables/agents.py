"""The table of the turns of agents."""

from __future__ import annotations

from datetime import datetime

from sqlmodel import Field

from pilotage_server.storage.tables.base import Base, time_column


class TurnRow(Base, table=True):
    """Which copy of an agent acts until when; `place` is where it runs, for people."""

    __tablename__ = "turns"
    agent: str = Field(primary_key=True)
    holder: str
    place: str
    until: datetime = Field(sa_column=time_column())
