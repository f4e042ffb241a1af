"""What the server says of jobs, as values that people and scripts hold on to (DESIGN §14)."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from google.protobuf.message import Message

from pilotage.v1 import job_service_pb2, jobs_pb2
from pilotage.wire import time_from_wire

FINAL_STATES = frozenset({"DONE", "FAILED", "REMOVED"})

_NOT_PINNED = frozenset({"name", "cluster", "process"})


@dataclass(frozen=True, slots=True)
class JobStatus:
    """The present state of a job; empty texts and None where there is nothing to say.

    `cluster` is the id of the first job of its array, `process` its place in it.
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

    @property
    def is_final(self) -> bool:
        """Whether it has ended, one way or the other."""
        return self.state in FINAL_STATES

    def as_json(self) -> dict[str, Any]:
        """Return the pinned keys; times as RFC 3339, what is absent as null."""
        return {key: _plain(value) for key, value in asdict(self).items() if key not in _NOT_PINNED}


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    return None if value == "" else value


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
        """Return the keys that scripts hold on to."""
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


@dataclass(frozen=True, slots=True)
class ChangeResult:
    """What a change did to one job; `refusal` empty = it was done."""

    job_id: int
    state: str
    refusal: str


@dataclass(frozen=True, slots=True)
class Submitted:
    """The ids of new jobs, in the order of their descriptions, and what their owner should know."""

    job_ids: tuple[int, ...]
    warnings: tuple[str, ...]


def iso(moment: datetime | None) -> str | None:
    """Return a time as scripts read it, RFC 3339; None for none."""
    return moment.isoformat() if moment else None


def time_of(message: Message, field: str) -> datetime | None:
    """Return the time in a message's field; None where it is not set."""
    return time_from_wire(getattr(message, field)) if message.HasField(field) else None


def state_name(state: jobs_pb2.JobState.ValueType) -> str:
    """Return a state's name without the protocol's prefix; empty for unspecified."""
    name = jobs_pb2.JobState.Name(state).removeprefix("JOB_STATE_")
    return "" if name == "UNSPECIFIED" else name


def job_status(job: jobs_pb2.Job) -> JobStatus:
    """Return the wire's job as a value."""
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
    )


def job_event(event: jobs_pb2.JobEvent) -> JobEvent:
    """Return the wire's event as a value."""
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


def change_result(result: job_service_pb2.JobChangeResult) -> ChangeResult:
    """Return the wire's result of a change as a value."""
    return ChangeResult(result.job_id, state_name(result.state), result.refusal)
