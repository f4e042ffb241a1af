"""Which queues are left alone for a while, as what was sent there failed.

Rules
-----
A failure is a glidein that the batch system did not take, or a pilot that ended in error. Each in a row doubles
the pause of its queue; a pilot that has run jobs and ends well ends the row. One that came back empty says nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Self

from pilotage.resource_tree import QueueId
from pilotage_agents.core.backoff import backoff


@dataclass(frozen=True, slots=True)
class FailureRow:
    """Failures in a row at one queue; `reason` is that of the last, `until` the end of the pause."""

    failures: int
    reason: str
    until: datetime


@dataclass(frozen=True, slots=True)
class QueueFailures:
    """The rows of failures by queue; `first_pause` doubles with each failure up to `longest_pause`."""

    first_pause: timedelta = timedelta(seconds=2)
    longest_pause: timedelta = timedelta(minutes=10)
    rows: Mapping[QueueId, FailureRow] = field(default_factory=lambda: MappingProxyType({}))

    def failed(self, queue: QueueId, reason: str, now: datetime) -> Self:
        """Return the rows with one more failure of `queue`; those within its pause count as one."""
        row = self.rows.get(queue)
        if row is not None and now < row.until:
            return self
        failures = row.failures + 1 if row else 1
        pause = backoff(failures, self.first_pause, self.longest_pause)
        return self._with({**self.rows, queue: FailureRow(failures, reason, now + pause)})

    def went_well(self, queue: QueueId) -> Self:
        """Return the rows without that of `queue`."""
        return self._with({other: row for other, row in self.rows.items() if other != queue})

    def pause_of(self, queue: QueueId, now: datetime) -> str:
        """Return why `queue` is left alone at `now`; empty = it is not."""
        row = self.rows.get(queue)
        if row is None or now >= row.until:
            return ""
        seconds = (row.until - now).total_seconds()
        return f"paused for {seconds:.0f} s more after {row.failures} failures in a row, the last: {row.reason}"

    def _with(self, rows: Mapping[QueueId, FailureRow]) -> Self:
        return type(self)(self.first_pause, self.longest_pause, MappingProxyType(dict(rows)))
