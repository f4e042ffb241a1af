"""Jobs and their events as values of the Python API, with the JSON keys that scripts depend on."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from google.protobuf.message import Message

from pilotage.rpc.wire import time_from_wire
from pilotage.v1 import jobs_pb2

FINAL_STATES = frozenset({"DONE", "FAILED", "REMOVED"})

_NOT_PINNED = frozenset({"name", "cluster", "process"})


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

    `cluster` is the id of the first job of its array, `process` its index in the array. `usage` is that of the last
    attempt.
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
    usage: JobUsage | None = None

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
    return None if value == "" else value


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
        usage=_job_usage(job.usage) if job.HasField("usage") else None,
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
