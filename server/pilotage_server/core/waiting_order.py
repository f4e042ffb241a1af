"""Who goes first of those that wait: the order of one round, which moves only with what the round gives.

Rules
-----
First goes the group, then the owner furthest below their fair share; then the higher priority; then who came first
(DESIGN §7). What cannot go is left out once and for all: who gives jobs tells which job is the next head.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from heapq import merge
from itertools import groupby

from pilotage_server.core.accounting import Account
from pilotage_server.core.standings import Share, ShareRound
from pilotage_server.core.task_queues import TaskQueue
from pilotage_server.core.waiting import Head, Waiting, WaitingIndex

Among = frozenset[int] | None
"""Ids of the task queues that are asked for; None = all."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """What a round may choose from: the waiting jobs of which `can_go` is true of their task queue."""

    waiting: WaitingIndex
    can_go: Callable[[TaskQueue], bool]


class WaitingOrder:
    """The waiting jobs in the order in which they go."""

    def __init__(self, candidates: Candidates, shares: ShareRound) -> None:
        self._waiting = candidates.waiting
        self._can_go = candidates.can_go
        self._shares = shares
        self._in_turn: dict[Account, list[Waiting]] = {}

    def walk(self, among: Among = None) -> Iterator[tuple[Share, Waiting]]:
        """Yield what waits, with the share of its account, who goes first first."""
        waiting = self._waiting.accounts() if among is None else self._waiting.accounts_among(among)
        accounts = sorted((self._shares.share(account), account) for account in waiting)
        for share, equals in groupby(accounts, key=lambda pair: pair[0]):
            for each in merge(*(self._among(account, among) for _, account in equals), key=head_order):
                yield share, each

    def head_is(self, task_queue: TaskQueue, head: Head | None) -> None:
        """Take note of who is first in a task queue now; None = nobody."""
        in_turn = self._of_account(task_queue.account)
        in_turn[:] = [waiting for waiting in in_turn if waiting.task_queue.id != task_queue.id]
        if head is not None:
            insort(in_turn, Waiting(task_queue, 1, head), key=head_order)

    def _among(self, account: Account, among: Among) -> Iterable[Waiting]:
        in_turn = self._of_account(account)
        return in_turn if among is None else [each for each in in_turn if each.task_queue.id in among]

    def _of_account(self, account: Account) -> list[Waiting]:
        """Return what can go of an account, in its turn; sorted once a round, then kept in order."""
        if account not in self._in_turn:
            waiting = self._waiting.of_account(account)
            reachable = (each for each in waiting if self._can_go(each.task_queue))
            self._in_turn[account] = sorted(reachable, key=head_order)
        return self._in_turn[account]


def head_order(waiting: Waiting) -> tuple[int, int, int]:
    """Sort task queues of equal shares by their heads; one whose head is not known goes last."""
    if waiting.head is None:
        return (1, 0, waiting.task_queue.id)
    return (0, *waiting.head.order)
