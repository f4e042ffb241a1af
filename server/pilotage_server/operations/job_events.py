"""The events of jobs: of one job, and of all that the caller may see, from a position on."""

from __future__ import annotations

from collections.abc import Sequence

from pilotage_server.core.identity import Identity
from pilotage_server.core.job_events import FeedPage, JobEvent
from pilotage_server.operations.query_jobs import visible_job
from pilotage_server.storage.engine import Unit
from pilotage_server.storage.events import FeedQuery, events_between, events_of, feed_bounds

WINDOW = 100_000
"""Positions that one page looks through at most, so that a feed of few jobs does not read all others' at once."""


def get_events(unit: Unit, identity: Identity, job_id: int) -> tuple[JobEvent, ...]:
    """Return the events of one job, oldest first; raises NotFoundError."""
    visible_job(unit, identity, job_id)
    return events_of(unit.session, job_id)


def read_feed(
    unit: Unit, identity: Identity, after_position: int, job_ids: Sequence[int] = (), limit: int = 1000
) -> FeedPage:
    """Return the next events that the caller may see, oldest first; go on after the page's position.

    No `job_ids` = of all jobs. What retention has removed is passed over. A page may be empty though the feed
    goes on (`at_end` tells).
    """
    oldest, newest = feed_bounds(unit.session)
    after = max(after_position, oldest - 1)
    if after >= newest:
        return FeedPage((), after_position, at_end=True)
    up_to = min(newest, after + WINDOW)
    whose = None if identity.is_shown_everything else (identity.vo, identity.owner)
    events = events_between(unit.session, after, up_to, FeedQuery(whose, tuple(job_ids)), limit)
    if len(events) == limit:
        return FeedPage(events, events[-1].position, at_end=False)
    return FeedPage(events, up_to, at_end=up_to == newest)
