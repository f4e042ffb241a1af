"""Shares for display: the use and entitlement of groups and accounts.

The numbers are those of the match order, so that it can be explained. Parts are of a VO: they do not reveal the use of
other VOs. Groups and accounts are listed if they have use, waiting jobs, or a value of their own.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from pilotage.accounts import Quota
from pilotage.text import fold
from pilotage.values.accounts import Account, GroupId
from pilotage_server.core.accounting.fair_share import FairShare, Use


@dataclass(frozen=True, slots=True)
class GroupShare:
    """A group; the parts are of the use and of the entitlements in its VO, 0 to 1.

    `sort_value` = its value in the operators' order of groups, None = it has none. `goes_last` = why it goes after the
    groups with a value, "" = it does not.
    """

    group: GroupId
    quota: Quota
    quota_is_set: bool
    core_s: float
    cores: float
    used_part: float
    entitled_part: float
    entitled_cores: float
    waiting: int
    sort_value: float | None = None
    goes_last: str = ""


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
    """All shares at one time: groups by VO and name, accounts in fair order.

    With a `group_sort_expression`, groups are in the order in which they are considered.
    """

    groups: tuple[GroupShare, ...]
    accounts: tuple[AccountShare, ...]
    time: datetime
    half_life: timedelta
    pool_size: float
    surplus_accepted: bool
    group_sort_expression: str = ""

    def of_vo(self, vo: str) -> Shares:
        """Return the shares of one VO."""
        groups = tuple(each for each in self.groups if fold(each.group.vo) == fold(vo))
        accounts = tuple(each for each in self.accounts if fold(each.account.vo) == fold(vo))
        return replace(self, groups=groups, accounts=accounts)


def compute_shares(shares: FairShare, waiting: Mapping[Account, int], now: datetime) -> Shares:
    """Return the shares at `now`; `waiting` is the number of waiting jobs by account."""
    settings = shares.settings
    accounts = {*shares.accounts(), *waiting, *settings.operators.factors, *settings.rules.priority_factors}
    groups = {account.group_id for account in accounts} | {*settings.operators.quotas, *settings.rules.group_quotas}
    round_ = shares.round(now)
    in_order = sorted(accounts, key=lambda account: (round_.share(account), account))
    return Shares(
        groups=tuple(_groups(shares, waiting, _in_order(shares, groups, now), now)),
        accounts=tuple(_account(shares, account, waiting.get(account, 0), now) for account in in_order),
        time=now,
        half_life=settings.rules.half_life,
        pool_size=settings.pool_size,
        surplus_accepted=settings.rules.group_accept_surplus,
        group_sort_expression=shares.group_order.expression,
    )


def _in_order(shares: FairShare, groups: Iterable[GroupId], now: datetime) -> list[GroupId]:
    by_name, priorities = sorted(groups), shares.priorities(now)
    return sorted(by_name, key=lambda group: priorities.group(group).rank) if shares.group_order.expression else by_name


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
    settings, priorities = shares.settings, shares.priorities(now)
    uses = {group: [shares.use(account, now) for account in shares.group_of(group)] for group in groups}
    used = {group: math.fsum(use.core_s for use in of_group) for group, of_group in uses.items()}
    entitled = settings.entitlements(uses)
    # without slots there is nothing to divide, but the parts are known
    parts = entitled if settings.pool_size else replace(settings, pool_size=1.0).entitlements(uses)
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
            sort_value=priorities.group(group).sort_value.known if shares.group_order.expression else None,
            goes_last=priorities.group(group).goes_last if shares.group_order.expression else "",
        )
        for group, of_group in uses.items()
    ]


def _part(amounts: Mapping[GroupId, float], group: GroupId) -> float:
    whole = math.fsum(amount for other, amount in amounts.items() if other.vo == group.vo)
    return amounts[group] / whole if whole else 0.0
