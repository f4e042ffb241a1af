"""Identities of callers, and the accounts that jobs are charged to.

Rules
-----
The owner of a job and the account that it is charged to are different things: an accounting group, derived on the
server, may replace the owner's own account. The VO of a job always pays.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from pilotage.resources.tree import QueueId
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
    AGENT = "agent"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class PilotCredential:
    """The binding of a pilot's token; `vos` empty = every VO that the queue's access list allows."""

    stamp: str
    queue: QueueId
    vos: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Identity:
    """The caller; `groups` has the default group first; `pilot` is set for pilots only."""

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


def holder_of(identity: Identity) -> Holder:
    """Return the holder of the caller's uploads."""
    return Holder("", f"pilot:{identity.pilot.stamp}") if identity.pilot else Holder(identity.vo, identity.owner)
