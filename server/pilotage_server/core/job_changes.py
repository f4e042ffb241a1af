"""What may be done to a job by whom: the wishes of owners and operators, and why one is refused.

Rules
-----
A refusal is a value with its reason, in words for the owner. A job that the caller may not see is answered as
one that is not there. What a change does to the record is in `job_steps`.
"""

from __future__ import annotations

from enum import StrEnum

from pilotage_server.core.identity import Identity
from pilotage_server.core.job_record import JobRecord
from pilotage_server.core.jobs import TRANSITIONS, JobCause, JobState


class JobChange(StrEnum):
    """What is to happen to jobs."""

    REMOVE = "remove"
    HOLD = "hold"
    RELEASE = "release"
    RESCHEDULE = "reschedule"


CAUSES: dict[JobChange, JobCause] = {
    JobChange.REMOVE: JobCause.REMOVED,
    JobChange.HOLD: JobCause.HELD,
    JobChange.RELEASE: JobCause.RELEASED,
    JobChange.RESCHEDULE: JobCause.RESCHEDULED,
}

_ALREADY: dict[JobChange, JobState] = {
    JobChange.REMOVE: JobState.REMOVED,
    JobChange.HOLD: JobState.HELD,
    JobChange.RELEASE: JobState.WAITING,
    JobChange.RESCHEDULE: JobState.WAITING,
}


def may_see(identity: Identity, owner: str, vo: str) -> bool:
    """Return whether the caller may see and change what belongs to this owner of this VO."""
    return identity.sees_everything or (identity.owner == owner and identity.vo == vo)


def may_be_shown(identity: Identity, owner: str, vo: str) -> bool:
    """Return whether the caller may see what belongs to this owner of this VO."""
    return identity.is_shown_everything or may_see(identity, owner, vo)


def refusal_of(job: JobRecord, change: JobChange, max_releases: int | None = None) -> str:
    """Return why the change cannot be made; empty = it can. `max_releases` None = a job is released without limit."""
    if change is JobChange.RESCHEDULE and job.is_copy:
        return f"job {job.id} is a copy of job {job.race}; reschedule that one"
    if (job.state, CAUSES[change]) not in TRANSITIONS:
        already = "already " if job.state is _ALREADY[change] else ""
        return f"job {job.id} is {already}{job.state}; it cannot be {CAUSES[change]}"
    if change is JobChange.RELEASE and max_releases is not None and job.holds > max_releases:
        return f"job {job.id} stays {job.state}: it has been released {max_releases} times, as often as any job may be"
    return ""
