"""Leadership of agents: of the replicas of an agent on any number of hosts, one acts at a time.

Rules
-----
An agent is a name; agents that serve different things have different names. Leadership lasts for a term on the
database's clock. A replica that renews it within the term keeps it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from pilotage.values.leadership import Leadership


@dataclass(frozen=True, slots=True)
class LeadershipTerm:
    """A term of leadership: of which agent and replica, on which host, and until when."""

    leadership: Leadership
    host: str
    until: datetime

    def remaining(self, now: datetime) -> timedelta:
        """Return the rest of the term; zero = it is over."""
        return max(timedelta(0), self.until - now)
