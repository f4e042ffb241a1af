"""A job as the server keeps it: its present state, its place in its array, its attempt.

Rules
-----
A record is a snapshot. What it was before and why is told by its events; it is changed by steps only. It is a named
tuple because a server makes tens of thousands of them a second, and a frozen dataclass takes ten times as long.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from enum import IntEnum
from typing import Any, NamedTuple

from pilotage.resource_tree import QueueId
from pilotage_server.core.holds import NEVER_HELD, HoldHistory
from pilotage_server.core.jobs import LEASED, JobState


class PolicyWatch(IntEnum):
    """When the policies that a job is under must be looked at."""

    NEVER = 0
    ON_CHANGE = 1
    EACH_MINUTE = 2


class JobRecord(NamedTuple):
    """One job.

    `cluster` is the id of the first job of its array, `process` its place in it, from 0. `attempt` counts how
    often it has been matched, `spent_attempts` those that count towards the limit. `lease` is the length that
    its owner asked for (None = the server's). `lease_until` of a job without a lease = its last attempt was taken
    from a pilot that may be running it until then. `pilot_stamp`, `queue`, `node` and `slot` say where it was last
    matched, `started` when that attempt's payload started, `ended` when the job became final.

    The rest counts as HTCondor does. `state_since` = since when it has its JobStatus (None = since it was
    submitted). `starts` = how often a payload of it has started. `wall_clock` = how long those attempts ran
    that have ended, the time included in which they were suspended; `suspended` = that time, as far as it is over.
    `hold_code` and `hold_subcode` None = it is not held.

    `race` = the race that it takes part in, known by the job that the others are copies of; 0 = in none.
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

    @property
    def holds(self) -> int:
        """How often it was held, the present hold included."""
        return self.hold_history.count

    @property
    def is_leased(self) -> bool:
        """Whether an attempt of the job holds a lease."""
        return self.state in LEASED

    @property
    def lingers(self) -> bool:
        """Whether its last attempt was taken from a pilot that may still be running it."""
        return self.lease_until is not None and not self.is_leased

    @property
    def has_copies(self) -> bool:
        """Whether copies of it race."""
        return self.race == self.id

    @property
    def is_copy(self) -> bool:
        """Whether it is, or was, a copy of another in a race."""
        return self.race not in (0, self.id)

    def changed(self, changes: Mapping[str, Any]) -> JobRecord:
        """Return the record with other values in these fields."""
        values = list(self)
        for name, value in changes.items():
            values[_PLACES[name]] = value
        return JobRecord._make(values)


_PLACES = {name: place for place, name in enumerate(JobRecord._fields)}
