"""The tables; rows are built from valid domain values only and never leave this package.

Times are aware and in UTC. Amounts: cores, MiB, GPUs. Texts named `*_json` hold canonical JSON.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import ClassVar

from sqlalchemy import (
    BigInteger,
    Column,
    DateTime,
    Dialect,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Text,
    TypeDecorator,
    text,
)
from sqlmodel import Field, SQLModel

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

UNREPORTED = "NOT reported"
"""Attempts that a pilot still has to answer for; queries use this very text, as with LIVE_JOB."""

LIVE_JOB = "state NOT IN ('DONE', 'FAILED', 'REMOVED')"
"""Jobs that keep their pool alive."""
WAITING_JOB = "state = 'WAITING'"
"""Jobs that a match may take."""
LEASED_JOB = "state IN ('MATCHED', 'RUNNING', 'SUSPENDED', 'COMPLETING')"
"""Jobs that hold a lease. Queries use these very texts, so that planners see that the partial index serves."""


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


def _id() -> Column[int]:
    return Column(BigId, primary_key=True, autoincrement=True)


def _time(*, nullable: bool = False, index: bool = False) -> Column[datetime]:
    return Column(UtcDateTime(), nullable=nullable, index=index)


class TreeRow(Base, table=True):
    """One version of the resource tree, as it was given; the highest version is in force."""

    __tablename__ = "trees"
    version: int = Field(primary_key=True)
    text: str = Field(sa_column=Column(Text, nullable=False))
    format: str
    created: datetime = Field(sa_column=_time())
    created_by: str


class BanRow(Base, table=True):
    """A site, CE or queue out of use; `ce` and `queue` empty = all below; `until` None = until taken back."""

    __tablename__ = "bans"
    id: int | None = Field(default=None, sa_column=_id())
    site: str
    ce: str
    queue: str
    reason: str
    by: str
    since: datetime = Field(sa_column=_time())
    until: datetime | None = Field(default=None, sa_column=_time(nullable=True))


class PoolRow(Base, table=True):
    """A submit pool: its full canonical text and the state of its mapping.

    `mapped` None = it has no mapping and is eligible nowhere. `idle_since` is when the cleanup first saw it
    without a live job; the next job that arrives makes it None again, so no job costs a write here.
    """

    __tablename__ = "pools"
    id: str = Field(primary_key=True, max_length=64)
    vo: str
    canonical: str = Field(sa_column=Column(Text, nullable=False))
    requirements_json: str = Field(sa_column=Column(Text, nullable=False))
    created: datetime = Field(sa_column=_time())
    idle_since: datetime | None = Field(default=None, sa_column=_time(nullable=True))
    mapped: datetime | None = Field(default=None, sa_column=_time(nullable=True, index=True))
    tree_version: int = 0


class PoolQueueRow(Base, table=True):
    """One queue that a pool may run on, by the mapping in force."""

    __tablename__ = "pool_queues"
    pool_id: str = Field(primary_key=True, foreign_key="pools.id", max_length=64)
    site: str = Field(primary_key=True)
    ce: str = Field(primary_key=True)
    queue: str = Field(primary_key=True)


class TaskQueueRow(Base, table=True):
    """A task queue: all waiting jobs that no slot could tell apart; its text is canonical, its key a hash."""

    __tablename__ = "task_queues"
    __table_args__ = (NEVER_REUSED,)
    id: int | None = Field(default=None, sa_column=_id())
    key: str = Field(max_length=64, unique=True)
    vo: str
    group: str
    owner: str
    pool_id: str = Field(default="", max_length=64, index=True)
    needs_json: str = Field(sa_column=Column(Text, nullable=False))
    created: datetime = Field(sa_column=_time())


class TemplateRow(Base, table=True):
    """What was submitted: one description with its owner, shared by the jobs of an array; never changed."""

    __tablename__ = "templates"
    __table_args__ = (NEVER_REUSED,)
    id: int | None = Field(default=None, sa_column=_id())
    owner: str
    vo: str
    group: str
    description_json: str = Field(sa_column=Column(Text, nullable=False))


class JobRow(Base, table=True):
    """A job's present state; what it was and why is in its events."""

    __tablename__ = "jobs"
    __table_args__ = (
        Index(
            "ix_jobs_waiting",
            "task_queue_id",
            text("priority DESC"),
            "id",
            sqlite_where=text(WAITING_JOB),
            postgresql_where=text(WAITING_JOB),
        ),
        Index(
            "ix_jobs_leased",
            "lease_until",
            sqlite_where=text(LEASED_JOB),
            postgresql_where=text(LEASED_JOB),
        ),
        Index(
            "ix_jobs_held",
            "id",
            sqlite_where=text("state = 'HELD'"),
            postgresql_where=text("state = 'HELD'"),
        ),
        Index("ix_jobs_live_pool_id", "pool_id", sqlite_where=text(LIVE_JOB), postgresql_where=text(LIVE_JOB)),
        Index("ix_jobs_owner_id", "owner", "id"),
        Index("ix_jobs_ended", "ended"),
        Index("ix_jobs_pilot_stamp", "pilot_stamp"),
        NEVER_REUSED,
    )
    id: int | None = Field(default=None, sa_column=_id())
    template_id: int = Field(sa_column=Column(BigId, nullable=False, index=True))
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
    lease_until: datetime | None = Field(default=None, sa_column=_time(nullable=True))
    pilot_stamp: str = ""
    site: str = ""
    ce: str = ""
    queue: str = ""
    node: str = ""
    slot: str = ""
    exit_code: int | None = None
    signal: int | None = None
    submitted: datetime = Field(sa_column=_time())
    started: datetime | None = Field(default=None, sa_column=_time(nullable=True))
    ended: datetime | None = Field(default=None, sa_column=_time(nullable=True))


class AttemptRow(Base, table=True):
    """One attempt of a job: who had it, how it ended, what it used; `ended` None = it holds its lease.

    `reported` = its pilot has said how it ended; until then the pilot may still be running it.
    """

    __tablename__ = "attempts"
    __table_args__ = (
        Index(
            "ix_attempts_unreported",
            "pilot_stamp",
            sqlite_where=text(UNREPORTED),
            postgresql_where=text(UNREPORTED),
        ),
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
    matched: datetime = Field(sa_column=_time())
    started: datetime | None = Field(default=None, sa_column=_time(nullable=True))
    ended: datetime | None = Field(default=None, sa_column=_time(nullable=True))
    outcome: str = ""
    reason: str = ""
    exit_code: int | None = None
    signal: int | None = None
    cpu_s: float = 0.0
    wall_s: float = 0.0
    suspended_s: float = 0.0
    peak_memory_mib: int = 0
    reported: bool = False


class JobEventRow(Base, table=True):
    """One transition of a job; `id` is its position in the feed."""

    __tablename__ = "job_events"
    __table_args__ = (Index("ix_job_events_job_id_id", "job_id", "id"), NEVER_REUSED)
    id: int | None = Field(default=None, sa_column=_id())
    job_id: int = Field(sa_column=Column(BigId, nullable=False))
    time: datetime = Field(sa_column=_time(index=True))
    from_state: str
    to_state: str
    cause: str
    reason: str
    attempt: int
    actor: str


class StoredFileRow(Base, table=True):
    """A file kept by checksum; one row for each owner who has it: nobody fetches what he never had."""

    __tablename__ = "stored_files"
    checksum: str = Field(primary_key=True, max_length=64)
    vo: str = Field(primary_key=True)
    owner: str = Field(primary_key=True)
    size: int = Field(sa_column=Column(BigId, nullable=False))
    stored: datetime = Field(sa_column=_time(index=True))


class OutputFileRow(Base, table=True):
    """A file that an attempt left behind."""

    __tablename__ = "output_files"
    job_id: int = Field(sa_column=Column(BigId, primary_key=True, autoincrement=False))
    attempt: int = Field(primary_key=True)
    name: str = Field(primary_key=True)
    checksum: str = Field(max_length=64, index=True)
    size: int = Field(sa_column=Column(BigId, nullable=False))
    truncated: bool = False


class InputFileRow(Base, table=True):
    """A file that the jobs of a template bring; keeps it from being cleaned away."""

    __tablename__ = "input_files"
    template_id: int = Field(sa_column=Column(BigId, primary_key=True, autoincrement=False))
    name: str = Field(primary_key=True)
    checksum: str = Field(max_length=64, index=True)


class PilotRow(Base, table=True):
    """A pilot, by its stamp; `vos_json` is a list, empty = all that the queue allows."""

    __tablename__ = "pilots"
    __table_args__ = (Index("ix_pilots_queue", "site", "ce", "queue"),)
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
    registered: datetime = Field(sa_column=_time())
    registered_by: str
    last_seen: datetime | None = Field(default=None, sa_column=_time(nullable=True))
    ends: datetime | None = Field(default=None, sa_column=_time(nullable=True))
    ended: datetime | None = Field(default=None, sa_column=_time(nullable=True))


class SlotRow(Base, table=True):
    """A slot as its pilot last reported it."""

    __tablename__ = "slots"
    pilot_stamp: str = Field(primary_key=True)
    name: str = Field(primary_key=True)
    state_json: str = Field(sa_column=Column(Text, nullable=False))


class UsageRow(Base, table=True):
    """What an owner has used: core seconds, decayed up to `updated`."""

    __tablename__ = "usage"
    vo: str = Field(primary_key=True)
    group: str = Field(primary_key=True)
    owner: str = Field(primary_key=True)
    core_s: float
    updated: datetime = Field(sa_column=_time())


class RequestRow(Base, table=True):
    """A mutating request that was answered: repeated by the same caller it gets the same answer."""

    __tablename__ = "requests"
    caller: str = Field(primary_key=True)
    request_id: str = Field(primary_key=True, max_length=64)
    method: str
    digest: str = Field(max_length=64)
    response: bytes = Field(sa_column=Column(LargeBinary, nullable=False))
    answered: datetime = Field(sa_column=_time(index=True))


class ServerLifeRow(Base, table=True):
    """When a server was last alive; time without any server extends the leases."""

    __tablename__ = "server_life"
    id: int = Field(primary_key=True)
    last_alive: datetime = Field(sa_column=_time())
