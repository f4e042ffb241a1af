"""Jobs and their events as values of the Python API, with the JSON keys that scripts depend on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

from google.protobuf.message import Message

from pilotage.rpc.wire import time_from_wire
from pilotage.v1 import job_service_pb2, jobs_pb2

FINAL_STATES = frozenset({"DONE", "FAILED", "REMOVED"})

STATES = tuple(name.removeprefix("JOB_STATE_") for name, number in jobs_pb2.JobState.items() if number)
"""The states of jobs."""

LIVE_STATES = tuple(state for state in STATES if state not in FINAL_STATES)
"""The states of jobs that have not ended."""


@dataclass(slots=True)
class JobCount:
    """Jobs that were found, in the order of ids, and their numbers by owner (VO/OWNER) and by state.

    `more` = there are more, which are not counted.
    """

    ids: list[int] = field(default_factory=list)
    owners: Counter[str] = field(default_factory=Counter)
    states: Counter[str] = field(default_factory=Counter)
    more: bool = False


_NOT_PINNED = frozenset({"name", "signal", "hold_code", "hold_subcode", "description_id"})


@dataclass(frozen=True, slots=True)
class JobUsage:
    """What an attempt has used, so far if it runs: cores, GPUs, times in seconds, peaks in MiB; None = unknown.

    `wall_s` excludes suspended time.
    """

    attempt: int
    cpus: int
    gpus: int
    wall_s: float
    suspended_s: float
    user_cpu_s: float
    system_cpu_s: float
    peak_memory_mib: int | None
    peak_disk_mib: int | None


@dataclass(frozen=True, slots=True)
class JobStatus:
    """The present state of a job; unknown fields are empty texts or None.

    `cluster` is the id of the first job of its cluster, `process` its index there. Jobs with one `description_id`
    have the same description. `ignored` are statements of its job file that are not done, as its owner allowed.
    `usage` is that of the last attempt. `futile` = it is blocked, and cannot run unless a parent is rescheduled.
    `pool_sites` are the sites with queues that satisfy its requirements, if these are few.
    """

    id: int
    state: str
    reason: str
    owner: str
    vo: str
    pool: str
    site: str
    ce: str
    queue: str
    node: str
    slot: str
    attempt: int
    exit_code: int | None
    submitted: datetime | None
    started: datetime | None
    ended: datetime | None
    name: str = ""
    cluster: int = 0
    process: int = 0
    signal: int | None = None
    hold_code: int | None = None
    hold_subcode: int | None = None
    description_id: int = 0
    ignored: tuple[str, ...] = ()
    usage: JobUsage | None = None
    futile: bool = False
    pool_sites: tuple[str, ...] = ()

    @property
    def is_final(self) -> bool:
        """Whether the job has ended, with or without success."""
        return self.state in FINAL_STATES

    def as_json(self) -> dict[str, Any]:
        """Return the documented keys; times as RFC 3339, missing values as None."""
        return {key: _plain(value) for key, value in asdict(self).items() if key not in _NOT_PINNED}


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, tuple):
        return list(value)
    return None if value == "" else value


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """A cluster, or a workflow, with the numbers of its jobs by state.

    `id` is that of its first job, `jobs` the number of submitted jobs, `name` that of one of them, with its macros; of
    a workflow its own.
    """

    id: int
    name: str
    owner: str
    vo: str
    group: str
    jobs: int
    submitted: datetime | None
    states: Mapping[str, int]
    workflow: bool = False

    @property
    def selection(self) -> str:
        """The name by which commands select it: "12", or "w12"."""
        return f"w{self.id}" if self.workflow else str(self.id)

    @property
    def is_final(self) -> bool:
        """Whether all jobs have ended."""
        return FINAL_STATES.issuperset(self.states)

    def as_json(self) -> dict[str, Any]:
        """Return the documented keys; `states` has the states that some job is in."""
        return {key: _plain(value) for key, value in asdict(self).items()}


@dataclass(frozen=True, slots=True)
class FoundJobs:
    """The jobs of selections, each once, in the order of the selections.

    `clusters` are the clusters and workflows that are selected as a whole, `others` the jobs that are in none of these.
    """

    ids: list[int]
    clusters: list[ClusterStatus]
    others: list[int]


@dataclass(frozen=True, slots=True)
class JobAttempt:
    """One attempt of a job: where it ran and how it ended; unknown fields are empty texts or None.

    `outcome` "" = it has not ended.
    """

    job_id: int
    attempt: int
    outcome: str
    reason: str
    exit_code: int | None
    signal: int | None
    site: str
    ce: str
    queue: str
    node: str
    slot: str
    pilot_stamp: str
    matched: datetime | None
    started: datetime | None
    ended: datetime | None
    usage: JobUsage

    def as_json(self) -> dict[str, Any]:
        """Return the documented keys, without the job's id; times as RFC 3339, missing values as None."""
        return {key: _plain(value) for key, value in asdict(self).items() if key != "job_id"}


@dataclass(frozen=True, slots=True)
class JobFile:
    """An output file of a job: its path in the job's folder, SHA-256, and size in bytes.

    `truncated` = the pilot cut it at the allowed size. `content` None = it is read by a call of its own.
    """

    name: str
    checksum: str = ""
    size: int = 0
    truncated: bool = False
    content: bytes | None = None


@dataclass(frozen=True, slots=True)
class JobOutput:
    """The output files of an attempt of a job; `attempt` 0 = none has ended.

    `partial` = how the attempt was stopped, so that its files are not whole; "" = its payload ended by itself.
    """

    job_id: int
    attempt: int
    files: tuple[JobFile, ...]
    partial: str

    def __getitem__(self, name: str) -> JobFile:
        """Return the file with this name; raises KeyError."""
        for file in self.files:
            if file.name == name:
                return file
        raise KeyError(name)


@dataclass(frozen=True, slots=True)
class OutputPart:
    """A part of a followed stream: what an attempt wrote at `offset`; `attempt` 0 = none runs.

    What lies between two parts was skipped. `content` empty = it only shows that the call is alive. `partial` = how the
    attempt was stopped, with its last part. `over` = nothing more comes.
    """

    attempt: int = 0
    offset: int = 0
    content: bytes = b""
    partial: str = ""
    over: bool = False


@dataclass(frozen=True, slots=True)
class JobEvent:
    """One transition of a job."""

    position: int
    job_id: int
    time: datetime | None
    before: str
    after: str
    cause: str
    reason: str
    attempt: int
    actor: str

    def as_json(self) -> dict[str, Any]:
        """Return the documented keys."""
        return {
            "position": self.position,
            "job": self.job_id,
            "time": _plain(self.time),
            "from": _plain(self.before),
            "to": self.after,
            "cause": self.cause,
            "reason": _plain(self.reason),
            "attempt": self.attempt,
            "actor": self.actor,
        }


def iso(time: datetime | None) -> str | None:
    """Return a time as RFC 3339; None stays None."""
    return time.isoformat() if time else None


def time_of(message: Message, field: str) -> datetime | None:
    """Return the time in a message's field; None = not set."""
    return time_from_wire(getattr(message, field)) if message.HasField(field) else None


def state_name(state: jobs_pb2.JobState.ValueType) -> str:
    """Return a state's name without the protocol's prefix; empty for unspecified."""
    name = jobs_pb2.JobState.Name(state).removeprefix("JOB_STATE_")
    return "" if name == "UNSPECIFIED" else name


def job_status(job: jobs_pb2.Job) -> JobStatus:
    """Convert a job from the wire."""
    return JobStatus(
        id=job.id,
        state=state_name(job.state),
        reason=job.reason,
        owner=job.owner,
        vo=job.vo,
        pool=job.pool,
        site=job.queue.site,
        ce=job.queue.ce,
        queue=job.queue.queue,
        node=job.node,
        slot=job.slot,
        attempt=job.attempt,
        exit_code=job.exit_code if job.HasField("exit_code") else None,
        submitted=time_of(job, "submitted"),
        started=time_of(job, "started"),
        ended=time_of(job, "ended"),
        name=job.name,
        cluster=job.cluster,
        process=job.process,
        signal=job.signal if job.HasField("signal") else None,
        hold_code=job.hold_code if job.HasField("hold_code") else None,
        hold_subcode=job.hold_subcode if job.HasField("hold_subcode") else None,
        description_id=job.description_id,
        ignored=tuple(job.ignored),
        usage=_job_usage(job.usage) if job.HasField("usage") else None,
        futile=job.futile,
        pool_sites=tuple(job.pool_sites),
    )


def _job_usage(usage: jobs_pb2.AttemptUsage) -> JobUsage:
    return JobUsage(
        attempt=usage.attempt,
        cpus=usage.cpus,
        gpus=usage.gpus,
        wall_s=round(usage.wall_s, 3),
        suspended_s=round(usage.suspended_s, 3),
        user_cpu_s=round(max(0.0, usage.cpu_s - usage.system_cpu_s), 3),
        system_cpu_s=round(usage.system_cpu_s, 3),
        peak_memory_mib=usage.peak_memory_mib or None,
        peak_disk_mib=usage.peak_disk_mib or None,
    )


def job_attempt(attempt: jobs_pb2.Attempt) -> JobAttempt:
    """Convert an attempt from the wire."""
    return JobAttempt(
        job_id=attempt.job_id,
        attempt=attempt.attempt,
        outcome=attempt.outcome,
        reason=attempt.reason,
        exit_code=attempt.exit_code if attempt.HasField("exit_code") else None,
        signal=attempt.signal if attempt.HasField("signal") else None,
        site=attempt.queue.site,
        ce=attempt.queue.ce,
        queue=attempt.queue.queue,
        node=attempt.node,
        slot=attempt.slot,
        pilot_stamp=attempt.pilot_stamp,
        matched=time_of(attempt, "matched"),
        started=time_of(attempt, "started"),
        ended=time_of(attempt, "ended"),
        usage=_job_usage(attempt.usage),
    )


def cluster_status(cluster: jobs_pb2.JobCluster) -> ClusterStatus:
    """Convert a cluster from the wire."""
    return ClusterStatus(
        id=cluster.id,
        name=cluster.name,
        owner=cluster.owner,
        vo=cluster.vo,
        group=cluster.group,
        jobs=cluster.jobs,
        submitted=time_of(cluster, "submitted"),
        states={state_name(count.state): count.jobs for count in cluster.counts},
        workflow=cluster.workflow,
    )


def job_event(event: jobs_pb2.JobEvent) -> JobEvent:
    """Convert an event from the wire."""
    return JobEvent(
        position=event.position,
        job_id=event.job_id,
        time=time_of(event, "time"),
        before=state_name(getattr(event, "from")),
        after=state_name(event.to),
        cause=event.cause,
        reason=event.reason,
        attempt=event.attempt,
        actor=event.actor,
    )


def job_file(file: jobs_pb2.OutputFile) -> JobFile:
    """Convert an output file from the wire."""
    content = file.content if file.HasField("content") else None
    return JobFile(file.name, file.checksum, file.size, file.truncated, content)


def output_part(part: job_service_pb2.FollowOutputResponse) -> OutputPart:
    """Convert a part of a stream from the wire."""
    return OutputPart(part.attempt, part.offset, part.content, part.partial, part.over)
