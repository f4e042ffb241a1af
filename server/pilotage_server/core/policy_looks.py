"""Which jobs are to be looked at because something has happened to them, and how fast that may go on.

Rules
-----
Bounded: when too many jobs change at once, it is only remembered that all must be looked at. A job that a policy
has just moved is looked at again after the usual interval, not at once, so that two policies that undo one
another do not keep a processor busy.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from datetime import datetime
from itertools import islice

_MOST = 100_000


class PolicyLooks:
    """The ids of jobs to be looked at, in the order in which they came."""

    def __init__(self, most: int = _MOST) -> None:
        self._now: dict[int, None] = {}
        self._later: deque[tuple[datetime, int]] = deque()
        self._most = most
        self._all = True
        self._all_later: datetime | None = None

    @property
    def has_any(self) -> bool:
        """Whether there are jobs to be looked at, now or later."""
        return bool(self._now or self._later or self._all_later)

    def note(self, job_ids: Iterable[int]) -> None:
        """Take note that these jobs have changed."""
        for job_id in job_ids:
            if len(self._now) >= self._most:
                self._all = True
                return
            self._now[job_id] = None

    def defer(self, job_ids: Iterable[int], until: datetime) -> None:
        """Look at these jobs again then, not before; times given never go back."""
        for job_id in job_ids:
            self._now.pop(job_id, None)
            if len(self._later) < self._most:
                self._later.append((until, job_id))
            else:
                self._all_later = until

    def take(self, now: datetime, most: int) -> list[int]:
        """Return the next jobs to be looked at, and forget them."""
        while self._later and self._later[0][0] <= now:
            self.note([self._later.popleft()[1]])
        if self._all_later is not None and self._all_later <= now:
            self._all, self._all_later = True, None
        taken = list(islice(self._now, most))
        for job_id in taken:
            del self._now[job_id]
        return taken

    def take_all(self) -> bool:
        """Return whether every job must be looked at: nothing is known at first, or too many have changed."""
        was, self._all = self._all, False
        return was


def pause_s(took_s: float, share: float) -> float:
    """Return how long to rest after work that took so long, for it to have this share of one processor's time."""
    return max(0.0, took_s) * (1.0 / share - 1.0)
