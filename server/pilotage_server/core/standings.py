"""The order between groups and owners at one time, and how it moves with what is given meanwhile.

Rules
-----
Shares are taken at whole ticks: who is asked about first in a tick is computed as of its beginning, and within the
tick only what is given and taken back moves him, by the cores and their foresight. So it costs nothing to give many
jobs, and whoever gives them in the same order finds the same shares to the last bit.

Groups that use less than the cores their quota entitles them to go first, those that use as many or more go last;
between them go the groups with weights. Among equals in that, the smaller use for what one is entitled to.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from enum import IntEnum
from typing import NamedTuple

from pilotage_server.core.accounting import Account, GroupId
from pilotage_server.core.share_settings import ShareSettings

TICK = timedelta(seconds=1)
"""Shares are computed anew after so long."""


class Standing(IntEnum):
    """Where a group stands with its quota; the smaller goes first. Shares have it as the number that it is."""

    BELOW_QUOTA = 0
    WEIGHTED = 1
    AT_QUOTA = 2


class Share(NamedTuple):
    """How much of its fair share an account has had; the smaller goes first.

    `standing` is the group's; `group` and `owner` relate use to what the group and the owner are entitled to; of owners
    who have used nothing, the smaller `factor` goes first.
    """

    standing: int
    group: float
    owner: float
    factor: float


class Had(NamedTuple):
    """What somebody has had so far: use that counts in the order, in core seconds, and weighted cores in use."""

    core_s: float
    cores: float

    def and_given(self, cores: float, foresight_s: float) -> Had:
        """Return what he has had when he is given so many weighted cores; less than 0 = they are taken back."""
        return Had(self.core_s + cores * foresight_s, self.cores + cores)


def tick_of(now: datetime) -> datetime:
    """Return the beginning of the tick that `now` is in."""
    return now.replace(microsecond=0)


class GroupStanding:
    """What a group has had, and what it is entitled to: cores (`bound`, None = by weight) or a weight.

    `standing` and `use` are its part of the shares of its accounts.
    """

    __slots__ = ("bound", "core_s", "cores", "standing", "use", "weight")

    def __init__(self, settings: ShareSettings, group: GroupId, had: Had) -> None:
        self.core_s, self.cores = had
        self.bound = settings.bound(group)
        self.weight = settings.weight(group)
        self.standing, self.use = self.stands(*had)

    def give(self, core_s: float, cores: float) -> None:
        """Count use in core seconds, and weighted cores."""
        self.core_s += core_s
        self.cores += cores
        if self.bound is None:
            self.use = self.core_s / self.weight
        else:
            self.standing, self.use = self.stands(self.core_s, self.cores)

    def stands(self, core_s: float, cores: float) -> tuple[int, float]:
        """Return the group's part of the shares of its accounts when it has had so much."""
        bound = self.bound
        if bound is None:
            return Standing.WEIGHTED, core_s / self.weight
        return Standing.BELOW_QUOTA if cores < bound else Standing.AT_QUOTA, core_s / bound


class OwnerStanding:
    """What an account has had, with its group and its priority factor; `use` is what counts in its group."""

    __slots__ = ("core_s", "cores", "factor", "group", "use")

    def __init__(self, settings: ShareSettings, account: Account, had: Had, group: GroupStanding) -> None:
        self.core_s, self.cores = had
        self.group = group
        self.factor = settings.factor(account)
        self.use = self.core_s * self.factor

    def give(self, cores: float, foresight_s: float) -> None:
        """Count weighted cores that the account uses from now on; less than 0 = no longer."""
        core_s = cores * foresight_s
        self.core_s += core_s
        self.cores += cores
        self.use = self.core_s * self.factor
        self.group.give(core_s, cores)

    def share(self) -> Share:
        """Return how much of its fair share the account has had."""
        return Share(self.group.standing, self.group.use, self.use, self.factor)


class Standings:
    """The shares of one tick.

    `had` tells what an account had had at the beginning of the tick, `members` which accounts of a group had anything.
    """

    def __init__(
        self,
        settings: ShareSettings,
        tick: datetime,
        had: Callable[[Account], Had],
        members: Callable[[GroupId], Iterable[Account]],
    ) -> None:
        self.settings = settings
        self._tick = tick
        self._end = tick + TICK
        self.moved: set[Account] = set()
        """The accounts to which something was given, or from which it was taken; who keeps an order empties it."""

        self.foresight_s = settings.rules.foresight.total_seconds()
        self._had_before = had
        self._members = members
        self._hads: dict[Account, Had] = {}
        self._owners: dict[Account, OwnerStanding] = {}
        self._groups: dict[GroupId, GroupStanding] = {}

    def holds_at(self, now: datetime) -> bool:
        """Whether `now` is in this tick."""
        return self._tick <= now < self._end

    def share(self, account: Account) -> Share:
        """Return how much of its fair share the account has had."""
        return self.owner(account).share()

    def give(self, account: Account, cores: float) -> None:
        """Count weighted cores that the account uses from now on; less than 0 = no longer."""
        self.owner(account).give(cores, self.foresight_s)
        self.moved.add(account)

    def owner(self, account: Account) -> OwnerStanding:
        """Return an account as it stands now."""
        owner = self._owners.get(account)
        if owner is None:
            group = self._group(account.group_id)
            owner = self._owners[account] = OwnerStanding(self.settings, account, self._had(account), group)
        return owner

    def _group(self, group: GroupId) -> GroupStanding:
        found = self._groups.get(group)
        if found is None:
            had = _together(map(self._had, self._members(group)))
            found = self._groups[group] = GroupStanding(self.settings, group, had)
        return found

    def _had(self, account: Account) -> Had:
        had = self._hads.get(account)
        if had is None:
            had = self._hads[account] = self._had_before(account)
        return had


class ShareRound:
    """The shares during one round, moved by what the round gives, which nobody else sees."""

    def __init__(self, standings: Standings, user_priority: Callable[[Account], float]) -> None:
        self.user_priority = user_priority
        self._standings = standings
        self._settings = standings.settings
        self._owners: dict[Account, Had] = {}
        self._groups: dict[GroupId, Had] = {}

    def share(self, account: Account) -> Share:
        """Return how much of its fair share the account has had."""
        owner = self._standings.owner(account)
        stands = owner.group.stands(*self._of_group(account))
        return Share(*stands, self._of_owner(account).core_s * owner.factor, owner.factor)

    def can_bar(self, account: Account) -> bool:
        """Whether the account's group has a quota that bars what is above it."""
        return self._settings.barring(account.group_id) is not None

    def bars(self, account: Account, cores: float) -> bool:
        """Whether so many weighted cores more would bring the account's group above a quota that bars."""
        bound = self._settings.barring(account.group_id)
        return bound is not None and self._of_group(account).cores + cores > bound

    def charge(self, account: Account, cores: float) -> None:
        """Count what the round has just given, in weighted cores."""
        foresight_s = self._standings.foresight_s
        self._groups[account.group_id] = self._of_group(account).and_given(cores, foresight_s)
        self._owners[account] = self._of_owner(account).and_given(cores, foresight_s)

    def _of_owner(self, account: Account) -> Had:
        owner = self._standings.owner(account)
        return self._owners.get(account) or Had(owner.core_s, owner.cores)

    def _of_group(self, account: Account) -> Had:
        group = self._standings.owner(account).group
        return self._groups.get(account.group_id) or Had(group.core_s, group.cores)


def _together(had: Iterable[Had]) -> Had:
    everybody = list(had)
    # fsum is exact, so the order in which a set yields its members cannot change the outcome
    return Had(math.fsum(each.core_s for each in everybody), math.fsum(each.cores for each in everybody))
