"""Whose turn it is among the accounts: groups, then owners, those furthest below their fair share first.

Rules
-----
The order is that of the standings of a tick; it is made anew for another tick, and moved meanwhile by what is given,
once for all that a request is given. Only accounts for which something waits are in it; whose last job has gone leaves
with the tick. Accounts with equal shares go by who came first (DESIGN §7).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple, TypeAlias, TypeVar

from pilotage_server.core.account_order import AccountOrder
from pilotage_server.core.accounting import Account, GroupId
from pilotage_server.core.standings import OwnerStanding, Standings
from pilotage_server.core.waiting import WaitingIndex


class Candidate:
    """An account for which something waits: its order, and where it stands.

    `cores` and `runs` count what it was given since it was put in its place.
    """

    __slots__ = ("account", "cores", "group", "order", "rank", "runs", "standing")

    def __init__(self, account: Account, order: AccountOrder, standing: OwnerStanding, group: _Group) -> None:
        self.account = account
        self.order = order
        self.standing = standing
        self.group = group
        self.rank: _OwnerRank
        self.cores = 0.0
        self.runs = 0


class _Group:
    __slots__ = ("number", "owners", "rank")

    def __init__(self, number: int) -> None:
        self.number = number
        self.owners: list[_OwnerRank] = []
        self.rank: _GroupRank


PlainShare: TypeAlias = tuple[int, float, float, float]
"""A share, made without its names: the group's standing first."""

_GroupRank: TypeAlias = tuple[int, float, int, _Group]
"""Sorts groups: standing and use, then a number, so that no group is compared."""

_OwnerRank: TypeAlias = tuple[float, float, int, Candidate]
"""Sorts the owners of a group: use and factor, then a number, so that no owner is compared."""

_Rank = TypeVar("_Rank", _GroupRank, _OwnerRank)


Stood: TypeAlias = tuple[PlainShare, Candidate]
"""An account, and its share when it was put in its place."""

_stands = itemgetter(0, 1)


class Given(NamedTuple):
    """What an account was given: weighted cores for so many runs."""

    account: Account
    cores: float
    runs: int


class AccountTurns:
    """The order between the accounts of the index; `agree` brings it up to date."""

    def __init__(self, waiting: WaitingIndex) -> None:
        self._waiting = waiting
        self._standings: Standings | None = None
        self._group_of: dict[GroupId, _Group] = {}
        self._candidates: dict[Account, Candidate] = {}
        self._order: list[_GroupRank] = []
        self._given: list[Candidate] = []

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

    def in_order(self) -> Iterator[Stood]:
        """Yield the accounts in their order, as they were put in it; they are not to be put elsewhere meanwhile."""
        for (standing, group_use), equal in groupby(self._order, _stands):
            for use, factor, _, candidate in _owners(list(equal)):
                yield (standing, group_use, use, factor), candidate

    def give(self, candidate: Candidate, cores: float) -> None:
        """Count weighted cores that the account is given for a run; it keeps its place until all is settled."""
        assert self._standings is not None, "who gives has agreed"
        candidate.standing.give(cores, self._standings.foresight_s)
        if not candidate.runs:
            self._given.append(candidate)
        candidate.cores += cores
        candidate.runs += 1

    def settle(self) -> list[Given]:
        """Put the accounts that were given something where they stand now, and return what that was."""
        settled = [Given(each.account, each.cores, each.runs) for each in self._given]
        for candidate in self._given:
            candidate.cores, candidate.runs = 0.0, 0
            self._place(candidate)
        self._given.clear()
        return settled

    def check(self) -> None:
        """Assert what must always be so."""
        assert not self._given
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
        rank_of_group = (mine.group.standing, mine.group.use, group.number, group)
        group.rank = _placed(self._order, group.rank, rank_of_group)
        rank = (mine.use, mine.factor, candidate.rank[2], candidate)
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


def _owners(groups: list[_GroupRank]) -> list[_OwnerRank]:
    """Return the owners of groups that are equal."""
    if len(groups) == 1:
        return groups[0][3].owners
    return sorted(rank for *_, group in groups for rank in group.owners)
