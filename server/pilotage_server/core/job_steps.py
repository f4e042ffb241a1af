"""What one step makes of a job's record.

Rules
-----
The state comes from the table in `jobs`; here stand the fields that follow from it. Attempt numbers are never
taken back: a rescheduled job goes on counting. A job that somebody's wish takes from a pilot keeps the end of the
lease, for its attempt may live until then: it is matched to nobody before that, or before its pilot's word.
What is counted is counted on the server's clock, unless the caller knows better from a pilot; a rescheduled job
begins anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from pilotage_server.core.holds import NEVER_HELD, Hold, HoldCode
from pilotage_server.core.job_record import JobRecord
from pilotage_server.core.jobs import BY_WISH, FINAL, LEASED, JobCause, JobState, job_status, next_state

_NO_TIME = timedelta(0)


def changes_of_step(
    job: JobRecord, cause: JobCause, reason: str, now: datetime, decided: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the fields that the step gives a value, and these values.

    `decided` are fields that the caller decides. A value may be the one that the field has.

    Raises
    ------
    IllegalTransitionError
        The job's state has no such step.
    """
    state = next_state(job.state, cause)
    changes: dict[str, Any] = {"state": state, "reason": reason}
    if state in FINAL or job.ended is not None:
        changes["ended"] = now if state in FINAL else None
    if state not in LEASED:
        changes["lease_until"] = _lingers_until(job, cause, now)
    if cause in _NEXT_ATTEMPT:
        changes |= {"started": None, "exit_code": None, "signal": None}
    changes |= _counted(job, state, cause, now)
    if job.state is not state and (job.state is JobState.HELD or state is JobState.HELD):
        changes |= _hold(job, state, decided)
    if cause is JobCause.RESCHEDULED:
        changes |= _ANEW
    return {**changes, **decided}


_NEXT_ATTEMPT = frozenset({JobCause.MATCHED, JobCause.RESCHEDULED})
_ANEW: dict[str, Any] = {
    "spent_attempts": 0,
    "starts": 0,
    "wall_clock": _NO_TIME,
    "suspended": _NO_TIME,
    "hold_history": NEVER_HELD,
}


def _counted(job: JobRecord, state: JobState, cause: JobCause, now: datetime) -> dict[str, Any]:
    """Return what the step adds to the counters that HTCondor keeps of a job."""
    counted: dict[str, Any] = {}
    if job_status(state) != job_status(job.state):
        counted["state_since"] = now
    if cause is JobCause.STARTED or (cause is JobCause.ADOPTED and job.started is None):
        counted |= {"starts": job.starts + 1, "started": now}
    if job.state is JobState.SUSPENDED:
        counted["suspended"] = job.suspended + _since(job.state_since, now)
    if job.is_leased and state not in LEASED:
        counted["wall_clock"] = job.wall_clock + _since(job.started, now)
    return counted


def _since(began: datetime | None, now: datetime) -> timedelta:
    return _NO_TIME if began is None else max(_NO_TIME, now - began)


def _hold(job: JobRecord, state: JobState, decided: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a hold that begins or ends makes of the record."""
    if state is JobState.HELD:
        code = decided.get("hold_code", HoldCode.USER_REQUEST)
        return {"hold_code": int(code), "hold_subcode": 0, "hold_history": job.hold_history.begun(code)}
    over = Hold(job.hold_code or HoldCode.USER_REQUEST, job.hold_subcode or 0, job.reason)
    return {"hold_code": None, "hold_subcode": None, "hold_history": job.hold_history.lifted(over)}


def _lingers_until(job: JobRecord, cause: JobCause, now: datetime) -> datetime | None:
    """Return until when the job's last attempt may live after the step; None = it does not."""
    if job.is_leased and cause not in BY_WISH:
        return None
    return job.lease_until if job.lease_until is not None and job.lease_until > now else None


def waits(job: JobRecord) -> bool:
    """Return whether the job stands in its task queue: whether a match may take it."""
    return job.state is JobState.WAITING and job.lease_until is None
