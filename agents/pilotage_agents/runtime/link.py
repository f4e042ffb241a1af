"""Values and leadership calls that agents share; each agent defines the Protocol of its link beside its logic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from pilotage.job_description import Value
from pilotage.resources.tree import QueueId
from pilotage.values.leadership import UNKNOWN_CONDITION, AgentCondition, Leadership, LeadershipAnswer


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
        self, leadership: Leadership, for_s: float, host: str, condition: AgentCondition = UNKNOWN_CONDITION
    ) -> LeadershipAnswer:
        """Request or renew the leadership for `for_s` seconds from now; `host` and `condition` are for people."""

    async def release_leadership(self, leadership: Leadership) -> None:
        """Let another replica lead at once."""
