"""How many calls the next batch gets.

Rules
-----
A batch should run for `TARGET_S`: long against the cost of a job, short against the patience of the caller. The first
batches have one call each, as nothing is known of their duration. Batches that wait are at most as many as run, so
that free slots are found by doubling, and two calls of unknown duration do not become thousands of jobs. The last
calls are spread over what runs and waits.
"""

from __future__ import annotations

from dataclasses import dataclass

TARGET_S = 2.0
LARGEST_BATCH = 1000
_FEWEST_WAITING = 2
_WEIGHT = 0.1


@dataclass(slots=True)
class CallTimes:
    """The mean duration of the last calls in seconds, None = none has ended."""

    mean_s: float | None = None

    def add(self, seconds: float) -> None:
        """Add the duration of a call; later calls weigh more."""
        self.mean_s = seconds if self.mean_s is None else self.mean_s + _WEIGHT * (seconds - self.mean_s)


def batch_size(calls: int, running: int, waiting: int, mean_s: float | None) -> int:
    """Return the number of calls of the next batch, 0 = none is sent now.

    `calls` are not sent yet; `running` and `waiting` batches are.
    """
    if calls == 0 or waiting >= max(running, _FEWEST_WAITING):
        return 0
    if mean_s is None:
        return 1
    by_time = LARGEST_BATCH if mean_s * LARGEST_BATCH <= TARGET_S else max(1, int(TARGET_S / mean_s))
    share = -(-calls // (2 * max(1, running + waiting)))
    return min(calls, by_time, share)
