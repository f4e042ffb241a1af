"""Whose turn it is among the accounts: groups, then owners, those furthest below their fair share first.

Rules
-----
The order is that of the standings of a tick; it is made anew for another tick, and moved meanwhile by what is given.
Only accounts for which something waits are in it; whose last job has gone leaves with the tick. Accounts with equal
shares go by who came first (DESIGN §7).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import TypeAlias, TypeVar

from pilotage_server.core.account_order import AccountOrder, Turn
from pilotage_server.core.accounting import Account, GroupId
from pilotage_server.core.standings import OwnerStanding, Standings
from pilotage_server.core.waiting import WaitingIndex


class Candidate:
    """An account for which something waits: its order, and where it stands."""

    __slots__ = ("account", "group", "order", "rank", "standing")

    def __init__(self, account: Account, order: AccountOrder, standing: OwnerStanding, group: _Group) -> None:
        self.account = account
        self.order = order
        self.standing = standing
        self.group = group
        self.rank: _OwnerRank


class _Group:
    __slots__ = ("number", "owners", "rank")

    def __init__(self, number: int) -> None:
        self.number = number
        self.owners: list[_OwnerRank] = []
        self.rank: _GroupRank


_GroupRank: TypeAlias = tuple[int, float, int, _Group]
"""Sorts groups: standing and use, then a number, so that no group is compared."""

_OwnerRank: TypeAlias = tuple[float, float, int, Candidate]
"""Sorts the owners of a group: use and factor, then a number, so that no owner is compared."""

_Rank = TypeVar("_Rank", _GroupRank, _OwnerRank)


Found: TypeAlias = tuple[Candidate, Turn]
"""The account and its task queue whose turn it is."""


class AccountTurns:
    """The order between the accounts of the index; `agree` brings it up to date."""

    def __init__(self, waiting: WaitingIndex) -> None:
        self._waiting = waiting
        self._standings: Standings | None = None
        self._group_of: dict[GroupId, _Group] = {}
        self._candidates: dict[Account, Candidate] = {}
        self._order: list[_GroupRank] = []

    def agree(self, standings: Standings) -> None:
        """Take in how accounts stand now, and for which of them something has begun to wait."""
        woken = self._waiting.woken
        if standings is not self._standings:
            self._start_anew(standings)
        elif standings.moved or woken:
            for account in standings.moved:
                self._moved(account, standings)
            for account in woken:
                self._add(account, standings)
        standings.moved.clear()
        woken.clear()

    def first_among(self, places: int, barren: set[object]) -> Found | None:
        """Return the task queue among these whose turn it is; None = nothing waits in any of them.

        Accounts and groups that have none of them are added to `barren`; who is there already is not asked again.
        """
        tied: list[_GroupRank] = []
        for rank in self._order:
            if rank[3] in barren:
                continue
            if tied and (rank[1] != tied[0][1] or rank[0] != tied[0][0]):
                found = _first_of(tied, places, barren)
                if found is not None:
                    return found
                tied = []
            tied.append(rank)
        return _first_of(tied, places, barren)

    def give(self, candidate: Candidate, cores: float) -> None:
        """Count weighted cores that the account is given."""
        assert self._standings is not None, "who gives has agreed"
        candidate.standing.give(cores, self._standings.foresight_s)
        self._place(candidate)

    def check(self) -> None:
        """Assert what must always be so."""
        assert self._order == sorted(group.rank for group in self._group_of.values())
        for group in self._group_of.values():
            mine = [each.rank for each in self._candidates.values() if each.group is group]
            assert group.owners == sorted(mine)

    def _start_anew(self, standings: Standings) -> None:
        self._standings = standings
        self._group_of.clear()
        self._candidates.clear()
        self._order.clear()
        for account, order in self._waiting.orders.items():
            if order:
                self._add(account, standings)

    def _add(self, account: Account, standings: Standings) -> None:
        order = self._waiting.orders.get(account)
        if order is None:  # it has been forgotten since
            return
        known = self._candidates.get(account)
        if known is not None:
            known.order = order
            return
        standing = standings.owner(account)
        share = standing.share()
        group = self._group_of.get(account.group_id)
        if group is None:
            group = self._group_of[account.group_id] = _Group(len(self._group_of))
            group.rank = (share.standing, share.group, group.number, group)
            insort(self._order, group.rank)
        candidate = Candidate(account, order, standing, group)
        candidate.rank = (share.owner, share.factor, len(self._candidates), candidate)
        self._candidates[account] = candidate
        insort(group.owners, candidate.rank)

    def _moved(self, account: Account, standings: Standings) -> None:
        candidate = self._candidates.get(account)
        if candidate is not None:
            self._place(candidate)
            return
        group = self._group_of.get(account.group_id)
        if group is not None:
            share = standings.share(account)
            group.rank = _placed(self._order, group.rank, (share.standing, share.group, group.number, group))

    def _place(self, candidate: Candidate) -> None:
        """Put an account and its group where they stand now."""
        group, mine = candidate.group, candidate.standing
        of_group = mine.group
        stands, used = of_group.stands(of_group.core_s, of_group.cores)
        group.rank = _placed(self._order, group.rank, (stands, used, group.number, group))
        rank = (mine.core_s * mine.factor, mine.factor, candidate.rank[2], candidate)
        candidate.rank = _placed(group.owners, candidate.rank, rank)


def _placed(order: list[_Rank], before: _Rank, after: _Rank) -> _Rank:
    """Put a rank into the place of another one in an order, and return it."""
    if len(order) == 1:
        order[0] = after
        return after
    place = bisect_left(order, before)
    del order[place]
    if (place and after < order[place - 1]) or (place < len(order) and order[place] < after):
        insort(order, after)
    else:  # most often nobody is overtaken
        order.insert(place, after)
    return after


def _first_of(groups: list[_GroupRank], places: int, barren: set[object]) -> Found | None:
    """Return the first task queue of groups that are equal."""
    if len(groups) == 1:
        owners = groups[0][3].owners
    else:
        owners = sorted(rank for _, _, _, group in groups for rank in group.owners)
    best: Found | None = None
    best_rank: _OwnerRank | None = None
    for rank in owners:
        if best_rank is not None and (rank[0] != best_rank[0] or rank[1] != best_rank[1]):
            return best
        candidate = rank[3]
        if candidate in barren:
            continue
        turn = candidate.order.first_among(places)
        if turn is None:
            barren.add(candidate)
        elif best is None or turn < best[1]:
            best, best_rank = (candidate, turn), rank
    if best is None:
        barren.update(group for _, _, _, group in groups)
    return best
