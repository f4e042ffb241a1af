"""Leadership of agents: of the replicas of an agent one acts at a time, and leads for a limited time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta


@dataclass(frozen=True, slots=True)
class Leadership:
    """The leadership of an agent, held or requested by one of its replicas; `holder` identifies the replica."""

    agent: str
    holder: str


@dataclass(frozen=True, slots=True)
class ServedQueues:
    """The queues that an agent acts on: those that match one of `patterns` and have one of `ce_types`; empty = any."""

    patterns: tuple[str, ...] = ()
    ce_types: tuple[str, ...] = ()


EVERY_SERVED_QUEUE = ServedQueues()
"""An agent that acts on all queues."""


_LONGEST_AGE = timedelta(days=36525)
"""Clocks may show anything: a century is older than all that agents report."""


@dataclass(frozen=True, slots=True)
class AgentStatus:
    """What a replica of an agent reports of itself: its release, and the ends of its cycles as leader.

    `failures` counts the failed cycles in a row; `last_error` is the text of the last failed one, also when cycles have
    succeeded since.
    """

    version: str = ""
    last_cycle: datetime | None = None
    last_success: datetime | None = None
    failures: int = 0
    last_error: str = ""
    last_error_time: datetime | None = None

    def received(self, sent: datetime, now: datetime) -> AgentStatus:
        """Return it with the times of the receiver's clock, which is at `now` when the sender's is at `sent`."""

        def moved(time: datetime | None) -> datetime | None:
            return None if time is None else now - min(max(sent - time, timedelta(0)), _LONGEST_AGE)

        return replace(
            self,
            last_cycle=moved(self.last_cycle),
            last_success=moved(self.last_success),
            last_error_time=moved(self.last_error_time),
        )


NO_STATUS = AgentStatus()
"""A replica that has reported nothing."""


@dataclass(frozen=True, slots=True)
class LeadershipAnswer:
    """Whether the requesting replica leads; the leader's host ("" = no leader), and how long it still leads."""

    granted: bool
    host: str
    left: timedelta = timedelta(0)
