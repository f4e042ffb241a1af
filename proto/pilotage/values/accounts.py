"""Accounts and their groups: the units that use is charged to."""

from __future__ import annotations

from typing import NamedTuple, Self

from pilotage.accounts import split_account, split_group


class GroupId(NamedTuple):
    """A group of a VO; `name` "" = the jobs without one."""

    vo: str
    name: str

    def __str__(self) -> str:
        """Return "vo/group", as quotas are named."""
        return f"{self.vo}/{self.name}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the group of "vo/group"; raises InvalidInputError."""
        return cls(*split_group(text))


class Account(NamedTuple):
    """The unit that use is charged to: one owner in one group of a VO."""

    vo: str
    group: str
    owner: str

    def __str__(self) -> str:
        """Return "vo/group/owner", as priority factors are named."""
        return f"{self.vo}/{self.group}/{self.owner}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the account of "vo/group/owner"; raises InvalidInputError."""
        return cls(*split_account(text))

    @property
    def group_id(self) -> GroupId:
        """The group that its use counts for."""
        return GroupId(self.vo, self.group)

    @property
    def owner_id(self) -> OwnerId:
        """The owner, in whichever group."""
        return OwnerId(self.vo, self.owner)


class OwnerId(NamedTuple):
    """An owner in a VO, whatever the group."""

    vo: str
    name: str

    def __str__(self) -> str:
        """Return the owner for people."""
        return f"{self.name} in VO {self.vo}"
