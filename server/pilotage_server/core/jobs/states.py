"""The states of a job with all legal transitions, and its holds.

Every change of state goes through `next_state`. A transition that the table lacks is an error and changes nothing. The
codes of holds are HTCondor's HoldReasonCode (manual, job ClassAd attributes), so that expressions written for HTCondor
work. A hold is counted when it begins and becomes the last hold when it is lifted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import IntEnum, StrEnum

from pilotage.errors import StateConflictError


class JobState(StrEnum):
    """The states of a job; `races` explains RACING, `dependencies` BLOCKED."""

    RECEIVED = "RECEIVED"
    """It was submitted, and is in no queue yet."""
    WAITING = "WAITING"
    """It waits for a slot, perhaps behind a fence or until its retry is due."""
    MATCHED = "MATCHED"
    """A pilot has it and prepares its start."""
    RUNNING = "RUNNING"
    """Its payload runs, or has failed and keeps its slot for a while (plug)."""
    SUSPENDED = "SUSPENDED"
    """Its payload is stopped for a while by the policy of its slot."""
    COMPLETING = "COMPLETING"
    """Its payload has ended, and its pilot stores the output."""
    DONE = "DONE"
    """It has ended with success."""
    FAILED = "FAILED"
    """It has ended without success, or has no attempts left."""
    HELD = "HELD"
    """No match sees it until it is released. Why: its hold code."""
    REMOVED = "REMOVED"
    """It was removed by its owner, an operator or a policy."""
    RACING = "RACING"
    """Its own attempt has failed, and copies of it still run in a race."""
    BLOCKED = "BLOCKED"
    """It waits for other jobs, its parents."""


class JobCause(StrEnum):
    """Causes of transitions."""

    ENQUEUED = "enqueued"
    """The job is checked and entered in a queue."""
    MATCHED = "matched"
    """The matcher has found a slot, and the job router a target."""
    STARTED = "started"
    """The payload has started."""
    SUSPENDED = "suspended"
    """The policy of the slot has suspended the payload."""
    CONTINUED = "continued"
    """The payload runs again."""
    PLUGGED = "plugged"
    """The payload has failed fast, and keeps its slot for a while."""
    COMPLETING = "completing"
    """The payload has ended, and its output is stored."""
    DONE = "done"
    """The payload has exited with success."""
    FAILED = "failed"
    """The payload has failed, exceeded a limit, or could not be started because of the job itself."""
    RETRIED = "retried"
    """The payload has failed, and the job has retries left."""
    LEASE_LOST = "lease lost"
    """The pilot has not renewed the lease in time."""
    START_FAILED = "start failed"
    """The node could not start the payload, or lost its output."""
    EVICTED = "evicted"
    """The pilot or the policy of the slot has stopped the payload; the job loses no attempt."""
    DECLINED = "declined"
    """The pilot has returned the job before its start."""
    ATTEMPTS_EXHAUSTED = "attempts exhausted"
    """As many attempts were lost as are allowed."""
    STARTS_EXHAUSTED = "starts exhausted"
    """The job has had as many starts as it may have."""
    ADOPTED = "adopted"
    """The pilot has reported a lost attempt after all, and the attempt goes on."""
    HELD = "held"
    """An order or a policy holds the job."""
    RELEASED = "released"
    """An order or a policy ends the hold."""
    REMOVED = "removed"
    """An order or a policy removes the job."""
    RESCHEDULED = "rescheduled"
    """An order returns the job to the queue, with all its retries."""
    EDITED = "edited"
    """An order has changed the description."""
    LEFT_TO_COPIES = "left to its copies"
    """The attempt has failed while copies run in a race."""
    WON = "won by a copy"
    """A copy has won the race, and its result is that of the job."""
    BLOCKED = "blocked"
    """The job waits for its parents."""
    UNBLOCKED = "unblocked"
    """The parents have done what the job waits for."""


LEASED = frozenset({JobState.MATCHED, JobState.RUNNING, JobState.SUSPENDED, JobState.COMPLETING})
"""States in which an attempt of the job holds a lease."""

FINAL = frozenset({JobState.DONE, JobState.FAILED, JobState.REMOVED})
"""States that a job leaves only if it is rescheduled."""

LIVE = frozenset(JobState) - FINAL
"""States that keep the job's pool alive."""

FENCING_CAUSES = frozenset({JobCause.REMOVED, JobCause.HELD, JobCause.RESCHEDULED, JobCause.WON})
"""Causes that take a job from a pilot that may still run it; the job is fenced."""

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
    JobState.BLOCKED: 1,
}


def job_status(state: JobState) -> int:
    """Return HTCondor's JobStatus.

    A blocked job and a matched one that has not started are idle, a failed one is completed, and one whose race copies
    run is running.
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
    **{(state, JobCause.RETRIED): JobState.WAITING for state in LEASED},
    **{(state, JobCause.LEASE_LOST): JobState.WAITING for state in LEASED},
    **{(state, JobCause.START_FAILED): JobState.WAITING for state in LEASED},
    **{(state, JobCause.EVICTED): JobState.WAITING for state in LEASED},
    **{(state, JobCause.DECLINED): JobState.WAITING for state in LEASED},
    **{(state, JobCause.ATTEMPTS_EXHAUSTED): JobState.FAILED for state in LEASED},
    **{(state, JobCause.STARTS_EXHAUSTED): JobState.FAILED for state in LEASED | {JobState.HELD}},
    **{(state, JobCause.HELD): JobState.HELD for state in LEASED},
    **{(state, JobCause.REMOVED): JobState.REMOVED for state in LEASED},
    **{(state, JobCause.RESCHEDULED): JobState.WAITING for state in LEASED | FINAL | {JobState.HELD, JobState.RACING}},
    **{(state, JobCause.LEFT_TO_COPIES): JobState.RACING for state in LEASED},
    **{(state, JobCause.WON): JobState.DONE for state in LEASED | {JobState.WAITING, JobState.RACING}},
    (JobState.RACING, JobCause.FAILED): JobState.FAILED,
    (JobState.RACING, JobCause.HELD): JobState.HELD,
    (JobState.RACING, JobCause.REMOVED): JobState.REMOVED,
    **{(state, JobCause.BLOCKED): JobState.BLOCKED for state in (JobState.RECEIVED, JobState.HELD, JobState.REMOVED)},
    (JobState.BLOCKED, JobCause.UNBLOCKED): JobState.WAITING,
    (JobState.BLOCKED, JobCause.HELD): JobState.HELD,
    (JobState.BLOCKED, JobCause.REMOVED): JobState.REMOVED,
    (JobState.BLOCKED, JobCause.EDITED): JobState.BLOCKED,
}
"""All legal transitions: state and cause → next state."""


class IllegalTransitionError(StateConflictError):
    """The state has no such transition; nothing has changed."""

    def __init__(self, state: JobState, cause: JobCause) -> None:
        super().__init__(f"a job that is {state} cannot be {cause}")
        self.state = state
        self.cause = cause


def next_state(state: JobState, cause: JobCause) -> JobState:
    """Return the state after `cause`; raises IllegalTransitionError if the table has none."""
    try:
        return TRANSITIONS[state, cause]
    except KeyError:
        raise IllegalTransitionError(state, cause) from None


class HoldCode(IntEnum):
    """Those of HTCondor's HoldReasonCode that occur here."""

    USER_REQUEST = 1
    """Its owner or an operator held it."""
    JOB_POLICY = 3
    """Its periodic_hold or on_exit_hold became true; the subcode is the owner's."""
    JOB_POLICY_UNDEFINED = 5
    """Its on_exit_hold or on_exit_remove was neither true nor false."""
    SUBMITTED_ON_HOLD = 15
    """It was submitted on hold."""
    STARTD_HELD_JOB = 21
    """The policy of the slot evicted and held it; the subcode is the policy's."""
    SYSTEM_POLICY = 26
    """The operators' periodic_hold became true; the subcode is theirs."""
    JOB_DURATION_EXCEEDED = 46
    """It ran longer than its AllowedJobDuration."""


def hold_name(code: int) -> str:
    """Return HTCondor's name of a code, as in NumHoldsByReason."""
    try:
        words = HoldCode(code).name.split("_")
    except ValueError:
        return f"Code{code}"
    return "".join(word.capitalize() for word in words)


@dataclass(frozen=True, slots=True)
class Hold:
    """One hold: HTCondor's code and subcode, and the reason for people."""

    code: int
    subcode: int
    reason: str


@dataclass(frozen=True, slots=True)
class HoldHistory:
    """The holds of a job: counts by code, including the present hold, and the last hold that was lifted."""

    counts: tuple[tuple[int, int], ...] = ()
    last: Hold | None = None

    @property
    def count(self) -> int:
        """Number of holds (NumHolds)."""
        return sum(count for _, count in self.counts)

    def by_reason(self) -> Mapping[str, int]:
        """Return the counts by name of the reason (NumHoldsByReason)."""
        return {hold_name(code): count for code, count in self.counts}

    def with_hold(self, code: int) -> HoldHistory:
        """Return the history after a hold with this code has begun."""
        counts = dict(self.counts)
        counts[code] = counts.get(code, 0) + 1
        return replace(self, counts=tuple(sorted(counts.items())))

    def with_release(self, hold: Hold) -> HoldHistory:
        """Return the history after this hold has been lifted."""
        return replace(self, last=hold)


NEVER_HELD = HoldHistory()


def history_to_json(history: HoldHistory) -> str:
    """Return the stored text; "" = never held."""
    if history == NEVER_HELD:
        return ""
    last = history.last and [history.last.code, history.last.subcode, history.last.reason]
    return json.dumps({"counts": history.counts, "last": last}, separators=(",", ":"), ensure_ascii=False)


def history_from_json(text: str) -> HoldHistory:
    """Return the history of a stored text."""
    if not text:
        return NEVER_HELD
    kept = json.loads(text)
    counts = tuple((code, count) for code, count in kept["counts"])
    return HoldHistory(counts, Hold(*kept["last"]) if kept["last"] else None)
