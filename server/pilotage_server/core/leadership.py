"""Leadership of agents: of the replicas of an agent on any number of hosts, one acts at a time.

Rules
-----
An agent is a name; agents that serve different things have different names. Leadership lasts for a term on the
database's clock. A replica that renews it within the term keeps it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from pilotage.resources.queue_patterns import matches_any
from pilotage.resources.tree import QueueId
from pilotage.text import fold, folded_set
from pilotage.values.leadership import EVERY_SERVED_QUEUE, Leadership, ServedQueues


@dataclass(frozen=True, slots=True)
class LeadershipTerm:
    """A term of leadership: of which agent and replica, on which host, and until when.

    `serves` are the queues that the agent acts on, `bounds` patterns of those that its token is bound to; empty = any.
    `release` = that of the replica's program, "" = not known. `succeeded` = the end of its last cycle without a fault.
    `fault` = why a later cycle has failed, "" = none has.
    """

    leadership: Leadership
    host: str
    until: datetime
    serves: ServedQueues = EVERY_SERVED_QUEUE
    bounds: tuple[str, ...] = ()
    release: str = ""
    succeeded: datetime | None = None
    fault: str = ""

    def remaining(self, now: datetime) -> timedelta:
        """Return the rest of the term; zero = it is over."""
        return max(timedelta(0), self.until - now)

    def has_queue(self, queue: QueueId, ce_type: str) -> bool:
        """Return whether the agent acts on a queue of this CEType."""
        ce_types, needed = folded_set(self.serves.ce_types), (self.serves.patterns, self.bounds)
        is_of_type = not ce_types or fold(ce_type) in ce_types
        return is_of_type and all(not patterns or matches_any(queue, patterns) for patterns in needed)
