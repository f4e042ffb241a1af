"""Pilots that came back empty: how often in a row a queue was sent some that found nothing to run.

Rules
-----
A pilot came back empty when it never ran a job and ended for want of work or of time, or because its batch system
ended it, and nobody of ours wished so. Pilots that were sent before
the first of their like was back were sent in good faith: all of them are one sending. A pilot that has run a job
speaks for its queue against all that were sent before it, and together with it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

LATELY = timedelta(days=1)
"""So long it counts that a pilot came back empty."""


@dataclass(frozen=True, slots=True)
class EmptyPilot:
    """A pilot that came back empty: when it was registered, and when it ended."""

    registered: datetime
    ended: datetime


@dataclass(frozen=True, slots=True)
class EmptyReturns:
    """How many pilots of a queue came back empty, in how many sendings in a row, and how long ago the last ended."""

    pilots: int
    sendings: int
    last_ago: timedelta


def empty_returns(pilots: Iterable[EmptyPilot], proven: datetime | None, now: datetime) -> EmptyReturns | None:
    """Return what is to be said of pilots of one queue that came back empty; None = nothing.

    `proven` is when the last of the queue's pilots was registered that has run a job; None = none has.
    """
    counted = [pilot for pilot in pilots if proven is None or pilot.registered > proven]
    if not counted:
        return None
    sendings, known = 0, None
    for pilot in sorted(counted, key=lambda pilot: pilot.registered):
        if known is None or pilot.registered >= known:
            sendings, known = sendings + 1, pilot.ended
        known = min(known, pilot.ended)
    return EmptyReturns(len(counted), sendings, now - max(pilot.ended for pilot in counted))
