"""What the feed says of jobs that came to wait and that wait no more, in PostgreSQL, where servers share a database."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import text
from sqlmodel import Session


class Turnover(NamedTuple):
    """A job that came to wait (`came`) or left; its task queue is the one that it is in now."""

    came: bool
    job_id: int
    task_queue_id: int
    priority: int


def turnover_in(session: Session, ranges: Sequence[tuple[int, int]]) -> list[Turnover]:
    """Return who came to wait and who left in these ranges of the feed, both ends included, in its order.

    A job whose last attempt lingers at a pilot counts as waiting.
    """
    bounds = {"first": [first for first, _ in ranges], "last": [last for _, last in ranges]}
    return [Turnover._make(row) for row in session.execute(_TURNOVER, bounds)]


_TURNOVER = text("""
    SELECT event.to_state = 'WAITING', event.job_id, job.task_queue_id, job.priority
    FROM unnest(CAST(:first AS bigint[]), CAST(:last AS bigint[])) AS told(first, last)
    JOIN job_events AS event ON event.id BETWEEN told.first AND told.last
    JOIN jobs AS job ON job.id = event.job_id
    WHERE (event.from_state = 'WAITING') <> (event.to_state = 'WAITING')
    ORDER BY event.id
""")
