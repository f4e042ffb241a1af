"""What one step makes of a job's record.

Rules
-----
The state comes from the table in `jobs`; here stand the fields that follow from it. Attempt numbers are never
taken back: a rescheduled job goes on counting. A job that somebody's wish takes from a pilot keeps the end of the
lease, for its attempt may live until then: it is matched to nobody before that, or before its pilot's word.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any

from pilotage_server.core.job_record import JobRecord
from pilotage_server.core.jobs import BY_WISH, FINAL, LEASED, JobCause, JobState, next_state


def stepped(job: JobRecord, cause: JobCause, *, reason: str, now: datetime, **changes: Any) -> JobRecord:
    """Return the record after the step; `changes` are fields that the caller decides.

    Raises
    ------
    IllegalTransitionError
        The job's state has no such step.
    """
    state = next_state(job.state, cause)
    follows: dict[str, Any] = {"ended": now if state in FINAL else None}
    if state not in LEASED:
        follows["lease_until"] = _lingers_until(job, cause, now)
    if cause in {JobCause.MATCHED, JobCause.RESCHEDULED}:
        follows |= {"started": None, "exit_code": None, "signal": None}
    if cause is JobCause.RESCHEDULED:
        follows["spent_attempts"] = 0
    return replace(job, **(follows | changes), state=state, reason=reason)


def _lingers_until(job: JobRecord, cause: JobCause, now: datetime) -> datetime | None:
    """Return until when the job's last attempt may live after the step; None = it does not."""
    if job.is_leased and cause not in BY_WISH:
        return None
    return job.lease_until if job.lease_until is not None and job.lease_until > now else None


def waits(job: JobRecord) -> bool:
    """Return whether the job stands in its task queue: whether a match may take it."""
    return job.state is JobState.WAITING and job.lease_until is None
