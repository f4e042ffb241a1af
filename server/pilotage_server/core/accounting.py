"""Accounts: whom a use is charged to, and the name of one that a submit policy may give to a job.

Rules
-----
Who owns a job is one thing, whom its use is charged to another: an accounting group, derived on the server, may
stand in for the owner's own account. The VO of a job is always the one that pays.
"""

from __future__ import annotations

from typing import NamedTuple, Self

from pilotage.account_names import split_account, split_group
from pilotage.quotas import LARGEST

ACCOUNTING_GROUP = "accountinggroup"
"""Folded name of the job attribute that says whom the job is charged to; only the server sets it."""


class GroupId(NamedTuple):
    """A group of a VO; `name` "" = the jobs without one."""

    vo: str
    name: str

    def __str__(self) -> str:
        """Return "vo/group", as quotas are named."""
        return f"{self.vo}/{self.name}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the group that `str` names so; raises InvalidInputError."""
        return cls(*split_group(text))


class Account(NamedTuple):
    """Whom a use is charged to: one owner in one group of a VO."""

    vo: str
    group: str
    owner: str

    def __str__(self) -> str:
        """Return "vo/group/owner", as priority factors are named."""
        return f"{self.vo}/{self.group}/{self.owner}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the account that `str` names so; raises InvalidInputError."""
        return cls(*split_account(text))

    @property
    def group_id(self) -> GroupId:
        """The group that its use counts for."""
        return GroupId(self.vo, self.group)


def charged_account(owner: Account, accounting: str) -> Account:
    """Return whom a job of `owner` is charged to when its AccountingGroup is `accounting`; "" = its owner.

    "G.U" is the user U of the group G; what follows the first dot is U, dots and all, so that "G.sub.U" is one of
    the users of G with a priority of its own. A name without a dot is a group, in which the owner is the user.
    Source: HTCondor manual, "Group Accounting", with groups of one level.
    """
    if not accounting:
        return owner
    group, _, user = accounting.partition(".")
    return Account(owner.vo, group or owner.group, user or owner.owner)


def slot_weight(said: object, cores: float) -> float:
    """Return the weight of a slot whose SlotWeight came to `said`: `cores` where that is no number from 0 up."""
    if isinstance(said, bool) or not isinstance(said, int | float) or not 0 <= said <= LARGEST:
        return cores
    return float(said)
