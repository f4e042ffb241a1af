"""Planned downtimes of sites, computing elements and queues.

Rules
-----
- No job starts whose stated wall time reaches beyond the start, and no pilot is sent whose life does (`MaxWallTime`).
- From `drain` before the start until the end the place is banned: no job starts at all. Jobs that state no wall time
  need this, to end in time.
- The ban belongs to the downtime. It begins and ends by the clock, and leaves an operator's bans alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from pilotage.resources.eligibility import Ban
from pilotage_server.core.resources.bans import TreeNode


@dataclass(frozen=True, slots=True)
class Downtime:
    """A downtime of a node of the tree, from `start` to `end`; `id` 0 = not stored yet."""

    node: TreeNode
    reason: str
    start: datetime
    end: datetime
    drain: timedelta
    by: str
    id: int = 0

    @property
    def ban(self) -> Ban:
        """The ban that the downtime is, which is in force while the place drains and until the end."""
        since = self.start - self.drain
        return Ban(self.node.site, self.node.ce, self.node.queue, self.reason, self.end, since, self.start)

    def __str__(self) -> str:
        """Return the downtime for people."""
        drain = f", draining {self.drain} before" if self.drain else ""
        return f"{self.node} from {self.start:%Y-%m-%d %H:%M} to {self.end:%Y-%m-%d %H:%M} UTC{drain}: {self.reason}"
