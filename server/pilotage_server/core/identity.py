"""Identities of callers, and the accounts that jobs are charged to.

Rules
-----
The owner of a job and the account that it is charged to are different things: an accounting group, derived on the
server, may replace the owner's own account. The VO of a job always pays.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import NamedTuple

from pilotage.errors import PermissionDeniedError
from pilotage.resources.queue_patterns import is_covered, matches_any
from pilotage.resources.tree import QueueId
from pilotage.text import fold, folded_set
from pilotage.values.accounts import Account


class Holder(NamedTuple):
    """The uploader of a content; a pilot has no VO."""

    vo: str
    owner: str


ACCOUNTING_GROUP = "accountinggroup"
"""Folded name of the job attribute that names the charged account; only the server sets it."""


def charged_account(owner: Account, accounting: str) -> Account:
    """Return the account that a job of `owner` with this AccountingGroup is charged to; "" = its owner's.

    "G.U" is the user U of the group G. Everything after the first dot is the user, so that "G.sub.U" is a user of G
    with its own priority. A name without a dot is a group, in which the owner is the user.
    Source: HTCondor manual, "Group Accounting", with groups of one level.
    """
    if not accounting:
        return owner
    group, _, user = accounting.partition(".")
    return Account(owner.vo, group or owner.group, user or owner.owner)


MAX_WEIGHT_OF_A_CORE = 100
"""The largest SlotWeight of a slot by its cores, so that a site cannot charge users for any use that it likes.

A slot with one core and half a terabyte of memory, weighed by memory, stays below it.
"""


def slot_weight(value: object, cores: float) -> float:
    """Return the weight of a slot whose SlotWeight has this value; `cores` unless it is a number from 0 up.

    A larger weight than `MAX_WEIGHT_OF_A_CORE` for each core, at least one, counts as that.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        return cores
    return min(float(value), MAX_WEIGHT_OF_A_CORE * max(cores, 1.0))


def name_fault(name: str, *, may_nest: bool = False) -> str:
    """Return why no owner, VO or group may have this name; "" = it may. `may_nest` = a slash is allowed, as in groups.

    Names are joined as VO/group/owner: with a slash in the first or the last, two accounts could be one.
    """
    if not name.isprintable():
        return "holds a character that cannot be printed"
    return "holds a slash" if "/" in name and not may_nest else ""


class Role(StrEnum):
    """A role of an identity."""

    USER = "user"
    OPERATOR = "operator"
    PILOT = "pilot"
    ENROLMENT = "enrolment"
    JOIN = "join"
    DIRECTOR = "director"
    ROUTER = "router"
    DRAINER = "drainer"
    CLEANER = "cleaner"
    RACER = "racer"
    NOTIFIER = "notifier"
    ADMIN = "admin"


AGENT_NAMES: Mapping[Role, tuple[str, ...]] = {
    Role.DIRECTOR: ("site director", "task-queue director"),
    Role.ROUTER: ("job router",),
    Role.DRAINER: ("drain controller",),
    Role.CLEANER: ("pool cleanup",),
    Role.RACER: ("racer",),
    Role.NOTIFIER: ("notifier",),
}
"""Role of agents → how the names of their leaderships begin: "site director" or "site director of QUEUES"."""

_OPERATORS = frozenset({Role.OPERATOR, Role.ADMIN})


NO_QUEUE = QueueId("", "", "")
"""The queue of a pilot that has a set of queues and has not enrolled: it has yet to say where it landed."""


@dataclass(frozen=True, slots=True)
class PilotCredential:
    """The binding of a pilot's token; `vos` empty = every VO that the queue's access list allows.

    `nonce_hash` is that of the random bytes which the pilot enrolled with; "" = it has not enrolled yet. An enrolment
    secret for a set of queues has their patterns in `queue_set`, and NO_QUEUE.
    """

    stamp: str
    queue: QueueId
    vos: tuple[str, ...] = ()
    nonce_hash: str = ""
    queue_set: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AgentBounds:
    """What an agent's token is bound to: patterns of queues, VOs, names of leaderships; empty = not bound."""

    queues: tuple[str, ...] = ()
    vos: tuple[str, ...] = ()
    turns: tuple[str, ...] = ()

    def has_queue(self, queue: QueueId) -> bool:
        """Return whether the agent may act on the queue."""
        return not self.queues or matches_any(queue, self.queues)

    def has_queue_set(self, patterns: Iterable[str]) -> bool:
        """Return whether the agent may act on every queue that one of the patterns may match."""
        return not self.queues or all(is_covered(pattern, self.queues) for pattern in patterns)

    def has_vo(self, vo: str) -> bool:
        """Return whether the agent may act for the VO; letter case does not count."""
        return not self.vos or fold(vo) in folded_set(self.vos)


UNBOUND = AgentBounds()
"""The bounds of a token without any."""


@dataclass(frozen=True, slots=True)
class Invitation:
    """What a join token is exchanged for: tokens of its owner with these roles and this lifetime."""

    roles: frozenset[Role]
    lifetime: timedelta


JOINABLE = frozenset({Role.USER, Role.DIRECTOR})
"""Roles that a join token may be exchanged for: submitting jobs, and running pilots at the machine's own queue."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The caller; `groups` has the default group first.

    `pilot` is set for pilots only, `bounds` for agents, `invitation` for join tokens.
    """

    owner: str
    vo: str
    groups: tuple[str, ...]
    roles: frozenset[Role]
    pilot: PilotCredential | None = None
    bounds: AgentBounds = UNBOUND
    invitation: Invitation | None = None

    @property
    def sees_everything(self) -> bool:
        """Whether the caller may see and change the jobs of others."""
        return bool(self.roles & _OPERATORS)

    @property
    def is_shown_everything(self) -> bool:
        """Whether the caller may see the pools and queues of all VOs; agents may, within their bounds."""
        return self.sees_everything or not self.roles.isdisjoint(AGENT_NAMES)


def is_turn_of(name: str, role: Role) -> bool:
    """Return whether a leadership has the name of an agent with this role."""
    return any(name == kind or name.startswith(f"{kind} of ") for kind in AGENT_NAMES[role])


def may_use_turn(identity: Identity, name: str) -> bool:
    """Return whether the caller may take, or act under, the leadership of this name.

    An agent may use those of its kind of agent, and of these only the ones in its bounds.
    """
    is_own = identity.sees_everything or any(is_turn_of(name, role) for role in identity.roles if role in AGENT_NAMES)
    return is_own and (not identity.bounds.turns or name in identity.bounds.turns)


def check_turn(identity: Identity, name: str) -> None:
    """Raise PermissionDeniedError unless `may_use_turn`."""
    if not may_use_turn(identity, name):
        raise PermissionDeniedError(f"the token of {identity.owner} is not for the turn {name!r}")


def check_queues(identity: Identity, queues: Iterable[QueueId]) -> None:
    """Raise PermissionDeniedError unless all these queues are within the bounds of the caller."""
    for queue in queues:
        if not identity.bounds.has_queue(queue):
            bound = ", ".join(identity.bounds.queues)
            raise PermissionDeniedError(f"the token of {identity.owner} is bound to the queues {bound}, not {queue}")


def check_queue_set(identity: Identity, patterns: Sequence[str]) -> None:
    """Raise PermissionDeniedError unless this whole set of queues is within the bounds of the caller."""
    if not identity.bounds.has_queue_set(patterns):
        bound, wanted = ", ".join(identity.bounds.queues), ", ".join(patterns)
        raise PermissionDeniedError(
            f"the token of {identity.owner} is bound to the queues {bound}, which do not cover {wanted}"
        )


def holder_of(identity: Identity) -> Holder:
    """Return the holder of the caller's uploads."""
    return Holder("", f"pilot:{identity.pilot.stamp}") if identity.pilot else Holder(identity.vo, identity.owner)
