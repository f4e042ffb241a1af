"""Whose turn it is among the accounts: groups, then owners, those furthest below their fair share first.

Rules
-----
The order is that of the standings of a tick; it is made anew for another tick, and moved meanwhile by what is given.
Only accounts for which something waits are in it; whose last job has gone leaves with the tick. Accounts with equal
shares go by who came first (DESIGN §7).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from pilotage_server.core.account_order import AccountOrder, Turn
from pilotage_server.core.accounting import Account, GroupId
from pilotage_server.core.standings import Share, Standings
from pilotage_server.core.waiting import WaitingIndex

_Rank: TypeAlias = tuple[float, float, int]
"""Sorts groups, or the owners of a group: the two parts of the share, then a number of its own."""


class Found(NamedTuple):
    """The task queue whose turn it is, and the share of its account."""

    turn: Turn
    share: Share


@dataclass(slots=True)
class _Group:
    number: int
    rank: _Rank
    owners: list[_Rank] = field(default_factory=list)


@dataclass(slots=True)
class _Owner:
    account: Account
    order: AccountOrder
    group: _Group
    rank: _Rank


class AccountTurns:
    """The order between the accounts of the index."""

    def __init__(self, waiting: WaitingIndex) -> None:
        self._waiting = waiting
        self._standings: Standings | None = None
        self._group_of: dict[GroupId, _Group] = {}
        self._owner_of: dict[Account, _Owner] = {}
        self._groups: list[_Group] = []
        self._owners: list[_Owner] = []
        self._order: list[_Rank] = []

    def first_among(self, places: int, standings: Standings) -> Found | None:
        """Return the task queue among these whose turn it is; None = nothing waits in any of them."""
        self._agree(standings)
        for tied in self._in_turn():
            turns = [turn for owner in tied if (turn := owner.order.first_among(places)) is not None]
            if turns:
                return Found(min(turns), standings.share(tied[0].account))
        return None

    def check(self) -> None:
        """Assert what must always be so."""
        assert self._order == sorted(group.rank for group in self._groups)
        for group in self._groups:
            assert group.owners == sorted(owner.rank for owner in self._owners if owner.group is group)

    def _in_turn(self) -> Iterator[list[_Owner]]:
        for groups in _ties(self._order):
            owners: Iterable[_Rank] = self._groups[groups[0][2]].owners
            if len(groups) > 1:
                owners = sorted(owner for _, _, number in groups for owner in self._groups[number].owners)
            for tied in _ties(owners):
                yield [self._owners[number] for _, _, number in tied]

    def _agree(self, standings: Standings) -> None:
        woken = self._waiting.woken
        if standings is not self._standings:
            self._start_anew(standings)
        elif standings.moved or woken:
            for account in standings.moved:
                self._move(account, standings)
            for account in woken:
                self._add(account, standings)
        standings.moved.clear()
        woken.clear()

    def _start_anew(self, standings: Standings) -> None:
        self._standings = standings
        self._group_of.clear()
        self._owner_of.clear()
        self._groups.clear()
        self._owners.clear()
        self._order.clear()
        for account, order in self._waiting.orders.items():
            if order:
                self._add(account, standings)

    def _add(self, account: Account, standings: Standings) -> None:
        order = self._waiting.orders.get(account)
        if order is None:  # it has been forgotten since
            return
        known = self._owner_of.get(account)
        if known is not None:
            known.order = order
            return
        standing, of_group, of_owner, factor = standings.share(account)
        group = self._group_of.get(account.group_id)
        if group is None:
            group = self._group_of[account.group_id] = _Group(
                len(self._groups), (standing, of_group, len(self._groups))
            )
            self._groups.append(group)
            insort(self._order, group.rank)
        owner = self._owner_of[account] = _Owner(account, order, group, (of_owner, factor, len(self._owners)))
        self._owners.append(owner)
        insort(group.owners, owner.rank)

    def _move(self, account: Account, standings: Standings) -> None:
        group = self._group_of.get(account.group_id)
        if group is None:
            return
        standing, of_group, of_owner, factor = standings.share(account)
        group.rank = _moved(self._order, group.rank, (standing, of_group, group.number))
        owner = self._owner_of.get(account)
        if owner is not None:
            owner.rank = _moved(group.owners, owner.rank, (of_owner, factor, owner.rank[2]))


def _moved(order: list[_Rank], before: _Rank, after: _Rank) -> _Rank:
    """Put a rank into the place of another one in an order, and return it."""
    if before != after:
        del order[bisect_left(order, before)]
        insort(order, after)
    return after


def _ties(ranks: Iterable[_Rank]) -> Iterator[list[_Rank]]:
    """Yield ranks in their order, equal shares together."""
    tied: list[_Rank] = []
    for rank in ranks:
        if tied and rank[:2] != tied[0][:2]:
            yield tied
            tied = []
        tied.append(rank)
    if tied:
        yield tied
