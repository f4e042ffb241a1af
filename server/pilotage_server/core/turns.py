"""Turns of agents: of the copies of an agent that run on any number of hosts, one acts at a time.

Rules
-----
An agent is a name; two that serve different things have different names. A turn is had for a while, on the database's
clock, and must be renewed within it. A copy that has its turn keeps it for as long as it asks in time.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta


@dataclass(frozen=True, slots=True)
class Turn:
    """The turn of an agent, as one of its copies has it or wants it."""

    agent: str
    holder: str


@dataclass(frozen=True, slots=True)
class TurnHad:
    """The turn of an agent, where the copy runs that has it, and until when."""

    turn: Turn
    place: str
    until: datetime

    def left(self, now: datetime) -> timedelta:
        """Return for how long it is had still; zero = it is over."""
        return max(timedelta(0), self.until - now)
