"""Attempts of jobs: keys, outcomes, output files, and the results of leases and reports."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import NamedTuple


class AttemptKey(NamedTuple):
    """One attempt of one job."""

    job_id: int
    attempt: int

    def __str__(self) -> str:
        """Return "job.attempt"."""
        return f"{self.job_id}.{self.attempt}"


class TailStream(NamedTuple):
    """The standard output, or with `is_error` the standard error, of a running attempt that somebody follows."""

    job_id: int
    attempt: int
    is_error: bool = False

    @property
    def key(self) -> AttemptKey:
        """The attempt."""
        return AttemptKey(self.job_id, self.attempt)


class Outcome(StrEnum):
    """How an attempt ended on the pilot's side."""

    EXITED = "exited"
    """The payload ended by itself, with an exit code or by a signal."""
    LIMIT_EXCEEDED = "limit exceeded"
    """The payload was killed at a limit of its job or slot, such as memory or wall time."""
    START_FAILED = "start failed"
    """The node could not start the payload."""
    REFUSED_BY_JOB = "refused by job"
    """The payload cannot be started because of the job: no such program, a wrong file or image."""
    EVICTED = "evicted"
    """The payload had to leave its slot."""
    DECLINED = "declined"
    """The pilot returned the job before its start."""
    KILLED = "killed"
    """The pilot killed the payload, because its lease was lost or the server took the job away."""
    OUTPUT_LOST = "output lost"
    """The payload ended, and its output was lost before the server had it."""


@dataclass(frozen=True, slots=True)
class JobHold:
    """A slot's policy evicts a job and holds it: a reason for people, and the policy's own code."""

    reason: str
    subcode: int = 0


@dataclass(frozen=True, slots=True)
class ReportedOutput:
    """A file that an attempt left, as reported; `content` None = it was uploaded before; `truncated` = it was cut."""

    name: str
    checksum: str
    size: int
    content: bytes | None = None
    truncated: bool = False


class RenewedLease(NamedTuple):
    """A lease renewed for `lease`, counted from the sending of the heartbeat."""

    job_id: int
    attempt: int
    lease: timedelta

    @property
    def key(self) -> AttemptKey:
        """The attempt of the lease."""
        return AttemptKey(self.job_id, self.attempt)


class LostLease(NamedTuple):
    """An attempt that the pilot no longer holds, and why."""

    job_id: int
    attempt: int
    reason: str

    @property
    def key(self) -> AttemptKey:
        """The lost attempt."""
        return AttemptKey(self.job_id, self.attempt)


class ReportResult(NamedTuple):
    """The result of one report; `refusal` "" = it was recorded, now or by an earlier call."""

    job_id: int
    attempt: int
    refusal: str = ""

    @property
    def key(self) -> AttemptKey:
        """The attempt of the report."""
        return AttemptKey(self.job_id, self.attempt)

    @property
    def accepted(self) -> bool:
        """Whether it was recorded."""
        return not self.refusal
