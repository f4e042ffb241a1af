"""Changes of jobs by owners and operators, why one is refused, and a job's state as a sentence.

A refusal is a value with the reason, for people. A job that the caller may not see is treated as missing.
"""

from __future__ import annotations

from enum import StrEnum

from pilotage_server.core.identity import Identity
from pilotage_server.core.jobs.record import JobRecord, location_name, router_of
from pilotage_server.core.jobs.states import FINAL, TRANSITIONS, JobCause, JobState


class JobChange(StrEnum):
    """A change that a caller asks for."""

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


def may_change(identity: Identity, owner: str, vo: str) -> bool:
    """Return whether the caller may see and change what belongs to this owner of this VO."""
    return identity.sees_everything or (identity.owner == owner and identity.vo == vo)


def refusal_of(job: JobRecord, change: JobChange, max_releases: int | None = None) -> str:
    """Return why the change is refused; "" = it is allowed. `max_releases` None = without limit."""
    if change is JobChange.RESCHEDULE and job.is_race_copy:
        return f"job {job.id} is a copy of job {job.race}; reschedule that one"
    if (job.state, CAUSES[change]) not in TRANSITIONS:
        already = "already " if job.state is _ALREADY[change] else ""
        if job.state is JobState.BLOCKED:
            return f"job {job.id} is BLOCKED; what its parents do frees it, see `pilotage why {job.id}`"
        if change is JobChange.RELEASE and job.state in FINAL:
            return (
                f"job {job.id} is {job.state}; it cannot be released, but `pilotage reschedule {job.id}` runs it again"
            )
        return f"job {job.id} is {already}{job.state}; it cannot be {CAUSES[change]}"
    if change is JobChange.RELEASE and max_releases is not None and job.holds > max_releases:
        return f"job {job.id} stays {job.state}: it has been released {max_releases} times, as often as any job may be"
    return ""


_TEXTS = {
    JobState.RECEIVED: "It has just been submitted",
    JobState.WAITING: "It waits",
    JobState.MATCHED: "It is matched to {where} and has not started yet",
    JobState.RUNNING: "It runs on {where}",
    JobState.SUSPENDED: "It is suspended on {where}",
    JobState.COMPLETING: "It has ended on {where} and its output is on the way",
    JobState.DONE: "It is done; it ran on {where}",
    JobState.FAILED: "It failed on {where}",
    JobState.HELD: "It is held until it is released",
    JobState.REMOVED: "It was removed",
    JobState.RACING: "Its own run on {where} has failed, and copies of it race on",
    JobState.BLOCKED: "It is blocked until its parents have done what it waits for",
}

_ROUTED = {
    JobState.MATCHED: "It goes as a copy by {where}, and the copy has not started yet",
    JobState.RUNNING: "It runs as a copy by {where}",
    JobState.SUSPENDED: "It is suspended, as a copy by {where}",
    JobState.COMPLETING: "Its copy by {where} has ended, and its output is on the way",
    JobState.DONE: "It is done; it ran as a copy by {where}",
    JobState.FAILED: "It failed as a copy by {where}",
}
"""Texts for jobs whose last attempt was a job router's."""

_DELAYED = "It waits until {until}"
_RESTORED = f"{_DELAYED}: a backup was restored, and an attempt of the lost time may be alive"
_FENCED = "It waits for the end of its last attempt, which was taken from {where}, at the latest at {until}"
_ROUTED_FENCED = "It waits until job router {router} reports the end of its copy by {where}"


def summary(job: JobRecord) -> str:
    """Return where the job is or how it ended, as one sentence."""
    router = router_of(job)
    until = f"{job.lease_until:%Y-%m-%d %H:%M:%S} UTC" if job.lease_until else ""
    text = _text(job, router).format(where=_location(job, router), until=until, router=router)
    return f"{text}: {job.reason}." if job.reason else f"{text}."


def _text(job: JobRecord, router: str) -> str:
    if job.is_delayed:
        return _DELAYED if job.reason else _RESTORED  # a retry has a reason
    if job.state is JobState.WAITING and job.is_fenced:
        return _ROUTED_FENCED if router else _FENCED
    return _ROUTED.get(job.state, _TEXTS[job.state]) if router else _TEXTS[job.state]


def _location(job: JobRecord, router: str) -> str:
    if router and job.queue is not None:
        node = f" on {job.node}" if job.node else ""
        return f"route {job.slot} to {location_name(job.queue)}{node}, attempt {job.attempt}"
    slot = f"{job.slot} of {job.node}" if job.node else job.slot
    return f"{slot} at {job.queue}, attempt {job.attempt}" if job.queue else "no slot"
