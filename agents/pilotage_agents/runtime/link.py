"""Values and leadership calls that agents share; each agent defines the Protocol of its link beside its logic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from pilotage.job_description import Value
from pilotage.resources.tree import QueueId
from pilotage.values.leadership import AgentStatus, Leadership, LeadershipAnswer


@dataclass(frozen=True, slots=True)
class TreeQueue:
    """A queue of the tree with its effective values, without any VO's overlay."""

    id: QueueId
    enabled: bool
    parameters: dict[str, Value]


@dataclass(frozen=True, slots=True)
class RegisteredPilot:
    """A pilot's stamp and its new token."""

    stamp: str
    token: str


class LeadershipLink(Protocol):
    """The leadership calls to the server; each raises a PilotageError when it fails."""

    async def take_leadership(
        self, leadership: Leadership, for_s: float, host: str, status: AgentStatus
    ) -> LeadershipAnswer:
        """Request or renew the leadership for `for_s` seconds from now; `host` is the replica's host, for people.

        `status` is what the replica reports of itself.
        """

    async def release_leadership(self, leadership: Leadership) -> None:
        """Let another replica lead at once; the replica ends, also if it does not lead."""
