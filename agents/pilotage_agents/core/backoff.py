"""How long to wait after things went wrong.

Rules
-----
The wait doubles with each failure in a row and is bounded; the first success forgets them all.
"""

from __future__ import annotations

from datetime import timedelta

_MOST_DOUBLINGS = 32


def backoff(failures: int, first: timedelta, longest: timedelta) -> timedelta:
    """Return how long to wait after `failures` failures in a row: `first`, doubled each time, up to `longest`."""
    if failures <= 0:
        return timedelta(0)
    factor: int = 2 ** min(failures - 1, _MOST_DOUBLINGS)
    return min(first * factor, longest)
