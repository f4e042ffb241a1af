"""Conditions on jobs that are changed together: their states, where they run or ran last, and since when.

A condition is checked again when a job is locked for the change, because it may have moved on meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator

from pilotage.errors import Violation
from pilotage.text import fold
from pilotage.values.jobs import JobCondition
from pilotage_server.core.jobs.record import JobRecord
from pilotage_server.core.jobs.states import FINAL, JobState

PLACELESS = frozenset({JobState.RECEIVED, JobState.WAITING, JobState.BLOCKED})
"""States in which a job is at no place."""


def condition_faults(condition: JobCondition) -> Iterator[Violation]:
    """Yield what is wrong with a condition, such as one that would need all jobs to be read."""
    if not condition.states:
        yield Violation("states", "names no state")
    if (condition.ce or condition.queue) and not (condition.site and condition.ce):
        yield Violation("queue", "is named together with its CE and its site")
    if condition.has_place and (placeless := condition.states & PLACELESS):
        yield Violation("states", f"{', '.join(sorted(placeless))}: such a job is at no place")
    if condition.states & FINAL and condition.since is None and not condition.owner:
        yield Violation("since", "is missing: of jobs that have ended, give since when, or their owner")
    if condition.since is not None and condition.until is not None and condition.until <= condition.since:
        yield Violation("until", "is not later than since")


def meets(job: JobRecord, condition: JobCondition) -> bool:
    """Return whether a job meets a condition now."""
    site, ce, queue = (job.queue.site, job.queue.ce, job.queue.queue) if job.queue else ("", "", "")
    began = job.ended or job.state_since or job.submitted
    return (
        job.state in condition.states
        and condition.site in ("", site)
        and condition.ce in ("", ce)
        and condition.queue in ("", queue)
        and (not condition.node or fold(job.node) == fold(condition.node))
        and condition.owner in ("", job.owner)
        and (condition.since is None or began >= condition.since)
        and (condition.until is None or began < condition.until)
    )
