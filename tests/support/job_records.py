"""Records of jobs for tests of pure decisions: as they are, and after a step."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pilotage_server.core.jobs.record import JobRecord, transition_changes
from pilotage_server.core.jobs.states import JobCause, JobState
from support.virtual_clock import START


def a_job(**fields: Any) -> JobRecord:
    """Return the record of a waiting job of alice's; say only what matters."""
    given: dict[str, Any] = {
        "id": 1,
        "template_id": 1,
        "cluster": fields.get("id", 1),
        "process": 0,
        "owner": "alice",
        "vo": "lhcb",
        "group": "users",
        "name": "",
        "state": JobState.WAITING,
        "reason": "",
        "priority": 0,
        "task_queue_id": 1,
        "pool_id": "",
        "attempt": 0,
        "spent_attempts": 0,
        "lease": None,
        "lease_until": None,
        "pilot_stamp": "",
        "queue": None,
        "node": "",
        "slot": "",
        "exit_code": None,
        "signal": None,
        "submitted": START,
        "started": None,
        "ended": None,
    }
    return JobRecord(**(given | fields))


def stepped(job: JobRecord, cause: JobCause, *, reason: str, now: datetime, **decided: Any) -> JobRecord:
    """Return the record after a step; raises IllegalTransitionError where its state has no such step."""
    return job.changed(transition_changes(job, cause, reason, now, decided))
