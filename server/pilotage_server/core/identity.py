"""Who calls: the identity that the server believes, and what a pilot's credential allows."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from pilotage.resource_tree import QueueId


class Role(StrEnum):
    """What an identity may do."""

    USER = "user"
    OPERATOR = "operator"
    PILOT = "pilot"
    AGENT = "agent"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class PilotCredential:
    """What a pilot's token is bound to; `vos` empty = every VO that the queue's access list allows."""

    stamp: str
    queue: QueueId
    vos: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Identity:
    """The caller; `groups` has the default group first; `pilot` is set when, and only when, it is a pilot."""

    owner: str
    vo: str
    groups: tuple[str, ...]
    roles: frozenset[Role]
    pilot: PilotCredential | None = None

    @property
    def sees_everything(self) -> bool:
        """Whether the caller may see and change the jobs of others."""
        return bool(self.roles & {Role.OPERATOR, Role.ADMIN})

    @property
    def is_shown_everything(self) -> bool:
        """Whether the caller may see the jobs of others, and what happens to them."""
        return self.sees_everything or Role.AGENT in self.roles
