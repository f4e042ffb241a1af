"""Who has had how much: use that decays, and the order between groups and owners that follows from it.

Rules
-----
Use is core seconds, each core counted with the weight of its slot. It halves every half-life; what runs is added as
it accrues. Since a constant rate under exponential decay has a closed form, an account is a few numbers, however
many jobs it has run. A core that has just been given counts with some foresight, so that many slots given at once
are shared out fairly as well.

Groups that use less than the cores their quota entitles them to go first, those that use as many or more go last;
between them go the groups with weights. Among equals in that, the smaller use for what one is entitled to.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import IntEnum
from typing import NamedTuple

from pilotage_server.core.accounting import Account, GroupId
from pilotage_server.core.rules import Sharing
from pilotage_server.core.share_settings import ShareSettings

LEAST_USER_PRIORITY = 0.5
"""The user priority of who has used nothing, before his factor (HTCondor manual, "User Priorities")."""


@dataclass(frozen=True, slots=True)
class Use:
    """What an account has used up to `at`, in core seconds, and the `cores` that its `runs` use since, weighted."""

    core_s: float
    at: datetime
    cores: float = 0.0
    runs: int = 0

    def up_to(self, now: datetime, half_life: timedelta) -> Use:
        """Return the use at `now`, decayed and with what has accrued; a time before `at` changes nothing."""
        elapsed = max(0.0, (now - self.at).total_seconds())
        if elapsed == 0.0:
            return self
        return replace(
            self, core_s=self.core_s * decay(elapsed, half_life) + accrued(self.cores, elapsed, half_life), at=now
        )


def decay(elapsed_s: float, half_life: timedelta) -> float:
    """Return what is left of a use of 1 after so long."""
    return math.pow(0.5, elapsed_s / half_life.total_seconds())


def faded(half_life: timedelta) -> timedelta:
    """Return after how long a use counts nothing: what is left is less than rounding takes."""
    return 64 * half_life


def accrued(cores: float, elapsed_s: float, half_life: timedelta) -> float:
    """Return the decayed core seconds of `cores` used for the last `elapsed_s`."""
    rate = math.log(2) / half_life.total_seconds()
    return cores * -math.expm1(-rate * elapsed_s) / rate


def least_priority(half_life: timedelta) -> float:
    """Return the use, in core seconds, that HTCondor's lowest user priority stands for: half a core, for ever."""
    return LEAST_USER_PRIORITY * half_life.total_seconds() / math.log(2)


class Standing(IntEnum):
    """Where a group stands with its quota; the smaller goes first."""

    BELOW_QUOTA = 0
    WEIGHTED = 1
    AT_QUOTA = 2


class Share(NamedTuple):
    """How much of its fair share an account has had; the smaller goes first.

    `group` and `owner` relate use to what the group and the owner are entitled to; of owners who have used
    nothing, the smaller `factor` goes first.
    """

    standing: Standing
    group: float
    owner: float
    factor: float


class FairShare:
    """The accounts of one server, and the order between them."""

    def __init__(self, sharing: Sharing) -> None:
        self.settings = ShareSettings(sharing)
        self._uses: dict[Account, Use] = {}
        self._groups: dict[GroupId, set[Account]] = {}

    def load(self, uses: Iterable[tuple[Account, Use]]) -> None:
        """Forget all uses and take in these."""
        self._uses.clear()
        self._groups.clear()
        for account, use in uses:
            self._put(account, use)

    def started(self, account: Account, cores: float, now: datetime, since: datetime | None = None) -> None:
        """Let the account use so many cores more, weighted, from now on, or as if from `since` on."""
        use = self._at(account, now)
        elapsed_s = 0.0 if since is None else max(0.0, (now - since).total_seconds())
        core_s = use.core_s + accrued(cores, elapsed_s, self._half_life)
        self._put(account, Use(core_s, use.at, use.cores + cores, use.runs + 1))

    def ended(self, account: Account, cores: float, now: datetime) -> None:
        """Let the account use so many cores less, weighted, from now on."""
        use = self._at(account, now)
        # who runs nothing uses exactly nothing, whatever rounding has left of the sums
        left = max(0.0, use.cores - cores) if use.runs > 1 else 0.0
        self._put(account, Use(use.core_s, use.at, left, max(0, use.runs - 1)))

    def forget(self, accounts: Iterable[Account]) -> None:
        """Drop accounts whose use has faded, unless they use cores now."""
        for account in accounts:
            if account in self._uses and not self._uses[account].runs:
                del self._uses[account]
                self._groups[account.group_id].discard(account)

    def use(self, account: Account, now: datetime) -> Use:
        """Return what the account has used up to `now`."""
        return self._at(account, now)

    def accounts(self) -> tuple[Account, ...]:
        """Return the accounts with a use, sorted."""
        return tuple(sorted(self._uses))

    def group_of(self, group: GroupId) -> tuple[Account, ...]:
        """Return the accounts of a group that have a use."""
        return tuple(self._groups.get(group, ()))

    def round(self, now: datetime) -> ShareRound:
        """Return a view of the shares at `now` that a round of matching can charge without touching this."""
        return ShareRound(self, now)

    def user_priority(self, account: Account, now: datetime) -> float:
        """Return the effective user priority as HTCondor counts it: a greater one is worse.

        It is the decayed mean of the cores in use, at least 0.5, times the priority factor (HTCondor manual, "User
        Priorities and Negotiation").
        """
        used = max(least_priority(self._half_life), self._at(account, now).core_s)
        return used * math.log(2) / self._half_life.total_seconds() * self.settings.factor(account)

    def foreseen(self, use: Use) -> float:
        """Return the use that counts in the order: what was used, and foresight for the cores in use."""
        return use.core_s + use.cores * self.foresight_s

    @property
    def foresight_s(self) -> float:
        """What a core that was just given counts, in core seconds."""
        return self.settings.rules.foresight.total_seconds()

    @property
    def _half_life(self) -> timedelta:
        return self.settings.rules.half_life

    def _at(self, account: Account, now: datetime) -> Use:
        use = self._uses.get(account)
        return Use(0.0, now) if use is None else use.up_to(now, self._half_life)

    def _put(self, account: Account, use: Use) -> None:
        self._uses[account] = use
        self._groups.setdefault(account.group_id, set()).add(account)


@dataclass(frozen=True, slots=True)
class _Had:
    """What somebody has had so far: use that counts in the order, in core seconds, and weighted cores in use."""

    core_s: float
    cores: float

    def and_given(self, cores: float, foresight_s: float) -> _Had:
        return _Had(self.core_s + cores * foresight_s, self.cores + cores)


class ShareRound:
    """The shares as they stand during one round: fixed at its time, moved only by what the round gives."""

    def __init__(self, shares: FairShare, now: datetime) -> None:
        self._shares = shares
        self._settings = shares.settings
        self._now = now
        self._owners: dict[Account, _Had] = {}
        self._groups: dict[GroupId, _Had] = {}

    def share(self, account: Account) -> Share:
        """Return how much of its fair share the account has had."""
        group = self._of_group(account.group_id)
        factor = self._settings.factor(account)
        owner = self._of_owner(account).core_s * factor
        bound = self._settings.bound(account.group_id)
        if bound is None:
            return Share(Standing.WEIGHTED, group.core_s / self._settings.weight(account.group_id), owner, factor)
        standing = Standing.BELOW_QUOTA if group.cores < bound else Standing.AT_QUOTA
        return Share(standing, group.core_s / bound, owner, factor)

    def can_bar(self, account: Account) -> bool:
        """Whether the account's group has a quota that bars what is above it."""
        return self._settings.barring(account.group_id) is not None

    def bars(self, account: Account, cores: float) -> bool:
        """Whether so many weighted cores more would bring the account's group above a quota that bars."""
        bound = self._settings.barring(account.group_id)
        return bound is not None and self._of_group(account.group_id).cores + cores > bound

    def user_priority(self, account: Account) -> float:
        """Return the account's effective user priority; a greater one is worse."""
        return self._shares.user_priority(account, self._now)

    def charge(self, account: Account, cores: float) -> None:
        """Count what the round has just given, in weighted cores."""
        foresight_s = self._shares.foresight_s
        self._groups[account.group_id] = self._of_group(account.group_id).and_given(cores, foresight_s)
        self._owners[account] = self._of_owner(account).and_given(cores, foresight_s)

    def _of_owner(self, account: Account) -> _Had:
        if account not in self._owners:
            use = self._shares.use(account, self._now)
            self._owners[account] = _Had(self._shares.foreseen(use), use.cores)
        return self._owners[account]

    def _of_group(self, group: GroupId) -> _Had:
        if group not in self._groups:
            uses = [self._shares.use(member, self._now) for member in self._shares.group_of(group)]
            # fsum is exact, so the order in which a set yields its members cannot change the outcome
            core_s, cores = math.fsum(map(self._shares.foreseen, uses)), math.fsum(use.cores for use in uses)
            self._groups[group] = _Had(core_s, cores)
        return self._groups[group]
