"""The tables of jobs: where they wait, what was submitted, where they are, what happened to them."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, Boolean, Column, Float, Index, Integer, String, Text, TextClause, text
from sqlalchemy.types import TypeEngine
from sqlmodel import Field

from pilotage_server.storage.tables.base import NEVER_REUSED, Base, BigId, id_column, time_column
from pilotage_server.storage.tables.conditions import (
    ENDED_JOB,
    HELD_JOB,
    LIVE_JOB,
    LIVE_REPEATABLE_JOB,
    RACING_JOB,
    TAKEN,
    TIMED_JOB,
    UNREPORTED,
    WAITING_JOB,
    WATCHED_JOB,
)


def _partial(name: str, *columns: str | TextClause, where: str) -> Index:
    return Index(name, *columns, sqlite_where=text(where), postgresql_where=text(where))


def _zero(kind: type[Any] | TypeEngine[Any]) -> Column[Any]:
    """Return the column of a number that the database itself starts at zero, or of a truth that it denies."""
    return Column(kind, nullable=False, server_default="0")


def _no_text() -> Column[str]:
    """Return the column of a text that the database itself leaves empty."""
    return Column(String, nullable=False, server_default="")


class TaskQueueRow(Base, table=True):
    """A task queue: all waiting jobs that no slot could tell apart; its text is canonical, its key a hash."""

    __tablename__ = "task_queues"
    __table_args__ = (NEVER_REUSED,)
    id: int | None = Field(default=None, sa_column=id_column())
    key: str = Field(max_length=64, unique=True)
    vo: str
    group: str
    owner: str
    pool_id: str = Field(default="", max_length=64, index=True)
    needs_json: str = Field(sa_column=Column(Text, nullable=False))
    created: datetime = Field(sa_column=time_column())


class SignificantAttributeRow(Base, table=True):
    """An attribute of jobs, by its folded name, that the policy of some slot refers to: it tells task queues apart."""

    __tablename__ = "significant_attributes"
    name: str = Field(primary_key=True)
    since: datetime = Field(sa_column=time_column())


class TemplateRow(Base, table=True):
    """What was submitted: one description with its owner, shared by jobs that differ in nothing else; never changed.

    `jobs` = how many of them there are; with the last one it goes.
    """

    __tablename__ = "templates"
    __table_args__ = (NEVER_REUSED,)
    id: int | None = Field(default=None, sa_column=id_column())
    owner: str
    vo: str
    group: str
    description_json: str = Field(sa_column=Column(Text, nullable=False))
    jobs: int = Field(default=0, sa_column=_zero(Integer))


class JobRow(Base, table=True):
    """A job's present state; what it was and why is in its events.

    `lease_until` of a job without a lease = its last attempt was taken from a pilot that may run it until then.
    `watch` = when its policies must be looked at, 0 = never. `race` = the job whose race it takes part in, `race_set` =
    the set of jobs that it belongs to, 0 = none: they are in `races`.
    """

    __tablename__ = "jobs"
    __table_args__ = (
        _partial("ix_jobs_waiting", "task_queue_id", text("priority DESC"), "id", where=WAITING_JOB),
        _partial("ix_jobs_timed", "lease_until", where=TIMED_JOB),
        _partial("ix_jobs_held", "id", where=HELD_JOB),
        _partial("ix_jobs_live", "task_queue_id", "template_id", where=LIVE_JOB),
        _partial("ix_jobs_watched", "watch", "id", where=WATCHED_JOB),
        _partial("ix_jobs_ended", "ended", where=ENDED_JOB),
        _partial("ix_jobs_race", "race", where=RACING_JOB),
        _partial("ix_jobs_race_set", "race_set", "id", where=LIVE_REPEATABLE_JOB),
        Index("ix_jobs_owner_id", "owner", "id"),
        NEVER_REUSED,
    )
    id: int | None = Field(default=None, sa_column=id_column())
    template_id: int = Field(sa_column=Column(BigId, nullable=False))
    cluster: int = Field(sa_column=Column(BigId, nullable=False))
    process: int
    owner: str
    vo: str
    group: str
    name: str
    state: str
    reason: str
    priority: int
    task_queue_id: int = Field(sa_column=Column(BigId, nullable=False))
    pool_id: str = Field(default="", max_length=64)
    attempt: int = 0
    spent_attempts: int = 0
    lease_s: float = 0.0
    lease_until: datetime | None = Field(default=None, sa_column=time_column(nullable=True))
    pilot_stamp: str = ""
    site: str = ""
    ce: str = ""
    queue: str = ""
    node: str = ""
    slot: str = ""
    exit_code: int | None = None
    signal: int | None = None
    submitted: datetime = Field(sa_column=time_column())
    started: datetime | None = Field(default=None, sa_column=time_column(nullable=True))
    ended: datetime | None = Field(default=None, sa_column=time_column(nullable=True))
    state_since: datetime | None = Field(default=None, sa_column=time_column(nullable=True))
    starts: int = Field(default=0, sa_column=_zero(Integer))
    wall_clock_s: float = Field(default=0.0, sa_column=_zero(Float))
    suspended_s: float = Field(default=0.0, sa_column=_zero(Float))
    hold_code: int | None = None
    hold_subcode: int | None = None
    hold_history_json: str = Field(default="", sa_column=Column(Text, nullable=False, server_default=""))
    watch: int = Field(default=0, sa_column=_zero(Integer))
    race: int = Field(default=0, sa_column=_zero(BigId))
    race_set: int = Field(default=0, sa_column=_zero(BigId))


class AttemptRow(Base, table=True):
    """One attempt of a job: who had it, how it ended, what it used; `ended` None = it holds its lease.

    `reported` = its pilot has said how it ended; until then the pilot may still be running it. The `charged_…` name
    the account that pays for it, and `weight` is what it pays for a second. `metered` = since when it has to pay
    still, None = it uses nothing now. `trial` = it tells whether a throttled place does well again. `plugged` = its
    payload has failed, and keeps its slot for a while.
    """

    __tablename__ = "attempts"
    __table_args__ = (
        _partial("ix_attempts_unreported", "pilot_stamp", "job_id", "attempt", where=UNREPORTED),
        _partial("ix_attempts_taken", "pilot_stamp", "job_id", "attempt", where=TAKEN),
    )
    job_id: int = Field(sa_column=Column(BigId, primary_key=True, autoincrement=False))
    attempt: int = Field(primary_key=True)
    pilot_stamp: str
    site: str
    ce: str
    queue: str
    node: str
    slot: str
    cpus: int
    matched: datetime = Field(sa_column=time_column())
    started: datetime | None = Field(default=None, sa_column=time_column(nullable=True))
    ended: datetime | None = Field(default=None, sa_column=time_column(nullable=True))
    outcome: str = ""
    reason: str = ""
    exit_code: int | None = None
    signal: int | None = None
    cpu_s: float = 0.0
    wall_s: float = 0.0
    suspended_s: float = 0.0
    peak_memory_mib: int = Field(default=0, sa_column=Column(BigInteger, nullable=False))
    reported: bool = False
    weight: float = Field(default=0.0, sa_column=_zero(Float))
    charged_vo: str = Field(default="", sa_column=_no_text())
    charged_group: str = Field(default="", sa_column=_no_text())
    charged_owner: str = Field(default="", sa_column=_no_text())
    metered: datetime | None = Field(default=None, sa_column=time_column(nullable=True))
    trial: bool = Field(default=False, sa_column=_zero(Boolean))
    plugged: bool = Field(default=False, sa_column=_zero(Boolean))


class JobEventRow(Base, table=True):
    """One transition of a job; `id` is its position in the feed."""

    __tablename__ = "job_events"
    __table_args__ = (NEVER_REUSED,)
    id: int | None = Field(default=None, sa_column=id_column())
    job_id: int = Field(sa_column=Column(BigId, nullable=False, index=True))
    time: datetime = Field(sa_column=time_column())
    from_state: str
    to_state: str
    cause: str
    reason: str
    attempt: int
    actor: str
