"""Counts of the jobs of a VO in a minute, which are kept for some days."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

MINUTE = timedelta(minutes=1)
LONGEST_HISTORY = timedelta(days=8)
"""How long counts are kept."""


@dataclass(frozen=True, slots=True)
class JobCounts:
    """Jobs that wait and run (means over several minutes), and jobs that have ended in the time, by their results.

    `minutes` = how many have counts.
    """

    waiting: float = 0.0
    running: float = 0.0
    done: int = 0
    failed: int = 0
    removed: int = 0
    minutes: int = 1


def minute_of(time: datetime) -> int:
    """Return the whole minutes since 1970."""
    return int(time.timestamp()) // 60


def start_of(minute: int) -> datetime:
    """Return the time at which a minute begins."""
    return datetime.fromtimestamp(60 * minute, UTC)
