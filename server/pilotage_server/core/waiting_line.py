"""The waiting jobs of one task queue as memory has them: how many, and those of them that go first.

Rules
-----
The heads that are known are a beginning of the line, without a gap: nobody who waits goes before or between them, and
all others come after the last. A line may not know its heads; then it knows at least that nobody goes before its
`bound`. Jobs that a match has taken are out of the line at once, though the database may still have them waiting until
the match is committed: while they are under way they do not come in again with what the database says. Until the
database has answered a match they are only `chosen`: it may give others in their stead.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from pilotage_server.core.account_order import AccountOrder, Turn
from pilotage_server.core.task_queues import TaskQueue

MOST_OF_A_LINE = 1024
"""So many heads are kept of a task queue."""


class Head(NamedTuple):
    """The job of a task queue that goes first: the highest priority, then the first that came."""

    priority: int
    job_id: int

    @property
    def order(self) -> tuple[int, int]:
        """Sorts heads, the first to go first."""
        return (-self.priority, self.job_id)


_ANYBODY = Head(2**63, 0)
"""Goes before all."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A task queue with jobs that wait: so many at least; `head` None = not known at present."""

    task_queue: TaskQueue
    count: int
    head: Head | None


class Line:
    """A task queue and its waiting jobs.

    `place` is a small number that is its own as long as it is known, `order` that of the account that is charged,
    `turn` its turn there, None = nothing waits. `version` is another after each change, `base` whenever its count was
    set instead of changed; `counted` = how many of its heads the index has counted; `is_mixed` = among the heads are,
    or were, such as are still to be told; `assumed` = so many of its count may not be there.
    """

    __slots__ = (
        "account",
        "amounts",
        "assumed",
        "base",
        "bound",
        "chosen",
        "count",
        "counted",
        "heads",
        "is_mixed",
        "order",
        "place",
        "task_queue",
        "turn",
        "under_way",
        "version",
    )

    def __init__(self, task_queue: TaskQueue, place: int, order: AccountOrder) -> None:
        self.task_queue = task_queue
        self.account = task_queue.account
        self.amounts = task_queue.traits.amounts
        self.place = place
        self.order = order
        self.turn: Turn | None = None
        self.version = 0
        self.base = 0
        self.assumed = 0
        self.is_mixed = False
        self.counted = 0
        self.count = 0
        self.heads: list[Head] = []
        self.bound = _ANYBODY
        self.under_way: set[int] = set()
        self.chosen: set[int] = set()

    @property
    def head(self) -> Head | None:
        """Who is first; None = nobody waits, or it is not known."""
        return self.heads[0] if self.heads else None

    @property
    def is_headless(self) -> bool:
        """Whether jobs wait and it is not known who is first."""
        return self.count > 0 and not self.heads

    @property
    def shown(self) -> Waiting:
        """What is known to wait, for those who ask."""
        count = max(1, self.count - self.assumed) if self.assumed and self.count > 0 else self.count
        return Waiting(self.task_queue, count, self.head)

    def turn_now(self) -> Turn | None:
        """Return the turn that follows from what is known now; None = nothing waits."""
        if self.count <= 0:
            return None
        first = self.heads[0] if self.heads else self.bound
        return (-first.priority, first.job_id, self.task_queue.id, self.place)

    def come(self, head: Head, count: int) -> None:
        """Let jobs come to wait, `head` the first of them; the others follow it as closely as jobs can."""
        if self.count < 0:  # of some that come it has been told before that they have gone
            self.heads, self.bound = [], _ANYBODY
        is_whole = len(self.heads) >= self.count >= 0 and not self.is_mixed
        self.count += count
        if is_whole or (self.heads and head.order < self.heads[-1].order):
            self._insert(head, is_last=count > 1)
        elif not self.heads and head.order < self.bound.order:
            self._insert(head, is_last=True)

    def go(self, job_id: int) -> None:
        """Let a job wait no more, whichever."""
        self.count -= 1
        self._drop(job_id)

    def take(self) -> Head:
        """Take the first job for a match that is not committed yet; its head must be known."""
        head = self.heads.pop(0)
        self.count -= 1
        self.bound = head
        self.under_way.add(head.job_id)
        self.chosen.add(head.job_id)
        return head

    def put_back(self, heads: Iterable[Head]) -> None:
        """Let jobs that were taken wait again; who is first has to be asked, for others may have been there since."""
        for head in heads:
            self.under_way.discard(head.job_id)
            self.chosen.discard(head.job_id)
            self.count += 1
            self.bound = min(self.bound, head, key=_order)
        if self.heads:
            self.bound = min(self.bound, self.heads[0], key=_order)
        self.heads = []

    def claimed(self, taken: Iterable[Head], job_ids: Sequence[int]) -> None:
        """Take note of the jobs that the database gave for what was taken, which may be others of the line.

        They are under way in its stead: it may wait on.
        """
        own = [head.job_id for head in taken]
        self.chosen.difference_update(own)
        if own == job_ids:
            self.under_way.update(own)  # one may have been put back by another whose transaction failed
            return
        others = [job_id for job_id in job_ids if job_id not in self.under_way]
        self.under_way.difference_update(job_ids)
        # for each job from further down the line, one that was taken was not there any more
        self.under_way.difference_update([job_id for job_id in own if job_id in self.under_way][: len(others)])
        for job_id in others:
            self._pass_over(job_id)
        self.under_way.update(job_ids)

    def settled(self, job_ids: Iterable[int]) -> None:
        """Take note that these jobs are under way no more: the transaction that has claimed them is at its end."""
        self.under_way.difference_update(job_ids)

    def end(self, taken: Iterable[Head]) -> None:
        """Take note that the database had nothing for these: nobody waits any more."""
        own = [head.job_id for head in taken]
        self.under_way.difference_update(own)
        self.chosen.difference_update(own)
        self.count, self.heads = 0, []

    def count_anew(self, count: int, head: Head | None) -> None:
        """Take in how many wait and who is first now that jobs were moved; those under way stay so."""
        self.count, self.bound = count, _ANYBODY
        self.heads = [head] if head is not None and head.job_id not in self.under_way else []
        self.is_mixed = False

    def learn(self, heads: Iterable[Head], *, is_all: bool, is_told: bool = True) -> None:
        """Take in who is first as the database says, `is_all` = there are no more.

        `is_told` False = some of these are still to be told, and not to be counted before.
        """
        self.heads = [head for head in heads if head.job_id not in self.under_way][:MOST_OF_A_LINE]
        self.is_mixed = not is_told
        if is_all:
            self.count = min(self.count, len(self.heads))
        if is_told and (is_all or self.heads):
            self.count = max(self.count, len(self.heads))

    def confirm(self, head: Head | None, *, is_told: bool = True) -> None:
        """Take in who is first as the database says; None = not known. `is_told` False = it may be still to be told."""
        if head is None:
            self._forget_heads()
        elif head.job_id not in self.under_way and self.heads[:1] != [head]:
            self.heads = [head]
            self.is_mixed = not is_told

    def shorten(self, most: int) -> None:
        """Forget heads, but for so many."""
        del self.heads[most:]

    def check(self) -> None:
        """Assert what must always be so."""
        assert _is_sorted(self.heads)
        assert self.turn == self.turn_now()
        assert not self.under_way.intersection(head.job_id for head in self.heads)

    def _insert(self, head: Head, *, is_last: bool) -> None:
        """Put a head among the others; `is_last` = others come after it that are not known.

        A match may have taken it already, in the transaction in which it came.
        """
        end = bisect_left(self.heads, head.order, key=_order)
        if head.job_id not in self.under_way:
            if self.heads[end : end + 1] != [head]:
                self.heads.insert(end, head)
            end += 1
        del self.heads[end if is_last else MOST_OF_A_LINE :]

    def _pass_over(self, job_id: int) -> None:
        """Drop a job that was given out of turn, and those before it: they were not there any more.

        It is counted already, as the one that was taken in its place; that those have gone is told by themselves.
        """
        place = next((place for place, head in enumerate(self.heads) if head.job_id == job_id), None)
        if place is None:
            self._forget_heads()
        else:
            self.bound = self.heads[place]
            del self.heads[: place + 1]

    def _drop(self, job_id: int) -> None:
        for place, head in enumerate(self.heads):
            if head.job_id == job_id:
                self.bound = self.heads[0]
                del self.heads[place]
                return

    def _forget_heads(self) -> None:
        if self.heads:
            self.bound = self.heads[0]
            self.heads = []


def _order(head: Head) -> tuple[int, int]:
    return head.order


def _is_sorted(heads: Sequence[Head]) -> bool:
    return all(one.order < other.order for one, other in pairwise(heads))
