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
    LIMIT_EXCEEDED = "limit exceeded"
    START_FAILED = "start failed"
    REFUSED_BY_JOB = "refused by job"
    EVICTED = "evicted"
    DECLINED = "declined"
    KILLED = "killed"
    OUTPUT_LOST = "output lost"


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
