"""Which waiting job goes to which slot: one round over the slots of a request.

Rules
-----
Slots are served in their order, each sees what the round gave to those before it. Among what fits go first: the
group, then the owner furthest below their fair share; then the higher priority; then who came first (DESIGN §7).
The round decides and never touches the database: who runs it claims what was chosen, tells whether that
succeeded and which job is the next head, and asks again. It is deterministic for a given state.

A slot's own rank and the jobs' expressions order and filter in `_choice_for`, before the shares, once there are
policies.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from heapq import merge
from itertools import groupby

from pilotage_server.core.amounts import Amounts
from pilotage_server.core.fair_share import Share, ShareRound
from pilotage_server.core.limits import LimitRound
from pilotage_server.core.slots import SlotOffer, fits
from pilotage_server.core.task_queues import Account, TaskQueue
from pilotage_server.core.waiting import Head, Waiting, WaitingIndex

MOST_CHOICES = 1000
"""A round gives at most so many jobs; who wants more asks again."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The next job to claim: the head of a task queue, for a slot; `share` is why its account goes first."""

    slot: str
    task_queue: TaskQueue
    amounts: Amounts
    share: Share


@dataclass(frozen=True, slots=True)
class Candidates:
    """What a round may choose from: the waiting jobs of which `can_go` is true of their task queue."""

    waiting: WaitingIndex
    can_go: Callable[[TaskQueue], bool]


class MatchRound:
    """One request's way through its slots."""

    def __init__(
        self,
        slots: Iterable[SlotOffer],
        candidates: Candidates,
        shares: ShareRound,
        limits: LimitRound,
        end_margin: timedelta,
    ) -> None:
        self._slots = deque(slots)
        self._candidates = candidates
        self._shares = shares
        self._limits = limits
        self._end_margin = end_margin
        self._in_turn: dict[Account, list[Waiting]] = {}
        self._unfit: dict[SlotOffer, set[int]] = {}
        self._given = 0

    def next_choice(self) -> Choice | None:
        """Return what is to be claimed next; None = the round is over."""
        while self._slots and self._given < MOST_CHOICES:
            slot = self._slots[0]
            choice = self._choice_for(slot)
            if choice is not None:
                return choice
            self._slots.popleft()
        return None

    def claimed(self, choice: Choice, next_head: Head | None) -> None:
        """Take note that the job is bound; `next_head` = who is first in its task queue now, None = nobody."""
        self._given += 1
        self._shares.charge(choice.task_queue.account, choice.amounts.cpus)
        self._limits.given(choice.task_queue.traits)
        self._head_is(choice.task_queue, next_head)
        slot = self._slots.popleft()
        if slot.partitionable and slot.max_jobs != 1:
            left = replace(slot, free=slot.free - choice.amounts, max_jobs=max(0, slot.max_jobs - 1))
            self._slots.appendleft(left)

    def missed(self, choice: Choice) -> None:
        """Take note that others were quicker and nothing waits there any more."""
        self._head_is(choice.task_queue, None)

    def _choice_for(self, slot: SlotOffer) -> Choice | None:
        unfit = self._unfit.setdefault(_shape(slot), set())
        for share, waiting in self._in_order():
            task_queue = waiting.task_queue
            if task_queue.id in unfit:
                continue
            if self._limits.reached(task_queue.traits) is None and fits(task_queue, slot, self._end_margin):
                amounts = slot.given_to(task_queue.traits.amounts)
                return Choice(slot.name, task_queue, amounts, share)
            # what does not fit now does not fit later in the round: limits only tighten and jobs only leave
            unfit.add(task_queue.id)
        return None

    def _in_order(self) -> Iterator[tuple[Share, Waiting]]:
        accounts = sorted((self._shares.share(account), account) for account in self._candidates.waiting.accounts())
        for share, equals in groupby(accounts, key=lambda pair: pair[0]):
            for waiting in merge(*(self._of_account(account) for _, account in equals), key=head_order):
                yield share, waiting

    def _of_account(self, account: Account) -> list[Waiting]:
        """Return what can go of an account, in its turn; sorted once a round, then kept in order."""
        if account not in self._in_turn:
            waiting = self._candidates.waiting.of_account(account)
            reachable = (each for each in waiting if self._candidates.can_go(each.task_queue))
            self._in_turn[account] = sorted(reachable, key=head_order)
        return self._in_turn[account]

    def _head_is(self, task_queue: TaskQueue, head: Head | None) -> None:
        in_turn = self._of_account(task_queue.account)
        in_turn[:] = [waiting for waiting in in_turn if waiting.task_queue.id != task_queue.id]
        if head is not None:
            insort(in_turn, Waiting(task_queue, 1, head), key=head_order)


def head_order(waiting: Waiting) -> tuple[int, int, int]:
    """Sort task queues of equal shares by their heads; one whose head is not known goes last."""
    if waiting.head is None:
        return (1, 0, waiting.task_queue.id)
    return (0, *waiting.head.order)


def _shape(slot: SlotOffer) -> SlotOffer:
    return replace(slot, name="", max_jobs=0)
