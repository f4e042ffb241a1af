"""How fast work may be sent to a place that fails: HTCondor's rule of the Job Router, with a stop inside an interval.

Rules
-----
Time goes in intervals of at least `INTERVAL`, and `adjusted` is asked at every look. At the end of an interval in which
more failed than the threshold allows, the quota of the next one is set so that failures come at the threshold if as
large a part fails again. Else a quota is relaxed: five times as large when all went well, two and a half times when
half did, twice when nothing ended, not at all when all failed, until it is so large that it is none.
Source: HTCondor's Job Router, `FailureRateThreshold`. What is ours: who starts again resumes the rate that was kept, as
time in which nobody sent anything proves nothing; and within an interval nothing more is sent as soon as
its failures alone pass the threshold. By HTCondor's rule a place that fails everything is first seen to at the end.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Self

INTERVAL = timedelta(seconds=600)
"""How long sent and failed things are counted before the quota is adjusted."""

_QUOTA_THAT_IS_NONE = 10_000
"""A quota of so many times what may fail in an interval bounds nothing any more."""


@dataclass(frozen=True, slots=True)
class FailureRate:
    """What was sent to one place and how it went.

    `threshold` is how many failures a second are acceptable, above 0. `since` is the beginning of the interval that
    `sent`, `succeeded` and `failed` are counted in. `quota` is how many may be sent in an interval, 0 = any number.
    """

    threshold: float
    since: datetime
    quota: float = 0.0
    sent: int = 0
    succeeded: int = 0
    failed: int = 0

    def counted(self, *, sent: int = 0, succeeded: int = 0, failed: int = 0) -> Self:
        """Return the rate with so many more that were sent, and that ended one way or the other."""
        return replace(self, sent=self.sent + sent, succeeded=self.succeeded + succeeded, failed=self.failed + failed)

    def adjusted(self, under_way: int, now: datetime) -> Self:
        """Return the rate at `now`, in a new interval where this one is over; `under_way` were sent and did not end."""
        elapsed = now - self.since
        if elapsed < INTERVAL:
            return self
        if self.failed and self.failed / elapsed.total_seconds() > self.threshold:
            quota = self._acceptable * (self.failed + self.succeeded + under_way) / self.failed
        else:
            quota = self._relaxed()
        return replace(self, since=now, quota=quota, sent=0, succeeded=0, failed=0)

    def resumed(self, under_way: int, now: datetime) -> Self:
        """Return the rate as it was kept, for one who goes on with it at `now`; an interval that is over is judged.

        However long nobody counted, that is one interval, and no time in which all went well.
        """
        if now - self.since < INTERVAL:
            return replace(self, since=min(self.since, now))
        return replace(self.adjusted(under_way, self.since + INTERVAL), since=now)

    @property
    def is_blank(self) -> bool:
        """Whether there is nothing to remember."""
        return not (self.quota or self.sent or self.succeeded or self.failed)

    @property
    def obstacle(self) -> str:
        """Why nothing more may be sent before the interval is over; empty = something may."""
        if 0 < self.quota <= self.sent:
            return f"{self.sent} sent of {self.quota:g} in {_words(INTERVAL)}"
        if self.failed > self._acceptable:
            return f"{self.failed} failed in less than {_words(INTERVAL)}, where {self._acceptable:g} may"
        return ""

    @property
    def _acceptable(self) -> float:
        """How many may fail in an interval."""
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
