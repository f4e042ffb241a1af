"""What happened to a job: one event for every step, and what a page of the feed is.

Rules
-----
Positions grow in the order in which the steps were committed, over all jobs. The first event of a job is its
step out of RECEIVED.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from pilotage_server.core.jobs import JobCause, JobState


class JobEvent(NamedTuple):
    """One step of a job; `attempt` 0 = it had not been matched yet; `actor` is who caused it."""

    position: int
    job_id: int
    time: datetime
    from_state: JobState
    to_state: JobState
    cause: JobCause
    reason: str
    attempt: int
    actor: str

    def at(self, position: int) -> JobEvent:
        """Return the event as it stands at a position of the feed."""
        return JobEvent(position, *self[1:])


@dataclass(frozen=True, slots=True)
class FeedPage:
    """The next events of the feed, oldest first; resume after `position`; `at_end` = there were no more."""

    events: tuple[JobEvent, ...]
    position: int
    at_end: bool
