"""The life of a job: its states and every legal step between them.

Rules
-----
Every change of a job's state goes through `next_state`; a step that the table lacks is an error and changes
nothing. Who may cause a step, and what else it changes, is decided by those who call.
"""

from __future__ import annotations

from enum import StrEnum

from pilotage.errors import StateConflictError


class JobState(StrEnum):
    """Where a job is in its life (DESIGN §3). RACING = its own run has failed, and copies of it race on (`races`)."""

    RECEIVED = "RECEIVED"
    WAITING = "WAITING"
    MATCHED = "MATCHED"
    RUNNING = "RUNNING"
    SUSPENDED = "SUSPENDED"
    COMPLETING = "COMPLETING"
    DONE = "DONE"
    FAILED = "FAILED"
    HELD = "HELD"
    REMOVED = "REMOVED"
    RACING = "RACING"


class JobCause(StrEnum):
    """What makes a job change its state."""

    ENQUEUED = "enqueued"
    MATCHED = "matched"
    STARTED = "started"
    SUSPENDED = "suspended"
    CONTINUED = "continued"
    PLUGGED = "plugged"
    COMPLETING = "completing"
    DONE = "done"
    FAILED = "failed"
    LEASE_LOST = "lease lost"
    START_FAILED = "start failed"
    EVICTED = "evicted"
    DECLINED = "declined"
    ATTEMPTS_EXHAUSTED = "attempts exhausted"
    ADOPTED = "adopted"
    HELD = "held"
    RELEASED = "released"
    REMOVED = "removed"
    RESCHEDULED = "rescheduled"
    EDITED = "edited"
    LEFT_TO_COPIES = "left to its copies"
    WON = "won by a copy"


LEASED = frozenset({JobState.MATCHED, JobState.RUNNING, JobState.SUSPENDED, JobState.COMPLETING})
"""States in which an attempt of the job holds a lease."""

FINAL = frozenset({JobState.DONE, JobState.FAILED, JobState.REMOVED})
"""States that a job leaves only when its owner reschedules it."""

LIVE = frozenset(JobState) - FINAL
"""States that keep a job's pool alive."""

BY_WISH = frozenset({JobCause.REMOVED, JobCause.HELD, JobCause.RESCHEDULED, JobCause.WON})
"""Causes by which a job is taken from a pilot that may be running it."""

_STATUSES: dict[JobState, int] = {
    JobState.RECEIVED: 1,
    JobState.WAITING: 1,
    JobState.MATCHED: 1,
    JobState.RUNNING: 2,
    JobState.REMOVED: 3,
    JobState.DONE: 4,
    JobState.FAILED: 4,
    JobState.HELD: 5,
    JobState.COMPLETING: 6,
    JobState.SUSPENDED: 7,
    JobState.RACING: 2,
}


def job_status(state: JobState) -> int:
    """Return HTCondor's JobStatus.

    A job that is matched and has not started is idle, one that failed is completed, one whose copies run is running.
    """
    return _STATUSES[state]


TRANSITIONS: dict[tuple[JobState, JobCause], JobState] = {
    (JobState.RECEIVED, JobCause.ENQUEUED): JobState.WAITING,
    (JobState.RECEIVED, JobCause.HELD): JobState.HELD,
    (JobState.WAITING, JobCause.MATCHED): JobState.MATCHED,
    (JobState.WAITING, JobCause.ADOPTED): JobState.RUNNING,
    (JobState.WAITING, JobCause.HELD): JobState.HELD,
    (JobState.WAITING, JobCause.REMOVED): JobState.REMOVED,
    (JobState.WAITING, JobCause.EDITED): JobState.WAITING,
    (JobState.HELD, JobCause.EDITED): JobState.HELD,
    (JobState.HELD, JobCause.RELEASED): JobState.WAITING,
    (JobState.HELD, JobCause.REMOVED): JobState.REMOVED,
    (JobState.MATCHED, JobCause.STARTED): JobState.RUNNING,
    (JobState.RUNNING, JobCause.PLUGGED): JobState.RUNNING,
    (JobState.RUNNING, JobCause.SUSPENDED): JobState.SUSPENDED,
    (JobState.SUSPENDED, JobCause.CONTINUED): JobState.RUNNING,
    **{(state, JobCause.COMPLETING): JobState.COMPLETING for state in LEASED - {JobState.COMPLETING}},
    **{(state, JobCause.DONE): JobState.DONE for state in LEASED},
    **{(state, JobCause.FAILED): JobState.FAILED for state in LEASED},
    **{(state, JobCause.LEASE_LOST): JobState.WAITING for state in LEASED},
    **{(state, JobCause.START_FAILED): JobState.WAITING for state in LEASED},
    **{(state, JobCause.EVICTED): JobState.WAITING for state in LEASED},
    **{(state, JobCause.DECLINED): JobState.WAITING for state in LEASED},
    **{(state, JobCause.ATTEMPTS_EXHAUSTED): JobState.FAILED for state in LEASED},
    **{(state, JobCause.HELD): JobState.HELD for state in LEASED},
    **{(state, JobCause.REMOVED): JobState.REMOVED for state in LEASED},
    **{(state, JobCause.RESCHEDULED): JobState.WAITING for state in LEASED | FINAL | {JobState.HELD, JobState.RACING}},
    **{(state, JobCause.LEFT_TO_COPIES): JobState.RACING for state in LEASED},
    **{(state, JobCause.WON): JobState.DONE for state in LEASED | {JobState.WAITING, JobState.RACING}},
    (JobState.RACING, JobCause.FAILED): JobState.FAILED,
    (JobState.RACING, JobCause.HELD): JobState.HELD,
    (JobState.RACING, JobCause.REMOVED): JobState.REMOVED,
}
"""Every legal step: state and cause → the state after."""


class IllegalTransitionError(StateConflictError):
    """The job's state has no such step; nothing has changed."""

    def __init__(self, state: JobState, cause: JobCause) -> None:
        super().__init__(f"a job that is {state} cannot be {cause}")
        self.state = state
        self.cause = cause


def next_state(state: JobState, cause: JobCause) -> JobState:
    """Return the state that `cause` leads to; raises IllegalTransitionError where the table has none."""
    try:
        return TRANSITIONS[state, cause]
    except KeyError:
        raise IllegalTransitionError(state, cause) from None
