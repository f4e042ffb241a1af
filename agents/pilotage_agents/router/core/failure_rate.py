"""The rate limit of a failing route: HTCondor's rule of the Job Router, with a stop inside an interval.

Rules
-----
- Time is divided into intervals of at least `INTERVAL`; `adjusted` runs in every cycle.
- An interval with more failures than the threshold allows sets the quota of the next one, so that the same failing
  fraction would give failures at exactly the threshold.
- Otherwise the quota grows: five times when all succeeded, two and a half times when half did, twice when nothing
  ended, not at all when all failed. A quota that bounds nothing any more is dropped.
- Ours: a restarted router resumes the saved rate, as time without any job proves nothing.
- Ours: within an interval nothing more is sent once its failures pass the threshold. HTCondor reacts at the end of the
  interval only.

Source: HTCondor's Job Router, `FailureRateThreshold`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Self

INTERVAL = timedelta(seconds=600)
"""The time over which sent and failed jobs are counted before the quota is adjusted."""

_QUOTA_THAT_IS_NONE = 10_000
"""A quota above this multiple of the acceptable failures bounds nothing."""


@dataclass(frozen=True, slots=True)
class FailureRate:
    """The jobs sent along one route in this interval and their results.

    `threshold` is the acceptable number of failures a second, above 0. `since` is the start of the interval that
    `sent`, `succeeded` and `failed` belong to. `quota` limits the jobs sent in an interval, 0 = no limit.
    """

    threshold: float
    since: datetime
    quota: float = 0.0
    sent: int = 0
    succeeded: int = 0
    failed: int = 0

    def counted(self, *, sent: int = 0, succeeded: int = 0, failed: int = 0) -> Self:
        """Return the rate with more jobs sent, succeeded or failed."""
        return replace(self, sent=self.sent + sent, succeeded=self.succeeded + succeeded, failed=self.failed + failed)

    def adjusted(self, under_way: int, now: datetime) -> Self:
        """Return the rate at `now`, in a new interval if this one is over; `under_way` jobs have not ended."""
        elapsed = now - self.since
        if elapsed < INTERVAL:
            return self
        if self.failed and self.failed / elapsed.total_seconds() > self.threshold:
            quota = self._acceptable * (self.failed + self.succeeded + under_way) / self.failed
        else:
            quota = self._relaxed()
        return replace(self, since=now, quota=quota, sent=0, succeeded=0, failed=0)

    def resumed(self, under_way: int, now: datetime) -> Self:
        """Return a saved rate for a router that resumes it at `now`; an interval that is over is evaluated.

        However long no router counted, it is one interval: time without counts proves no success.
        """
        if now - self.since < INTERVAL:
            return replace(self, since=min(self.since, now))
        return replace(self.adjusted(under_way, self.since + INTERVAL), since=now)

    @property
    def is_blank(self) -> bool:
        """Whether the rate holds no information."""
        return not (self.quota or self.sent or self.succeeded or self.failed)

    @property
    def obstacle(self) -> str:
        """Why nothing more may be sent in this interval; empty = something may."""
        if 0 < self.quota <= self.sent:
            return f"{self.sent} sent of {self.quota:g} in {_words(INTERVAL)}"
        if self.failed > self._acceptable:
            return f"{self.failed} failed in less than {_words(INTERVAL)}, where {self._acceptable:g} may"
        return ""

    @property
    def _acceptable(self) -> float:
        return self.threshold * INTERVAL.total_seconds()

    def _relaxed(self) -> float:
        growth: float = 3 * self.succeeded - 2 * self.failed
        if growth > 0:
            growth /= self.succeeded + self.failed
        growth += 2
        quota = self.quota * growth if growth > 1 else self.quota
        if quota > self._acceptable * _QUOTA_THAT_IS_NONE:
            return 0.0
        return 1.0 if 0 < quota < 1 and not self.failed else quota


def _words(time: timedelta) -> str:
    return f"{time.total_seconds():g} s"
