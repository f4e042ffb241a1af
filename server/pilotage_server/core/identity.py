"""Identities of callers, and the accounts that jobs are charged to.

Rules
-----
The owner of a job and the account that it is charged to are different things: an accounting group, derived on the
server, may replace the owner's own account. The VO of a job always pays.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from pilotage.accounts import LARGEST
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


def slot_weight(value: object, cores: float) -> float:
    """Return the weight of a slot whose SlotWeight has this value; `cores` unless it is a number from 0 up."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= LARGEST:
        return cores
    return float(value)


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
