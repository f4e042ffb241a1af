"""Who has had how much: use that decays, and the order between groups and owners that follows from it.

Rules
-----
Use is core seconds. It halves every half-life; what runs is added as it accrues. Since a constant rate under
exponential decay has a closed form, an account is three numbers, however many jobs it has run. A core that has
just been given counts with some foresight, so that many slots given at once are shared out fairly as well.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import NamedTuple

from pilotage_server.core.rules import Sharing
from pilotage_server.core.task_queues import Account


@dataclass(frozen=True, slots=True)
class Use:
    """What an account has used up to `at`, in core seconds, and the `cores` that it uses since."""

    core_s: float
    at: datetime
    cores: int = 0

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


def accrued(cores: int, elapsed_s: float, half_life: timedelta) -> float:
    """Return the decayed core seconds of `cores` used for the last `elapsed_s`."""
    rate = math.log(2) / half_life.total_seconds()
    return cores * -math.expm1(-rate * elapsed_s) / rate


class Share(NamedTuple):
    """How much of its fair share an account has had; the smaller goes first."""

    group: float
    owner: float


class FairShare:
    """The accounts of one server, and the order between them."""

    def __init__(self, sharing: Sharing) -> None:
        self._sharing = sharing
        self._uses: dict[Account, Use] = {}
        self._groups: dict[tuple[str, str], set[Account]] = {}

    def load(self, uses: Iterable[tuple[Account, Use]]) -> None:
        """Forget everything and take in these uses."""
        self._uses.clear()
        self._groups.clear()
        for account, use in uses:
            self._put(account, use)

    def started(self, account: Account, cores: int, now: datetime) -> None:
        """Let the account use so many cores more from now on."""
        use = self._at(account, now)
        self._put(account, replace(use, cores=use.cores + cores))

    def ended(self, account: Account, cores: int, now: datetime) -> None:
        """Let the account use so many cores less from now on."""
        use = self._at(account, now)
        self._put(account, replace(use, cores=max(0, use.cores - cores)))

    def forget(self, accounts: Iterable[Account]) -> None:
        """Drop accounts whose use has faded, unless they use cores now."""
        for account in accounts:
            if account in self._uses and not self._uses[account].cores:
                del self._uses[account]
                self._groups[account.vo, account.group].discard(account)

    def use(self, account: Account, now: datetime) -> Use:
        """Return what the account has used up to `now`."""
        return self._at(account, now)

    def round(self, now: datetime) -> ShareRound:
        """Return a view of the shares at `now` that a round of matching can charge without touching this."""
        return ShareRound(self, now)

    def foreseen(self, account: Account, now: datetime) -> float:
        """Return the use that counts in the order: what was used, and foresight for the cores in use."""
        use = self._at(account, now)
        return use.core_s + use.cores * self.foresight_s

    def group_of(self, account: Account) -> tuple[Account, ...]:
        """Return the accounts with a use that share the group of this one."""
        return tuple(self._groups.get((account.vo, account.group), ()))

    @property
    def foresight_s(self) -> float:
        """What a core that was just given counts, in core seconds."""
        return self._sharing.foresight.total_seconds()

    def quota(self, account: Account) -> float:
        """Return the quota of the account's group."""
        return self._sharing.group_quotas.get(f"{account.vo}/{account.group}", 1.0)

    def factor(self, account: Account) -> float:
        """Return the account's priority factor."""
        return self._sharing.priority_factors.get(str(account), 1.0)

    def _at(self, account: Account, now: datetime) -> Use:
        use = self._uses.get(account)
        return Use(0.0, now) if use is None else use.up_to(now, self._sharing.half_life)

    def _put(self, account: Account, use: Use) -> None:
        self._uses[account] = use
        self._groups.setdefault((account.vo, account.group), set()).add(account)


class ShareRound:
    """The shares as they stand during one round: fixed at its time, moved only by what the round gives."""

    def __init__(self, shares: FairShare, now: datetime) -> None:
        self._shares = shares
        self._now = now
        self._owners: dict[Account, float] = {}
        self._groups: dict[tuple[str, str], float] = {}

    def share(self, account: Account) -> Share:
        """Return how much of its fair share the account has had."""
        return Share(
            self._group_use(account) / self._shares.quota(account),
            self._owner_use(account) * self._shares.factor(account),
        )

    def charge(self, account: Account, cores: int) -> None:
        """Count what the round has just given."""
        charge = cores * self._shares.foresight_s
        self._owners[account] = self._owner_use(account) + charge
        self._groups[account.vo, account.group] = self._group_use(account) + charge

    def _owner_use(self, account: Account) -> float:
        if account not in self._owners:
            self._owners[account] = self._shares.foreseen(account, self._now)
        return self._owners[account]

    def _group_use(self, account: Account) -> float:
        group = (account.vo, account.group)
        if group not in self._groups:
            members = self._shares.group_of(account)
            # fsum is exact, so the order in which a set yields its members cannot change the outcome
            self._groups[group] = math.fsum(self._shares.foreseen(member, self._now) for member in members)
        return self._groups[group]
