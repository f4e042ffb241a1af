"""All tables of the database (some are in `operator_tables`), and the conditions of partial indexes.

Rules
-----
Rows are built from valid domain values only and never leave `storage`. Times are aware and in UTC. Amounts: cores,
MiB, GPUs. Texts named `*_json` hold canonical JSON.

Queries use the exact texts of the conditions, so that planners see that an index applies. A database evaluates a
condition again whenever one of its columns is written: so few conditions contain columns that every transition of a
job changes, and these begin with the cheap part.
"""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import BigInteger, Boolean, Column, Float, Index, Integer, LargeBinary, String, Text, false, text
from sqlmodel import Field

from pilotage_server.storage.database.columns import (
    NEVER_REUSED,
    Base,
    BigId,
    id_column,
    no_text,
    partial_index,
    time_column,
    zero,
)
from pilotage_server.storage.database.columns import UtcDateTime as UtcDateTime
from pilotage_server.storage.database.columns import metadata as metadata
from pilotage_server.storage.database.operator_tables import AgentRow as AgentRow
from pilotage_server.storage.database.operator_tables import AuditRow as AuditRow
from pilotage_server.storage.database.operator_tables import DowntimeRow as DowntimeRow
from pilotage_server.storage.database.operator_tables import JobCountRow as JobCountRow
from pilotage_server.storage.database.operator_tables import PilotLogRow as PilotLogRow
from pilotage_server.storage.database.operator_tables import TurnRow as TurnRow


class UsageRow(Base, table=True):
    """The use of an account: core seconds, decayed up to `updated`."""

    __tablename__ = "usage"
    vo: str = Field(primary_key=True)
    group: str = Field(primary_key=True)
    owner: str = Field(primary_key=True)
    core_s: float
    updated: datetime = Field(sa_column=time_column())


class DailyUsageRow(Base, table=True):
    """What attempts of an owner used that ended at a site on a day in UTC; `day` as 2026-11-26.

    `group` is the one that is charged.
    """

    __tablename__ = "daily_usage"
    day: str = Field(primary_key=True)
    vo: str = Field(primary_key=True)
    group: str = Field(primary_key=True)
    owner: str = Field(primary_key=True)
    site: str = Field(primary_key=True)
    done: int = Field(sa_column=Column(BigInteger, nullable=False))
    failed: int = Field(sa_column=Column(BigInteger, nullable=False))
    interrupted: int = Field(sa_column=Column(BigInteger, nullable=False))
    done_core_s: float
    failed_core_s: float
    interrupted_core_s: float
    cpu_s: float
    gpu_s: float


class PriorityFactorRow(Base, table=True):
    """A priority factor that an operator has set; other accounts have that of the settings."""

    __tablename__ = "priority_factors"
    vo: str = Field(primary_key=True)
    group: str = Field(primary_key=True)
    owner: str = Field(primary_key=True)
    factor: float


class GroupQuotaRow(Base, table=True):
    """A quota that an operator has set, in one of the units of `pilotage.accounts`."""

    __tablename__ = "group_quotas"
    vo: str = Field(primary_key=True)
    group: str = Field(primary_key=True)
    amount: float
    unit: str


class RequestRow(Base, table=True):
    """An answered request: when the same caller repeats it, it gets the same answer."""

    __tablename__ = "requests"
    caller: str = Field(primary_key=True)
    request_id: str = Field(primary_key=True, max_length=64)
    method: str
    digest: str = Field(max_length=64)
    response: bytes = Field(sa_column=Column(LargeBinary, nullable=False))
    answered: datetime = Field(sa_column=time_column(index=True))


class ServerLifeRow(Base, table=True):
    """The time when a server was last alive; a time without servers extends the leases."""

    __tablename__ = "server_life"
    id: int = Field(primary_key=True)
    last_alive: datetime = Field(sa_column=time_column())


class InstallationRow(Base, table=True):
    """What belongs together: this database, its schema, its incarnation, the file store and the signing keys.

    There is one row. Servers of all releases read `schema` and `incarnation` in every write transaction, so no
    migration changes these two columns. `place` = where the database lies; a backup has another one. `keys_json` = the
    ids of the signing keys with the times from which they sign.
    """

    __tablename__ = "installation"
    id: int = Field(primary_key=True)
    database_id: str
    schema_name: str
    incarnation: int
    place: str = Field(sa_column=Column(Text, nullable=False))
    store: str
    keys_json: str = Field(sa_column=Column(Text, nullable=False))


class IncarnationRow(Base, table=True):
    """An incarnation after a restore: the highest numbers of the backup, and those above which it goes on."""

    __tablename__ = "incarnations"
    number: int = Field(sa_column=Column(Integer, primary_key=True, autoincrement=False))
    began: datetime = Field(sa_column=time_column())
    backup_job: int = Field(sa_column=Column(BigId, nullable=False))
    backup_position: int = Field(sa_column=Column(BigId, nullable=False))
    backup_attempt: int = Field(sa_column=Column(Integer, nullable=False))
    base_job: int = Field(sa_column=Column(BigId, nullable=False))
    base_position: int = Field(sa_column=Column(BigId, nullable=False))
    base_attempt: int = Field(sa_column=Column(Integer, nullable=False))


class TreeRow(Base, table=True):
    """One version of the resource tree, as uploaded; the highest version is the active one."""

    __tablename__ = "trees"
    version: int = Field(primary_key=True)
    text: str = Field(sa_column=Column(Text, nullable=False))
    format: str
    created: datetime = Field(sa_column=time_column())
    created_by: str


class BanRow(Base, table=True):
    """A banned site, CE or queue; `ce` and `queue` empty = all below; `until` None = until it is removed."""

    __tablename__ = "bans"
    id: int | None = Field(default=None, sa_column=id_column())
    site: str
    ce: str
    queue: str
    reason: str
    by: str
    since: datetime = Field(sa_column=time_column())
    until: datetime | None = Field(default=None, sa_column=time_column(nullable=True))


class RevocationRow(Base, table=True):
    """Revoked tokens; `subject` = the id of a token, an owner, or the named pilots, by `kind`."""

    __tablename__ = "revocations"
    id: int | None = Field(default=None, sa_column=id_column())
    kind: str
    subject: str
    issuer: str
    owner: str
    vo: str
    reason: str
    by: str
    made: datetime = Field(sa_column=time_column())
    expires: datetime = Field(sa_column=time_column(index=True))


class PoolRow(Base, table=True):
    """A submit pool: its canonical text, and the time and tree version of its mapping, from which its queues follow.

    `mapped` None = it has no mapping and is eligible nowhere. Each later tree maps all pools with a mapping again when
    it is created; the rows do not change for that, because writing 10,000 rows would block everything else.
    `idle_since` = when the cleanup first saw it without a live job; the next job sets it to None, so that no other job
    costs a write.
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


LIVE_JOB = "ended IS NULL"
"""Jobs that are not in a final state; they keep their pool and their task queue alive."""

WAITING_JOB = "state = 'WAITING' AND lease_until IS NULL"
"""Jobs that may be matched: they wait and are not fenced."""

TIMED_JOB = "lease_until IS NOT NULL"
"""Jobs with a lease or a fence."""

LEASED_JOB = "lease_until IS NOT NULL AND state IN ('MATCHED', 'RUNNING', 'SUSPENDED', 'COMPLETING')"
"""Jobs with a lease; queries use the index on TIMED_JOB."""

FENCED_JOB = "lease_until IS NOT NULL AND state IN ('WAITING', 'BLOCKED', 'HELD', 'REMOVED', 'DONE', 'FAILED')"
"""Fenced jobs: a pilot that they were taken from may run them until then. Queries use the index on TIMED_JOB."""

HELD_JOB = "state = 'HELD'"
"""Held jobs."""

WATCHED_JOB = "watch > 0 AND ended IS NULL"
"""Jobs whose policies must be evaluated."""

RACING_JOB = "race > 0"
"""Jobs that take part in a race, or took part as copies."""

LIVE_REPEATABLE_JOB = "race_set > 0 AND ended IS NULL"
"""Live jobs that may be repeated."""

OPEN_RACE = "ended IS NULL"
"""Open races."""

ENDED_JOB = "ended IS NOT NULL"
"""Jobs in a final state."""

MET_BLOCK = "unmet = 0"
"""Blocks whose jobs are being freed."""

MANY_PARENTS = "first < last"
"""Sources with several parents."""

UNREPORTED = "NOT reported"
"""Attempts whose end the pilot has not reported."""

TAKEN = "reported IS FALSE AND ended IS NOT NULL"
"""Attempts that were taken from a pilot which has not reported their end.

The condition differs from NOT reported, so that planners do not use the index of all unreported attempts here.
"""

CREDENTIAL_ENDS = "credential_ends IS NOT NULL"
"""Pilots whose credentials end before their tokens do."""

OPEN_SUBSCRIPTION = "closed IS NULL"
"""Subscriptions that may still notify."""

CLOSED_SUBSCRIPTION = "closed IS NOT NULL"
"""Subscriptions that notify of nothing more."""

UNDELIVERED = "due IS NOT NULL"
"""Notifications that are to be delivered."""

HAS_QUEUE_SET = "queue_set_json <> ''"
"""Pilots that were registered for a set of queues."""

EMPTY = "came_back_empty"
"""Pilots that never ran a job and ended without work, without time left, or by their batch system."""


class TaskQueueRow(Base, table=True):
    """A task queue: all waiting jobs that no slot can distinguish; its text is canonical, its key a hash."""

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
    """A significant attribute, by its folded name: a slot's policy refers to it, so task queues differ by it."""

    __tablename__ = "significant_attributes"
    name: str = Field(primary_key=True)
    since: datetime = Field(sa_column=time_column())


class TemplateRow(Base, table=True):
    """A submitted description with its owner, shared by all jobs of an array; it never changes.

    `jobs` = the number of these jobs; the template is removed with the last one. `traceparent` = the trace context of
    their submission, "" = unknown.
    """

    __tablename__ = "templates"
    __table_args__ = (NEVER_REUSED,)
    id: int | None = Field(default=None, sa_column=id_column())
    owner: str
    vo: str
    group: str
    description_json: str = Field(sa_column=Column(Text, nullable=False))
    jobs: int = Field(default=0, sa_column=zero(Integer))
    traceparent: str = Field(default="", sa_column=no_text())


class JobRow(Base, table=True):
    """The present state of a job; its history is in its events.

    `lease_until` of a job without a lease = the end of its fence: the pilot of its last attempt may run it until then.
    `watch` = when its policies must be evaluated, `exit_check` = which ends its exit policy decides about, 0 = none.
    `race` = the original of the race that it takes part in, `race_set` = the set of repeatable jobs that it belongs to,
    0 = none. `cluster_jobs` = the number of jobs that were submitted with its cluster; their ids are those from
    `cluster` on. A restore sets `fenced_until` and `attempt_floor`: no match before that time, no attempt number up to
    that one. A delayed retry sets `fenced_until` too.
    `awaited` = the event for which a dependency watches, 0 = none. `blocked_by` = the block of its unmet dependencies,
    0 = none.
    """

    __tablename__ = "jobs"
    __table_args__ = (
        partial_index("ix_jobs_waiting", "task_queue_id", text("priority DESC"), "id", where=WAITING_JOB),
        partial_index("ix_jobs_timed", "lease_until", where=TIMED_JOB),
        partial_index("ix_jobs_live", "task_queue_id", "template_id", where=LIVE_JOB),
        partial_index("ix_jobs_live_owner", "vo", "owner", "id", where=LIVE_JOB),
        partial_index("ix_jobs_watched", "watch", "id", where=WATCHED_JOB),
        partial_index("ix_jobs_ended", "ended", where=ENDED_JOB),
        partial_index("ix_jobs_held", "site", "id", where=HELD_JOB),
        partial_index("ix_jobs_race", "race", where=RACING_JOB),
        partial_index("ix_jobs_race_set", "race_set", "id", where=LIVE_REPEATABLE_JOB),
        Index("ix_jobs_owner_id", "owner", "id"),
        NEVER_REUSED,
    )
    id: int | None = Field(default=None, sa_column=id_column())
    template_id: int = Field(sa_column=Column(BigId, nullable=False))
    cluster: int = Field(sa_column=Column(BigId, nullable=False))
    process: int
    cluster_jobs: int = Field(default=1, sa_column=Column(Integer, nullable=False, server_default="1"))
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
    starts: int = Field(default=0, sa_column=zero(Integer))
    wall_clock_s: float = Field(default=0.0, sa_column=zero(Float))
    suspended_s: float = Field(default=0.0, sa_column=zero(Float))
    hold_code: int | None = None
    hold_subcode: int | None = None
    hold_history_json: str = Field(default="", sa_column=Column(Text, nullable=False, server_default=""))
    watch: int = Field(default=0, sa_column=zero(Integer))
    race: int = Field(default=0, sa_column=zero(BigId))
    race_set: int = Field(default=0, sa_column=zero(BigId))
    max_starts: int = Field(default=0, sa_column=zero(Integer))
    fenced_until: datetime | None = Field(default=None, sa_column=time_column(nullable=True))
    attempt_floor: int = Field(default=0, sa_column=zero(Integer))
    exit_check: int = Field(default=0, sa_column=zero(Integer))
    completions: int = Field(default=0, sa_column=zero(Integer))
    awaited: int = Field(default=0, sa_column=zero(Integer))
    blocked_by: int = Field(default=0, sa_column=zero(BigId))


class BlockRow(Base, table=True):
    """The jobs of one description that wait for their parents; `id` = the first of these jobs, `last` = the last one.

    `submission` = the first job of their submission. `unmet` of the `parents` have not done yet what is asked of them;
    0 = the jobs from `next_job` on are being freed.
    """

    __tablename__ = "blocks"
    __table_args__ = (partial_index("ix_blocks_met", "id", where=MET_BLOCK),)
    id: int = Field(sa_column=Column(BigId, primary_key=True, autoincrement=False))
    last: int = Field(sa_column=Column(BigId, nullable=False))
    submission: int = Field(sa_column=Column(BigId, nullable=False))
    parents: int
    unmet: int
    next_job: int = Field(sa_column=Column(BigId, nullable=False))


class DependencySourceRow(Base, table=True):
    """What a submission waits for: parents that have not done yet what its `kind` asks.

    The parents are the jobs from `first` to `last`. `watched` = the one whose next event decides. `futile` = they
    cannot do it as things stand. The row goes away once all parents have done it.
    """

    __tablename__ = "dependency_sources"
    __table_args__ = (
        partial_index("ix_dependency_sources_range", "first", "last", where=MANY_PARENTS),
        NEVER_REUSED,
    )
    id: int | None = Field(default=None, sa_column=id_column())
    submission: int = Field(sa_column=Column(BigId, nullable=False, index=True))
    kind: str
    first: int = Field(sa_column=Column(BigId, nullable=False))
    last: int = Field(sa_column=Column(BigId, nullable=False))
    watched: int = Field(sa_column=Column(BigId, nullable=False, index=True))
    futile: bool = Field(default=False, sa_column=zero(Boolean))


class DependencyRow(Base, table=True):
    """One unmet dependency: a block waits for a source."""

    __tablename__ = "dependencies"
    source: int = Field(sa_column=Column(BigId, primary_key=True, autoincrement=False))
    block: int = Field(sa_column=Column(BigId, primary_key=True, autoincrement=False, index=True))


class ParentEventRow(Base, table=True):
    """A watched job has changed what it means for its children, and the dependencies on it must be examined."""

    __tablename__ = "parent_events"
    id: int | None = Field(default=None, sa_column=id_column())
    job_id: int = Field(sa_column=Column(BigId, nullable=False))


class WorkflowRow(Base, table=True):
    """A workflow: the jobs of one submission, from `id` to `last`. The row goes away with the last of them.

    `edges_json` = its graph; None = an earlier release has stored it, or the graph is too large.
    """

    __tablename__ = "workflows"
    __table_args__ = (Index("ix_workflows_owner", "owner", "id"),)
    id: int = Field(sa_column=Column(BigId, primary_key=True, autoincrement=False))
    last: int = Field(sa_column=Column(BigId, nullable=False))
    vo: str
    group: str
    owner: str
    name: str
    submitted: datetime = Field(sa_column=time_column())
    edges_json: str | None = Field(default=None, sa_column=Column(Text, nullable=True))


class SubscriptionRow(Base, table=True):
    """A subscription of the owner of the jobs from `first` to `last`; `core.jobs.notifications` explains the columns.

    `occasions_json` and `left_json` are lists. `host` = that of a URL, else the kind of the recipient in parentheses.
    """

    __tablename__ = "subscriptions"
    __table_args__ = (
        partial_index("ix_subscriptions_open", "vo", "owner", where=OPEN_SUBSCRIPTION),
        partial_index("ix_subscriptions_closed", "closed", where=CLOSED_SUBSCRIPTION),
        Index("ix_subscriptions_owner", "owner", "id"),
        NEVER_REUSED,
    )
    id: int | None = Field(default=None, sa_column=id_column())
    vo: str
    owner: str
    first: int = Field(sa_column=Column(BigId, nullable=False))
    last: int = Field(sa_column=Column(BigId, nullable=False))
    kind: str
    address: str = Field(sa_column=Column(Text, nullable=False))
    host: str
    secret: str
    occasions_json: str
    left_json: str
    created: datetime = Field(sa_column=time_column())
    position: int = Field(sa_column=Column(BigId, nullable=False))
    check_end: datetime | None = Field(default=None, sa_column=time_column(nullable=True))
    closed: datetime | None = Field(default=None, sa_column=time_column(nullable=True))


class NotificationRow(Base, table=True):
    """A notification of a subscription; `due` = the next try, or the end of the lease of the present one.

    `due` None = it is delivered, or given up.
    """

    __tablename__ = "notifications"
    __table_args__ = (partial_index("ix_notifications_due", "due", where=UNDELIVERED), NEVER_REUSED)
    id: int | None = Field(default=None, sa_column=id_column())
    subscription: int = Field(sa_column=Column(BigId, nullable=False, index=True))
    occasion: str
    body: str = Field(sa_column=Column(Text, nullable=False))
    made: datetime = Field(sa_column=time_column())
    due: datetime | None = Field(default=None, sa_column=time_column(nullable=True))
    leased: bool = False
    tries: int = 0
    error: str = Field(default="", sa_column=Column(Text, nullable=False))
    delivered: datetime | None = Field(default=None, sa_column=time_column(nullable=True))


class NotificationCursorRow(Base, table=True):
    """The position up to which events have been examined for all subscriptions; there is one row, or none yet."""

    __tablename__ = "notification_cursor"
    id: int = Field(primary_key=True)
    position: int = Field(sa_column=Column(BigId, nullable=False))


class SubmissionPartRow(Base, table=True):
    """Jobs of an accepted submission that are not stored yet; `submission` = the id of its first job."""

    __tablename__ = "submission_parts"
    id: int | None = Field(default=None, sa_column=id_column())
    submission: int = Field(sa_column=Column(BigId, nullable=False, index=True))
    vo: str = Field(index=True)
    group: str
    owner: str
    jobs: int
    blocks_json: str = Field(sa_column=Column(Text, nullable=False))
    fenced_until: datetime | None = Field(default=None, sa_column=time_column(nullable=True))
    attempt_floor: int = Field(default=0, sa_column=zero(Integer))


class AttemptRow(Base, table=True):
    """One attempt of a job: pilot, outcome and use; `ended` None = it holds its lease.

    `reported` = its pilot has reported its end; until then the pilot may still run it. The `charged_…` columns name
    the account that is charged, and `weight` = the core seconds that it is charged for each second. `metered` = since
    when it is charged, None = not now. `trial` = it probes a throttled location. `plugged` = its payload has failed and
    keeps its slot for a while.
    """

    __tablename__ = "attempts"
    __table_args__ = (
        partial_index("ix_attempts_unreported", "pilot_stamp", "job_id", "attempt", where=UNREPORTED),
        partial_index("ix_attempts_taken", "pilot_stamp", "job_id", "attempt", where=TAKEN),
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
    weight: float = Field(default=0.0, sa_column=zero(Float))
    charged_vo: str = Field(default="", sa_column=no_text())
    charged_group: str = Field(default="", sa_column=no_text())
    charged_owner: str = Field(default="", sa_column=no_text())
    metered: datetime | None = Field(default=None, sa_column=time_column(nullable=True))
    trial: bool = Field(default=False, sa_column=zero(Boolean))
    plugged: bool = Field(default=False, sa_column=zero(Boolean))
    gpus: int = Field(default=0, sa_column=zero(Integer))
    system_cpu_s: float = Field(default=0.0, sa_column=zero(Float))
    peak_disk_mib: int = Field(default=0, sa_column=zero(BigInteger))


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


class PilotRow(Base, table=True):
    """A pilot, by its stamp; `vos_json` is a list, empty = all that the queue allows.

    `came_back_empty` = it has ended without ever running a job, and not by an order. `glidein_seen` = when its batch
    system last listed its glidein before the pilot arrived. `glidein_started` = when it was first listed as running
    then. `credential_ends` = when its tokens are refused, however long they are valid. `report_requested` = since when
    an operator waits for its slots, NULL = none waits; `report_answered` = when it last reported them to such a
    request. `queue_set_json` is a list of patterns, "" = it was registered for one queue. A pilot of a set has no
    `site`, `ce` and `queue` until it enrols. `release` = that of its program, "" = not known.
    """

    __tablename__ = "pilots"
    __table_args__ = (
        Index("ix_pilots_queue", "site", "ce", "queue", "registered"),
        Index("ix_pilots_empty", "ended", sqlite_where=text(EMPTY), postgresql_where=text(EMPTY)),
        partial_index("ix_pilots_credential_ends", "stamp", "credential_ends", where=CREDENTIAL_ENDS),
        partial_index("ix_pilots_queue_set", "queue_set_json", "registered", where=HAS_QUEUE_SET),
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
    glidein_started: datetime | None = Field(default=None, sa_column=time_column(nullable=True))
    nonce_hash: str = Field(default="", sa_column=Column(String, nullable=False, server_default=""))
    alarm: str = Field(default="", sa_column=Column(String, nullable=False, server_default=""))
    isolation: str = Field(default="", sa_column=Column(String, nullable=False, server_default=""))
    credential_ends: datetime | None = Field(default=None, sa_column=time_column(nullable=True))
    report_requested: datetime | None = Field(default=None, sa_column=time_column(nullable=True))
    report_answered: datetime | None = Field(default=None, sa_column=time_column(nullable=True))
    queue_set_json: str = Field(default="", sa_column=no_text())
    release: str = Field(default="", sa_column=no_text())


class SlotRow(Base, table=True):
    """A slot as its pilot last reported it; `ad` is its ClassAd without the values in `state_json`."""

    __tablename__ = "slots"
    pilot_stamp: str = Field(primary_key=True)
    name: str = Field(primary_key=True)
    state_json: str = Field(sa_column=Column(Text, nullable=False))
    ad: str = Field(default="", sa_column=Column(Text, nullable=False, server_default=""))


class NodeSettingsRow(Base, table=True):
    """The settings of a node by operators and agents; the version grows with every change."""

    __tablename__ = "node_settings"
    site: str = Field(primary_key=True)
    node: str = Field(primary_key=True)
    version: int
    settings_json: str = Field(sa_column=Column(Text, nullable=False))


class RaceSetRow(Base, table=True):
    """The repeatable jobs of one submission: `id` and `last_id` are those of the first and the last job."""

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
    """The last race of a job; `ended` None = it is open, `winner` 0 = none."""

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


class StoredFileRow(Base, table=True):
    """An uploaded file by checksum, one row for each owner: users can fetch only files that they have uploaded."""

    __tablename__ = "stored_files"
    __table_args__ = (Index("ix_stored_files_holder", "vo", "owner", "size"),)
    checksum: str = Field(primary_key=True, max_length=64)
    vo: str = Field(primary_key=True)
    owner: str = Field(primary_key=True)
    size: int = Field(sa_column=Column(BigId, nullable=False))
    stored: datetime = Field(sa_column=time_column(index=True))


class OutputFileRow(Base, table=True):
    """An output file of an attempt."""

    __tablename__ = "output_files"
    job_id: int = Field(sa_column=Column(BigId, primary_key=True, autoincrement=False))
    attempt: int = Field(primary_key=True)
    name: str = Field(primary_key=True)
    checksum: str = Field(max_length=64, index=True)
    size: int = Field(sa_column=Column(BigId, nullable=False))
    truncated: bool = False


class TailRow(Base, table=True):
    """The end of a stream of a running attempt, while somebody follows it; `posted` = its pilot has sent it."""

    __tablename__ = "tails"
    job_id: int = Field(sa_column=Column(BigId, primary_key=True, autoincrement=False))
    is_error: bool = Field(primary_key=True)
    attempt: int
    pilot_stamp: str
    wanted_until: datetime = Field(sa_column=time_column(index=True))
    posted: bool
    start: int = Field(sa_column=Column(BigId, nullable=False))
    content: bytes = Field(sa_column=Column(LargeBinary, nullable=False))


class InputFileRow(Base, table=True):
    """An input file of a template; files with a row here are not removed."""

    __tablename__ = "input_files"
    template_id: int = Field(sa_column=Column(BigId, primary_key=True, autoincrement=False))
    name: str = Field(primary_key=True)
    checksum: str = Field(max_length=64, index=True)


class CopyRow(Base, table=True):
    """A routed job that a router has made, or was about to make: an attempt of a job; kept as long as the job.

    `reference` = its id at the target, "" = not known. `attributes_json` = the attributes that the router's hooks have
    set, None = nothing.
    """

    __tablename__ = "copies"
    job_id: int = Field(sa_column=Column(BigId, primary_key=True, autoincrement=False))
    attempt: int = Field(primary_key=True)
    router: str
    route: str
    target: str
    reference: str = Field(sa_column=Column(Text, nullable=False))
    routed: datetime = Field(sa_column=time_column())
    attributes_json: str | None = Field(sa_column=Column(Text))


class RouterRow(Base, table=True):
    """The routes that a router has last published, as canonical JSON."""

    __tablename__ = "routers"
    name: str = Field(primary_key=True)
    told: datetime = Field(sa_column=time_column())
    routes_json: str = Field(sa_column=Column(Text, nullable=False))


class ThrottleRow(Base, table=True):
    """A throttled location: a black hole, or held or opened by an operator; `place` is the key of the location."""

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


class RunningCountRow(Base, table=True):
    """The number of jobs with a lease that a limit counts; `key` = canonical text of location, attribute and value."""

    __tablename__ = "running_counts"
    key: str = Field(primary_key=True)
    running: int
