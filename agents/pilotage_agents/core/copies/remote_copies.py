"""What another server says of a job there, for the copy that the job is.

Rules
-----
A job that ended with an exit code or by a signal has completed, also one that failed by it. One that failed otherwise
(its attempts were used up, its limits exceeded) is kept back for people to look at, as sending it again would come to
the same. What the server does not say is unknown.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Self

from pilotage_agents.router.route_edges import CopyState, CopyStatus

_STATES = {
    "RECEIVED": CopyState.IDLE,
    "WAITING": CopyState.IDLE,
    "MATCHED": CopyState.IDLE,
    "RUNNING": CopyState.RUNNING,
    "SUSPENDED": CopyState.SUSPENDED,
    "COMPLETING": CopyState.RUNNING,
    "DONE": CopyState.COMPLETED,
    "FAILED": CopyState.COMPLETED,
    "HELD": CopyState.HELD,
    "REMOVED": CopyState.GONE,
    "RACING": CopyState.RUNNING,
}


@dataclass(frozen=True, slots=True)
class RemoteJob:
    """A job of another server, as far as it matters; `state` is the protocol's word."""

    state: str
    reason: str
    place: str
    exit_code: int | None
    signal: int | None
    started: datetime | None
    ended: datetime | None
    wall_s: float


@dataclass(frozen=True, slots=True)
class JobReference:
    """What finds a copy: its name, and the id of the job that it is."""

    name: str
    job_id: int

    def __str__(self) -> str:
        """Return it as it is kept."""
        return f"{self.name} {self.job_id}"

    @classmethod
    def of(cls, text: str) -> Self | None:
        """Return what a text says; None = it is no such reference."""
        name, _, job_id = text.rpartition(" ")
        return cls(name, int(job_id)) if name and job_id.isdecimal() and len(job_id) < 19 else None


def remote_status(job: RemoteJob) -> CopyStatus:
    """Return where the copy is that a job there is."""
    state, reason = _STATES.get(job.state, CopyState.UNKNOWN), job.reason
    if state is CopyState.UNKNOWN:
        reason = f"{job.state} is no state that is known here"
    elif job.state == "FAILED" and job.exit_code is None and job.signal is None:
        state, reason = CopyState.HELD, f"it failed there: {job.reason}"
    return CopyStatus(
        state,
        reason,
        node=job.place,
        exit_code=job.exit_code,
        signal=job.signal,
        started=job.started,
        ended=job.ended,
        wall_s=job.wall_s,
    )
