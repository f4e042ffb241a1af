"""Shares as people are shown them: what groups and accounts have used, and what they are entitled to.

Rules
-----
The numbers are those that the order of a match is made of, so that it can be explained. Parts are of a VO: nobody
learns from them what other VOs use. Groups are listed that use something, wait, or have a quota of their own;
accounts in the same way.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from pilotage.folding import fold
from pilotage.quotas import Quota
from pilotage_server.core.accounting import Account, GroupId
from pilotage_server.core.fair_share import FairShare, Use


@dataclass(frozen=True, slots=True)
class GroupShare:
    """A group; the parts are of all use, and of all that groups are entitled to, in its VO, 0 to 1."""

    group: GroupId
    quota: Quota
    quota_is_set: bool
    core_s: float
    cores: float
    used_part: float
    entitled_part: float
    entitled_cores: float
    waiting: int


@dataclass(frozen=True, slots=True)
class AccountShare:
    """An account; `user_priority` is HTCondor's effective one, a greater one is worse."""

    account: Account
    factor: float
    factor_is_set: bool
    use: Use
    user_priority: float
    waiting: int


@dataclass(frozen=True, slots=True)
class Shares:
    """All of it at one time: groups by VO and name, accounts in the order in which they go."""

    groups: tuple[GroupShare, ...]
    accounts: tuple[AccountShare, ...]
    time: datetime
    half_life: timedelta
    pie: float
    surplus_accepted: bool

    def of_vo(self, vo: str) -> Shares:
        """Return what of this is one VO's."""
        groups = tuple(each for each in self.groups if fold(each.group.vo) == fold(vo))
        accounts = tuple(each for each in self.accounts if fold(each.account.vo) == fold(vo))
        return replace(self, groups=groups, accounts=accounts)


def shares_at(shares: FairShare, waiting: Mapping[Account, int], now: datetime) -> Shares:
    """Return the shares at `now`; `waiting` counts the jobs that wait, by account."""
    settings = shares.settings
    accounts = {*shares.accounts(), *waiting, *settings.operators.factors, *settings.rules.priority_factors}
    groups = {account.group_id for account in accounts} | {*settings.operators.quotas, *settings.rules.group_quotas}
    return Shares(
        groups=tuple(_groups(shares, waiting, groups, now)),
        accounts=tuple(
            _account(shares, account, waiting.get(account, 0), now) for account in _in_order(shares, accounts, now)
        ),
        time=now,
        half_life=settings.rules.half_life,
        pie=settings.pie,
        surplus_accepted=settings.rules.group_accept_surplus,
    )


def _in_order(shares: FairShare, accounts: Iterable[Account], now: datetime) -> list[Account]:
    round_ = shares.round(now)
    return sorted(accounts, key=lambda account: (round_.share(account), account))


def _account(shares: FairShare, account: Account, waiting: int, now: datetime) -> AccountShare:
    return AccountShare(
        account=account,
        factor=shares.settings.factor(account),
        factor_is_set=account in shares.settings.operators.factors,
        use=shares.use(account, now),
        user_priority=shares.user_priority(account, now),
        waiting=waiting,
    )


def _groups(
    shares: FairShare, waiting: Mapping[Account, int], groups: Iterable[GroupId], now: datetime
) -> list[GroupShare]:
    settings = shares.settings
    uses = {group: [shares.use(account, now) for account in shares.group_of(group)] for group in sorted(groups)}
    used = {group: math.fsum(use.core_s for use in of_group) for group, of_group in uses.items()}
    entitled = settings.entitlements(uses)
    # without any slot there is nothing to divide, but in which parts it would be is known
    parts = entitled if settings.pie else replace(settings, pie=1.0).entitlements(uses)
    waits: dict[GroupId, int] = defaultdict(int)
    for account, count in waiting.items():
        waits[account.group_id] += count
    return [
        GroupShare(
            group=group,
            quota=settings.quota(group),
            quota_is_set=group in settings.operators.quotas,
            core_s=used[group],
            cores=math.fsum(use.cores for use in of_group),
            used_part=_part(used, group),
            entitled_part=_part(parts, group),
            entitled_cores=entitled[group],
            waiting=waits[group],
        )
        for group, of_group in uses.items()
    ]


def _part(amounts: Mapping[GroupId, float], group: GroupId) -> float:
    whole = math.fsum(amount for other, amount in amounts.items() if other.vo == group.vo)
    return amounts[group] / whole if whole else 0.0
