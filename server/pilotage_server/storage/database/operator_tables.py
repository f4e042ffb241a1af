"""Tables of agents, and those that show operators what goes on; `tables` has their rules."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Column, Index, Integer, Text
from sqlmodel import Field

from pilotage_server.storage.database.columns import NEVER_REUSED, Base, BigId, id_column, time_column


class TurnRow(Base, table=True):
    """The leading replica of an agent and the end of its term; `place` is its host, for people.

    `serves_json` = patterns and CETypes of the queues that it acts on, and the patterns that its token is bound to.
    """

    __tablename__ = "turns"
    agent: str = Field(primary_key=True)
    holder: str
    place: str
    until: datetime = Field(sa_column=time_column())
    serves_json: str = Field(sa_column=Column(Text, nullable=False))


class AgentRow(Base, table=True):
    """A replica of an agent as of its last request for leadership; `place` is its host, for people.

    `due` = when its next call is due; `ended` None = it has not said that it ends. `serves_json` as in `TurnRow`.
    """

    __tablename__ = "agents"
    agent: str = Field(primary_key=True)
    holder: str = Field(primary_key=True)
    place: str
    owner: str
    since: datetime = Field(sa_column=time_column())
    last_seen: datetime = Field(sa_column=time_column())
    due: datetime = Field(sa_column=time_column())
    serves_json: str = Field(sa_column=Column(Text, nullable=False))
    version: str
    last_cycle: datetime | None = Field(default=None, sa_column=time_column(nullable=True))
    last_success: datetime | None = Field(default=None, sa_column=time_column(nullable=True))
    failures: int
    last_error: str = Field(sa_column=Column(Text, nullable=False))
    error_time: datetime | None = Field(default=None, sa_column=time_column(nullable=True))
    ended: datetime | None = Field(default=None, sa_column=time_column(nullable=True))


class DowntimeRow(Base, table=True):
    """A planned downtime of a site, CE or queue; `ce` and `queue` empty = all below."""

    __tablename__ = "downtimes"
    __table_args__ = (NEVER_REUSED,)
    id: int | None = Field(default=None, sa_column=id_column())
    site: str
    ce: str
    queue: str
    reason: str
    by: str
    made: datetime = Field(sa_column=time_column())
    start: datetime = Field(sa_column=time_column())
    end: datetime = Field(sa_column=time_column())
    drain_s: float


class PilotLogRow(Base, table=True):
    """The end of the output of a pilot that has ended without saying why; it goes away with the pilot."""

    __tablename__ = "pilot_logs"
    stamp: str = Field(primary_key=True)
    sent: datetime = Field(sa_column=time_column())
    text: str = Field(sa_column=Column(Text, nullable=False))


class AuditRow(Base, table=True):
    """A change by an operator or an agent; `roles` with commas, `agent` = the leadership that it was made under."""

    __tablename__ = "audit"
    __table_args__ = (Index("ix_audit_time", "time"), NEVER_REUSED)
    id: int | None = Field(default=None, sa_column=id_column())
    time: datetime = Field(sa_column=time_column())
    who: str
    vo: str
    roles: str
    agent: str
    what: str
    subject: str = Field(sa_column=Column(Text, nullable=False))
    difference: str = Field(sa_column=Column(Text, nullable=False))
    reason: str = Field(sa_column=Column(Text, nullable=False))


class JobCountRow(Base, table=True):
    """Counts of the jobs of a VO in a minute since 1970: those that wait and run, and those that ended in it."""

    __tablename__ = "job_counts"
    minute: int = Field(sa_column=Column(Integer, primary_key=True, autoincrement=False))
    vo: str = Field(primary_key=True)
    waiting: int = Field(sa_column=Column(BigId, nullable=False))
    running: int = Field(sa_column=Column(BigId, nullable=False))
    done: int = Field(sa_column=Column(BigId, nullable=False))
    failed: int = Field(sa_column=Column(BigId, nullable=False))
    removed: int = Field(sa_column=Column(BigId, nullable=False))
