"""Who has had how much: use that decays and accrues.

Rules
-----
Use is core seconds, each core counted with the weight of its slot. It halves every half-life; what runs is added as
it accrues. Since a constant rate under exponential decay has a closed form, an account is a few numbers, however
many jobs it has run. A core that has just been given counts with some foresight, so that many slots given at once
are shared out fairly as well. The order between groups and owners that follows is that of their standings.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import datetime, timedelta
from functools import partial
from typing import NamedTuple

from pilotage_server.core.accounting import Account, GroupId
from pilotage_server.core.rules import Sharing
from pilotage_server.core.share_settings import ShareSettings
from pilotage_server.core.standings import Had, ShareRound, Standings, tick_of

LEAST_USER_PRIORITY = 0.5
"""The user priority of who has used nothing, before his factor (HTCondor manual, "User Priorities")."""


class Use(NamedTuple):
    """What an account has used up to `at`, in core seconds, and the `cores` that its `runs` use since, weighted."""

    core_s: float
    at: datetime
    cores: float = 0.0
    runs: int = 0

    def up_to(self, now: datetime, half_life: timedelta) -> Use:
        """Return the use at `now`, decayed and with what has accrued; a time before `at` changes nothing."""
        if now <= self.at:
            return self
        elapsed = (now - self.at).total_seconds()
        core_s = self.core_s * decay(elapsed, half_life) + accrued(self.cores, elapsed, half_life)
        return Use(core_s, now, self.cores, self.runs)


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


class FairShare:
    """The accounts of one server."""

    def __init__(self, sharing: Sharing) -> None:
        self.settings = ShareSettings(sharing)
        self._uses: dict[Account, Use] = {}
        self._groups: dict[GroupId, set[Account]] = {}
        self._standings: Standings | None = None

    def load(self, uses: Iterable[tuple[Account, Use]]) -> None:
        """Forget all uses and take in these."""
        self._uses.clear()
        self._groups.clear()
        self._standings = None
        for account, use in uses:
            self._put(account, use)

    def started(self, account: Account, cores: float, now: datetime, since: datetime | None = None) -> None:
        """Let the account use so many cores more, weighted, from now on, or as if from `since` on."""
        if self._standings is not None:
            self._standings.give(account, cores)
        self.charge(account, cores, 1, now, since)

    def charge(self, account: Account, cores: float, runs: int, now: datetime, since: datetime | None = None) -> None:
        """Charge so many more runs, which use so many cores together, and of which the standings know already."""
        use = self._at(account, now)
        elapsed_s = 0.0 if since is None else max(0.0, (now - since).total_seconds())
        core_s = use.core_s + accrued(cores, elapsed_s, self._half_life) if elapsed_s else use.core_s
        self._put(account, Use(core_s, use.at, use.cores + cores, use.runs + runs))

    def ended(self, account: Account, cores: float, now: datetime, runs: int = 1) -> None:
        """Let the account use so many cores less, weighted, from now on, as so many runs of it are over."""
        use = self._at(account, now)
        # who runs nothing uses exactly nothing, whatever rounding has left of the sums
        left = max(0.0, use.cores - cores) if use.runs > runs else 0.0
        if self._standings is not None:
            self._standings.give(account, left - use.cores)
        self._put(account, Use(use.core_s, use.at, left, max(0, use.runs - runs)))

    def forget(self, accounts: Iterable[Account]) -> None:
        """Drop accounts whose use has faded, unless they use cores now."""
        for account in accounts:
            if account in self._uses and not self._uses[account].runs:
                del self._uses[account]
                self._groups[account.group_id].discard(account)
                self._standings = None

    def use(self, account: Account, now: datetime) -> Use:
        """Return what the account has used up to `now`."""
        return self._at(account, now)

    def accounts(self) -> tuple[Account, ...]:
        """Return the accounts with a use, sorted."""
        return tuple(sorted(self._uses))

    def group_of(self, group: GroupId) -> tuple[Account, ...]:
        """Return the accounts of a group that have a use."""
        return tuple(self._groups.get(group, ()))

    def standings(self, now: datetime) -> Standings:
        """Return the order of the tick that `now` is in, as it moves with what starts and ends."""
        standings = self._standings
        if standings is None or standings.settings is not self.settings or not standings.holds_at(now):
            tick = tick_of(now)
            standings = Standings(self.settings, tick, partial(self._had, tick), self.group_of)
            self._standings = standings
        return standings

    def round(self, now: datetime) -> ShareRound:
        """Return a view of the shares at `now` that a round of matching can charge without touching this."""
        return ShareRound(self.standings(now), lambda account: self.user_priority(account, now))

    def user_priority(self, account: Account, now: datetime) -> float:
        """Return the effective user priority as HTCondor counts it: a greater one is worse.

        It is the decayed mean of the cores in use, at least 0.5, times the priority factor (HTCondor manual, "User
        Priorities and Negotiation").
        """
        used = max(least_priority(self._half_life), self._at(account, now).core_s)
        return used * math.log(2) / self._half_life.total_seconds() * self.settings.factor(account)

    def _had(self, tick: datetime, account: Account) -> Had:
        """Return what counts in the order: what was used, and foresight for the cores in use."""
        use = self._at(account, tick)
        return Had(use.core_s + use.cores * self.settings.rules.foresight.total_seconds(), use.cores)

    @property
    def _half_life(self) -> timedelta:
        return self.settings.rules.half_life

    def _at(self, account: Account, now: datetime) -> Use:
        use = self._uses.get(account)
        return Use(0.0, now) if use is None else use.up_to(now, self._half_life)

    def _put(self, account: Account, use: Use) -> None:
        if account not in self._uses:
            self._groups.setdefault(account.group_id, set()).add(account)
        self._uses[account] = use
