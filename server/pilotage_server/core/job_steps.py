"""What one step makes of a job's record.

Rules
-----
The state comes from the table in `jobs`; here stand the fields that follow from it. Attempt numbers are never
taken back: a rescheduled job goes on counting.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any

from pilotage_server.core.job_record import JobRecord
from pilotage_server.core.jobs import FINAL, LEASED, JobCause, JobState, next_state


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
        follows["lease_until"] = None
    if cause in {JobCause.MATCHED, JobCause.RESCHEDULED}:
        follows |= {"started": None, "exit_code": None, "signal": None}
    if cause is JobCause.RESCHEDULED:
        follows["spent_attempts"] = 0
    return replace(job, **(follows | changes), state=state, reason=reason)


def waits(job: JobRecord) -> bool:
    """Return whether the job stands in its task queue."""
    return job.state is JobState.WAITING
