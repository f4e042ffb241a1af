"""The fair order: groups, then owners, those furthest below their share first.

Rules
-----
- `AccountRanking` orders the accounts that have waiting jobs. It follows the priorities of one tick; a new tick makes a
  new order. Charges move accounts once a request. An account without waiting jobs leaves at the next tick. Equal
  accounts are ordered by their first jobs.
- `FairOrder` goes through the task queues of a bit set, job by job, for one slot. It takes in only as many accounts as
  it needs to know the first. A charge never moves an account forward. So an account that was seen last at some place
  is there or behind, and only the first one has to be checked again.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from heapq import heappop, heappush, heapreplace
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple, TypeAlias, TypeVar

from pilotage.values.accounts import Account, GroupId
from pilotage_server.core.accounting.fair_share import OwnerPriority, Priorities
from pilotage_server.core.queueing.account_order import AccountOrder, QueuePosition
from pilotage_server.core.queueing.index import TaskQueueIndex
from pilotage_server.core.queueing.waiting_jobs import WaitingJobs


class WaitingAccount:
    """An account with waiting jobs: the order of its task queues, and its priority.

    `cores` and `runs` count the charges since it was last put into the order.
    """

    __slots__ = ("account", "cores", "group", "order", "priority", "rank", "runs")

    def __init__(self, account: Account, order: AccountOrder, priority: OwnerPriority, group: _Group) -> None:
        self.account = account
        self.order = order
        self.priority = priority
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


ShareKey: TypeAlias = tuple[float, int, float, float, float]
"""A share without field names: the group's order first."""

_GroupRank: TypeAlias = tuple[float, int, float, int, _Group]
"""Sorts groups: order, quota state and use, then a number, so that no group is compared."""

_OwnerRank: TypeAlias = tuple[float, float, int, WaitingAccount]
"""Sorts the owners of a group: use and factor, then a number, so that no owner is compared."""

_Rank = TypeVar("_Rank", _GroupRank, _OwnerRank)


RankedAccount: TypeAlias = tuple[ShareKey, WaitingAccount]
"""An account, and its share when it was put into the order."""

_group_part = itemgetter(0, 1, 2)


class AccountCharge(NamedTuple):
    """The charge of an account: weighted cores for so many runs."""

    account: Account
    cores: float
    runs: int


class AccountRanking:
    """The order of the accounts of the index; `sync` brings it up to date."""

    def __init__(self, waiting: TaskQueueIndex) -> None:
        self._waiting = waiting
        self._priorities: Priorities | None = None
        self._group_of: dict[GroupId, _Group] = {}
        self._accounts: dict[Account, WaitingAccount] = {}
        self._order: list[_GroupRank] = []
        self._charged: list[WaitingAccount] = []

    def sync(self, priorities: Priorities) -> None:
        """Apply changed priorities, and add accounts whose first job has begun to wait."""
        activated = self._waiting.activated
        if priorities is not self._priorities:
            self._reset(priorities)
        elif priorities.changed or activated:
            for account in priorities.changed:
                self._reorder(account, priorities)
            for account in activated:
                self._add(account, priorities)
        priorities.changed.clear()
        activated.clear()

    def in_order(self) -> Iterator[RankedAccount]:
        """Yield the accounts in order; the order must not change meanwhile."""
        for (order, quota_state, group_use), equal in groupby(self._order, _group_part):
            for use, factor, _, entry in _owners(list(equal)):
                yield (order, quota_state, group_use, use, factor), entry

    def charge(self, entry: WaitingAccount, cores: float) -> None:
        """Charge an account for a run of so many weighted cores; it moves with `take_charges`."""
        assert self._priorities is not None, "call sync first"
        entry.priority.charge(cores, self._priorities.foresight_s)
        if not entry.runs:
            self._charged.append(entry)
        entry.cores += cores
        entry.runs += 1

    def take_charges(self) -> list[AccountCharge]:
        """Move the charged accounts to their new places, and return the charges."""
        charges = [AccountCharge(each.account, each.cores, each.runs) for each in self._charged]
        for entry in self._charged:
            entry.cores, entry.runs = 0.0, 0
            self._place(entry)
        self._charged.clear()
        return charges

    def check(self) -> None:
        """Assert the invariants."""
        assert not self._charged
        assert self._order == sorted(group.rank for group in self._group_of.values())
        for group in self._group_of.values():
            ranks = [each.rank for each in self._accounts.values() if each.group is group]
            assert group.owners == sorted(ranks)

    def _reset(self, priorities: Priorities) -> None:
        self._priorities = priorities
        self._group_of.clear()
        self._accounts.clear()
        self._order.clear()
        for account, order in self._waiting.orders.items():
            if order:
                self._add(account, priorities)

    def _add(self, account: Account, priorities: Priorities) -> None:
        order = self._waiting.orders.get(account)
        if order is None:  # it has been removed since
            return
        known = self._accounts.get(account)
        if known is not None:
            known.order = order
            return
        priority = priorities.owner(account)
        share = priority.share()
        group = self._group_of.get(account.group_id)
        if group is None:
            group = self._group_of[account.group_id] = _Group(len(self._group_of))
            group.rank = (share.order, share.quota_state, share.group, group.number, group)
            insort(self._order, group.rank)
        entry = WaitingAccount(account, order, priority, group)
        entry.rank = (share.owner, share.factor, len(self._accounts), entry)
        self._accounts[account] = entry
        insort(group.owners, entry.rank)

    def _reorder(self, account: Account, priorities: Priorities) -> None:
        entry = self._accounts.get(account)
        if entry is not None:
            self._place(entry)
            return
        group = self._group_of.get(account.group_id)
        if group is not None:
            share = priorities.share(account)
            rank = (share.order, share.quota_state, share.group, group.number, group)
            group.rank = _moved_rank(self._order, group.rank, rank)

    def _place(self, entry: WaitingAccount) -> None:
        """Move an account and its group to their present places."""
        group, priority = entry.group, entry.priority
        of_group = priority.group
        rank_of_group = (of_group.order, of_group.quota_state, of_group.use, group.number, group)
        group.rank = _moved_rank(self._order, group.rank, rank_of_group)
        rank = (priority.use, priority.factor, entry.rank[2], entry)
        entry.rank = _moved_rank(group.owners, entry.rank, rank)


def _moved_rank(order: list[_Rank], before: _Rank, after: _Rank) -> _Rank:
    """Replace a rank in an order by another one, and return that."""
    if len(order) == 1:
        order[0] = after
        return after
    index = bisect_left(order, before)
    del order[index]
    if (index and after < order[index - 1]) or (index < len(order) and order[index] < after):
        insort(order, after)
    else:  # the usual case: the order stays
        order.insert(index, after)
    return after


def _owners(groups: list[_GroupRank]) -> list[_OwnerRank]:
    """Return the owners of groups with equal ranks."""
    if len(groups) == 1:
        return groups[0][4].owners
    return sorted(rank for *_, group in groups for rank in group.owners)


class Candidate(NamedTuple):
    """The first task queue of an account that a slot may take its next job from.

    Sorts by share, then by position. Positions are unique, so the other fields are never compared.
    """

    share: ShareKey
    position: QueuePosition
    waiting: WaitingJobs
    account: WaitingAccount


class FairOrder:
    """The fair order of waiting jobs for one slot, or several equal ones; `in_order` yields the accounts."""

    __slots__ = ("_candidates", "_next", "_remaining", "_waiting")

    def __init__(self, waiting: TaskQueueIndex, in_order: Iterator[RankedAccount]) -> None:
        self._waiting = waiting
        self._remaining = in_order
        self._next = next(in_order, None)
        self._candidates: list[Candidate] = []

    def first(self, bits: int) -> Candidate | None:
        """Return the first task queue among these bits, with its account; None = no job waits in any of them.

        Later calls may ask for fewer bits, never for others.
        """
        candidates = self._candidates
        while True:
            while self._next is not None and (not candidates or self._next[0] <= candidates[0].share):
                self._admit(self._next[1], bits)
            if not candidates:
                return None
            candidate = candidates[0]
            share, position, waiting, entry = candidate
            now = _share(entry)
            if waiting.position != position or not bits >> waiting.bit & 1:
                self._refresh_first(entry, bits)
            elif share != now:
                heapreplace(candidates, Candidate(now, position, waiting, entry))
            else:
                return candidate

    def _admit(self, entry: WaitingAccount, bits: int) -> None:
        """Take in another account, if it has any of these task queues."""
        candidate = self._candidate(entry, bits)
        if candidate is not None:
            heappush(self._candidates, candidate)
        self._next = next(self._remaining, None)

    def _refresh_first(self, entry: WaitingAccount, bits: int) -> None:
        """Find the task queue of the first account again."""
        candidate = self._candidate(entry, bits)
        if candidate is None:
            heappop(self._candidates)
        else:
            heapreplace(self._candidates, candidate)

    def _candidate(self, entry: WaitingAccount, bits: int) -> Candidate | None:
        position = entry.order.first_among(bits)
        if position is None:
            return None
        return Candidate(_share(entry), position, self._waiting.at_bit(position[3]), entry)


def _share(entry: WaitingAccount) -> ShareKey:
    owner, group = entry.priority, entry.priority.group
    return (group.order, group.quota_state, group.use, owner.use, owner.factor)
