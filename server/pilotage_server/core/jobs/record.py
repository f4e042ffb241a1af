"""The record of a job, its changes in a transition, and the events of the feed.

Rules
-----
- A record is a snapshot and changes only by transitions; its events tell the history. It is a named tuple because a
  server builds tens of thousands a second, and a frozen dataclass takes ten times as long.
- Attempt numbers never go back; a rescheduled job continues them, and a restored one continues above its floor. The
  counters of a rescheduled job start again.
- A job that is taken from a pilot keeps the end of its lease as a fence: its attempt may run until then. It is not
  matched before that time or the pilot's report of the end.
- Times are on the server's clock unless the caller passes the pilot's.
- Positions of the feed grow in the order of commits, and those of one transaction are contiguous. The first event of
  a job is its transition out of RECEIVED.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import IntEnum
from typing import Any, NamedTuple

from pilotage.errors import InvalidInputError
from pilotage.resources.tree import QueueId
from pilotage_server.core.jobs.states import (
    FENCING_CAUSES,
    FINAL,
    LEASED,
    NEVER_HELD,
    Hold,
    HoldCode,
    HoldHistory,
    JobCause,
    JobState,
    job_status,
    next_state,
)


class PolicyWatch(IntEnum):
    """When the policies of a job must be evaluated."""

    NEVER = 0
    ON_CHANGE = 1
    EACH_MINUTE = 2


class ExitCheck(IntEnum):
    """Which ends of a payload the exit policy of a job decides about; all other ends are DONE or FAILED at once."""

    NONE = 0
    FAILURES = 1
    ALL = 2


class Awaited(IntEnum):
    """The event of a job that a dependency watches for."""

    NOTHING = 0
    END = 1
    START_OR_END = 2

    def happens(self, *, starts: bool, ends: bool) -> bool:
        """Whether it is among these events."""
        return (ends and self >= Awaited.END) or (starts and self is Awaited.START_OR_END)


def next_attempt(attempt: int, floor: int) -> int:
    """Return the number of the next attempt; numbers up to `floor` may be those of attempts of a lost time."""
    return max(attempt, floor) + 1


class JobRecord(NamedTuple):
    """One job.

    `cluster` is the id of the first job of its array, `process` its index there, from 0. `attempt` counts the matches,
    `spent_attempts` those that count towards the limit. `lease` = the length that the owner asked for (None = the
    server's). `lease_until` without a lease = the fence: the last attempt may run until then. `pilot_stamp`, `queue`,
    `node` and `slot` are those of the last match, `started` = when the payload of that attempt started, `ended` = when
    the job became final.

    The other values count as HTCondor's. `state_since` = when JobStatus last changed (None = at submission). `starts` =
    the number of payload starts. `max_starts` = how many of them the owner permits, 0 = any number. `wall_clock` = the
    run time of ended attempts, with suspended time; `suspended` = the time of ended suspensions. `hold_code` and
    `hold_subcode` None = not held.

    `race` = the id of the original job of its race; 0 = none. It is not matched before `fenced_until`: a retry is
    delayed until then, or an attempt of the time that a restore lost may be alive until then. Such an attempt may have
    a number up to `attempt_floor`. `exit_check` = when its exit policy is evaluated; `completions` = how often its
    payload has exited without ending the job.

    `awaited` = a dependency watches for this event of the job. `blocked_by` = the id of its block, which has the number
    of its unmet dependencies; 0 = none is unmet.
    """

    id: int
    template_id: int
    cluster: int
    process: int
    owner: str
    vo: str
    group: str
    name: str
    state: JobState
    reason: str
    priority: int
    task_queue_id: int
    pool_id: str
    attempt: int
    spent_attempts: int
    lease: timedelta | None
    lease_until: datetime | None
    pilot_stamp: str
    queue: QueueId | None
    node: str
    slot: str
    exit_code: int | None
    signal: int | None
    submitted: datetime
    started: datetime | None
    ended: datetime | None
    state_since: datetime | None = None
    starts: int = 0
    wall_clock: timedelta = timedelta(0)
    suspended: timedelta = timedelta(0)
    hold_code: int | None = None
    hold_subcode: int | None = None
    hold_history: HoldHistory = NEVER_HELD
    watch: PolicyWatch = PolicyWatch.NEVER
    race: int = 0
    max_starts: int = 0
    fenced_until: datetime | None = None
    attempt_floor: int = 0
    exit_check: ExitCheck = ExitCheck.NONE
    completions: int = 0
    awaited: Awaited = Awaited.NOTHING
    blocked_by: int = 0

    @property
    def next_attempt(self) -> int:
        """Number of the attempt that the next match begins."""
        return next_attempt(self.attempt, self.attempt_floor)

    @property
    def holds(self) -> int:
        """Number of holds, including the present one."""
        return self.hold_history.count

    @property
    def is_leased(self) -> bool:
        """Whether an attempt of the job holds a lease."""
        return self.state in LEASED

    @property
    def is_fenced(self) -> bool:
        """Whether its last attempt was taken from a pilot that may still run it."""
        return self.lease_until is not None and not self.is_leased

    @property
    def is_delayed(self) -> bool:
        """Whether it waits until `fenced_until`, whatever becomes of its last attempt."""
        return self.is_fenced and self.state is JobState.WAITING and self.lease_until == self.fenced_until

    @property
    def has_race_copies(self) -> bool:
        """Whether it is the original job of a race."""
        return self.race == self.id

    @property
    def is_race_copy(self) -> bool:
        """Whether it is or was a race copy of another job."""
        return self.race not in (0, self.id)

    def changed(self, changes: Mapping[str, Any]) -> JobRecord:
        """Return the record with new values in these fields."""
        values = list(self)
        for name, value in changes.items():
            values[_INDEXES[name]] = value
        return JobRecord._make(values)


_INDEXES = {name: index for index, name in enumerate(JobRecord._fields)}


_ROUTER = "route:"


def router_stamp(router: str) -> str:
    """Return the stamp under which a job router holds attempts; `router` = the agent's name."""
    return f"{_ROUTER}{router}"


def is_router_stamp(stamp: str) -> bool:
    """Whether the stamp is a job router's instead of a pilot's."""
    return stamp.startswith(_ROUTER)


def router_of(job: JobRecord) -> str:
    """Return the job router of the job's last attempt; "" = it was a pilot's, or there is none."""
    return job.pilot_stamp.removeprefix(_ROUTER) if is_router_stamp(job.pilot_stamp) else ""


_QUEUE, _SERVER = "queue ", "server "


def queue_of_target(target: str) -> QueueId:
    """Return the queue of a route's target, from its text; another server is a site without queues."""
    if target.startswith(_QUEUE):
        try:
            return QueueId.parse(target.removeprefix(_QUEUE))
        except InvalidInputError:
            pass  # a target without a valid queue name counts as a site
    return QueueId(target.removeprefix(_SERVER), "", "")


def location_name(index: QueueId) -> str:
    """Return where an attempt runs, for people: SITE/CE/QUEUE or the server."""
    return str(index) if index.queue else f"{_SERVER}{index.site}"


_NO_TIME = timedelta(0)


_UNSEEN_STARTS = frozenset({JobCause.LEASE_LOST, JobCause.STARTS_EXHAUSTED, JobCause.HELD})
"""Causes that take a matched job from its pilot, whose payload may have started without a report."""


def may_start_again(job: JobRecord, cause: JobCause) -> bool:
    """Whether the job, after this transition, has a start left; a start that may have happened counts as one."""
    unseen = job.state is JobState.MATCHED and cause in _UNSEEN_STARTS
    return not job.max_starts or job.starts + unseen < job.max_starts


def transition_changes(
    job: JobRecord, cause: JobCause, reason: str, now: datetime, decided: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the new values of fields of the record; some may equal the old ones.

    `decided` are values that the caller sets.

    Raises
    ------
    IllegalTransitionError
        The job's state has no such transition.
    """
    state = next_state(job.state, cause)
    changes: dict[str, Any] = {"state": state, "reason": reason}
    if state in FINAL or job.ended is not None:
        changes["ended"] = now if state in FINAL else None
    if state not in LEASED:
        changes["lease_until"] = _fence_end(job, cause, state, now)
    if cause in _NEXT_ATTEMPT:
        changes |= {"started": None, "exit_code": None, "signal": None}
    changes |= _counter_changes(job, state, cause, now)
    if job.state is not state and (job.state is JobState.HELD or state is JobState.HELD):
        changes |= _hold_changes(job, state, decided)
    if cause is JobCause.RESCHEDULED:
        changes |= _RESET
    return {**changes, **decided}


_NEXT_ATTEMPT = frozenset({JobCause.MATCHED, JobCause.RESCHEDULED})
_RESET: dict[str, Any] = {
    "spent_attempts": 0,
    "starts": 0,
    "completions": 0,
    "wall_clock": _NO_TIME,
    "suspended": _NO_TIME,
    "hold_history": NEVER_HELD,
}


def _counter_changes(job: JobRecord, state: JobState, cause: JobCause, now: datetime) -> dict[str, Any]:
    """Return the changes of the counters that HTCondor keeps of a job."""
    changes: dict[str, Any] = {}
    if job_status(state) != job_status(job.state):
        changes["state_since"] = now
    if cause is JobCause.STARTED or (cause is JobCause.ADOPTED and job.started is None):
        changes |= {"starts": job.starts + 1, "started": now}
    elif job.max_starts and job.state is JobState.MATCHED and cause in _UNSEEN_STARTS:
        changes["starts"] = job.starts + 1
    if job.state is JobState.SUSPENDED:
        changes["suspended"] = job.suspended + _elapsed(job.state_since, now)
    if job.is_leased and state not in LEASED:
        changes["wall_clock"] = job.wall_clock + _elapsed(job.started, now)
    return changes


def _elapsed(began: datetime | None, now: datetime) -> timedelta:
    return _NO_TIME if began is None else max(_NO_TIME, now - began)


def _hold_changes(job: JobRecord, state: JobState, decided: Mapping[str, Any]) -> dict[str, Any]:
    """Return the changes where a hold begins or ends."""
    if state is JobState.HELD:
        code = decided.get("hold_code", HoldCode.USER_REQUEST)
        return {"hold_code": int(code), "hold_subcode": 0, "hold_history": job.hold_history.with_hold(code)}
    over = Hold(job.hold_code or HoldCode.USER_REQUEST, job.hold_subcode or 0, job.reason)
    return {"hold_code": None, "hold_subcode": None, "hold_history": job.hold_history.with_release(over)}


def _fence_end(job: JobRecord, cause: JobCause, state: JobState, now: datetime) -> datetime | None:
    """Return the end of the job's fence after the transition; None = no fence.

    Whatever ends an attempt of the backup says nothing of one of the lost time, so that of a restore goes on.
    """
    own = None if job.is_leased and cause not in FENCING_CAUSES else job.lease_until
    ends = [own, job.fenced_until] if state is JobState.WAITING else [own]
    return max((end for end in ends if end is not None and end > now), default=None)


def is_matchable(job: JobRecord) -> bool:
    """Return whether the job is in its task queue, so that it can be matched."""
    return job.state is JobState.WAITING and job.lease_until is None


class FeedCursor:
    """How far this server has read the feed; `position` = its last known event.

    A server adds the positions of its own events before their commit, so before any other server can see them. So all
    visible events that are not its own are of other servers.
    """

    def __init__(self, position: int) -> None:
        self.position = position
        self._own: dict[int, int] = {}

    def add_own(self, first: int, count: int) -> None:
        """Add the positions of a transaction of this server that is about to commit."""
        self._own[first] = first + count - 1

    def remove_own(self, first: int) -> None:
        """Remove the positions of a transaction that has failed as far as this server knows."""
        self._own.pop(first, None)

    def unread_ranges(self, newest: int) -> list[tuple[int, int]]:
        """Return the ranges of positions up to `newest` that are not this server's own, both ends included."""
        ranges: list[tuple[int, int]] = []
        begin = self.position + 1
        for first, last in sorted(self._own.items()):  # sorted() copies: another thread may remove a range meanwhile
            if first > newest:
                break
            if begin < first:
                ranges.append((begin, first - 1))
            begin = max(begin, last + 1)
        return [*ranges, (begin, newest)] if begin <= newest else ranges

    def advance(self, newest: int) -> None:
        """Record that all events up to `newest` have been read."""
        self.position = max(self.position, newest)
        for first, last in list(self._own.items()):
            if last <= newest:
                self._own.pop(first, None)


class FeedEvent(NamedTuple):
    """One transition of a job; `attempt` 0 = not matched yet; `actor` caused it."""

    position: int
    job_id: int
    time: datetime
    from_state: JobState
    to_state: JobState
    cause: JobCause
    reason: str
    attempt: int
    actor: str

    def at(self, position: int) -> FeedEvent:
        """Return the event with its position in the feed."""
        return FeedEvent(position, *self[1:])


@dataclass(frozen=True, slots=True)
class FeedPage:
    """The next events of the feed, oldest first; continue after `position`; `at_end` = there are no more now."""

    events: tuple[FeedEvent, ...]
    position: int
    at_end: bool
