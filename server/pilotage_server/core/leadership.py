"""Leadership of agents: of the replicas of an agent on any number of hosts, one acts at a time.

Rules
-----
An agent is a name; agents that serve different things have different names. Leadership lasts for a term on the
database's clock. A replica that renews it within the term keeps it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from pilotage.resources.queue_patterns import matches_any
from pilotage.resources.tree import QueueId
from pilotage.text import fold, folded_set
from pilotage.values.leadership import EVERY_SERVED_QUEUE, NO_STATUS, AgentStatus, Leadership, ServedQueues


@dataclass(frozen=True, slots=True)
class LeadershipTerm:
    """A term of leadership: of which agent and replica, on which host, and until when.

    `serves` are the queues that the agent acts on, `bounds` patterns of those that its token is bound to; empty = any.
    """

    leadership: Leadership
    host: str
    until: datetime
    serves: ServedQueues = EVERY_SERVED_QUEUE
    bounds: tuple[str, ...] = ()

    def remaining(self, now: datetime) -> timedelta:
        """Return the rest of the term; zero = it is over."""
        return max(timedelta(0), self.until - now)

    def has_queue(self, queue: QueueId, ce_type: str) -> bool:
        """Return whether the agent acts on a queue of this CEType."""
        ce_types, needed = folded_set(self.serves.ce_types), (self.serves.patterns, self.bounds)
        is_of_type = not ce_types or fold(ce_type) in ce_types
        return is_of_type and all(not patterns or matches_any(queue, patterns) for patterns in needed)


class AgentState(StrEnum):
    """The state of a replica of an agent; SILENT = it does not call any more, and has not said that it ends."""

    LEADER = "LEADER"
    STANDBY = "STANDBY"
    SILENT = "SILENT"
    ENDED = "ENDED"


LONGEST_BACK_OFF = timedelta(minutes=5)
"""The longest pause of an agent after a failed cycle, in which it does not call either."""


@dataclass(frozen=True, slots=True)
class AgentReplica:
    """A replica of an agent as of its last call; `owner` is that of its token.

    `due` = when its next call is due at the latest; `ended` None = it has not said that it ends.
    """

    leadership: Leadership
    host: str
    owner: str
    since: datetime
    last_seen: datetime
    due: datetime
    serves: ServedQueues = EVERY_SERVED_QUEUE
    bounds: tuple[str, ...] = ()
    status: AgentStatus = NO_STATUS
    ended: datetime | None = None

    def state(self, now: datetime, leader: LeadershipTerm | None) -> AgentState:
        """Return its state; `leader` is the present term of its agent, None = no replica leads."""
        if self.ended is not None:
            return AgentState.ENDED
        if self.due <= now:
            return AgentState.SILENT
        return AgentState.LEADER if leader and leader.leadership == self.leadership else AgentState.STANDBY


def next_call_due(now: datetime, length: timedelta, status: AgentStatus) -> datetime:
    """Return when a replica that requests a term of this length calls again at the latest."""
    return now + length + (LONGEST_BACK_OFF if status.failures else timedelta(0))
