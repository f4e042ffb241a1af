"""The waiting jobs of one task queue in memory: their number and the first of them.

Rules
-----
- The known heads are a gapless beginning of the queue: no waiting job goes before or between them.
- A task queue may not know its heads. Then no waiting job goes before its `bound`.
- A job that a match takes leaves the count at once, although the database has it waiting until the match commits.
  While it is `reserved` or `claimed`, what the database reports does not bring it back.
- A match reserves the first job, for which the database may give another one, or claims a certain job. So reserved jobs
  belong to no particular match: there are as many as matches without an answer, and each answer ends one.
- `claimed` counts the matches that have claimed a job: the next one may get it before a rollback is applied here.
- `unanswered` counts the claims of certain jobs without an answer: the database may lack these jobs already.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from pilotage_server.core.queueing.account_order import AccountOrder, QueuePosition
from pilotage_server.core.queueing.task_queue import TaskQueue

MAX_HEADS = 1024
"""The most heads that are kept of a task queue."""


class QueueHead(NamedTuple):
    """A waiting job at the front of its task queue: the highest priority first, then the oldest."""

    priority: int
    job_id: int

    @property
    def order(self) -> tuple[int, int]:
        """Sort key of heads: the first to go first."""
        return (-self.priority, self.job_id)


_BEFORE_ALL = QueueHead(2**63, 0)
"""Goes before every job."""


@dataclass(frozen=True, slots=True)
class WaitingTaskQueue:
    """A task queue and the number of its waiting jobs, at least; `head` None = not known now."""

    task_queue: TaskQueue
    count: int
    head: QueueHead | None


class WaitingJobs:
    """A task queue and its waiting jobs.

    `bit` is its number in bit sets as long as it is known. `order` is the order of the charged account, `position` the
    position in it; None = no jobs wait. `version` changes with each change; `base` changes when the count was set
    instead of counted on. `cached_heads` = how many of its heads the head cache has counted. `has_unsettled_heads` =
    among the heads are, or were, jobs of transactions that are not applied yet. `assumed` = so many of the count may
    not exist.
    """

    __slots__ = (
        "account",
        "amounts",
        "assumed",
        "base",
        "bit",
        "bound",
        "cached_heads",
        "claimed",
        "count",
        "has_unsettled_heads",
        "heads",
        "order",
        "position",
        "reserved",
        "task_queue",
        "unanswered",
        "version",
    )

    def __init__(self, task_queue: TaskQueue, bit: int, order: AccountOrder) -> None:
        self.task_queue = task_queue
        self.account = task_queue.account
        self.amounts = task_queue.traits.amounts
        self.bit = bit
        self.order = order
        self.position: QueuePosition | None = None
        self.version = 0
        self.base = 0
        self.assumed = 0
        self.has_unsettled_heads = False
        self.cached_heads = 0
        self.count = 0
        self.heads: list[QueueHead] = []
        self.bound = _BEFORE_ALL
        self.claimed: Counter[int] = Counter()
        self.reserved: set[int] = set()
        self.unanswered = 0

    @property
    def head(self) -> QueueHead | None:
        """The first job; None = no jobs wait, or it is not known."""
        return self.heads[0] if self.heads else None

    @property
    def is_headless(self) -> bool:
        """Whether jobs wait and the first is not known."""
        return self.count > 0 and not self.heads

    @property
    def taken(self) -> set[int]:
        """The jobs that matches under way have reserved or claimed."""
        return self.reserved | self.claimed.keys()

    @property
    def has_open_matches(self) -> bool:
        """Whether the database has not answered a match; it may lack the job already that the match has taken."""
        return bool(self.reserved) or self.unanswered > 0

    @property
    def summary(self) -> WaitingTaskQueue:
        """The number of waiting jobs and the head, for display and decisions."""
        count = max(1, self.count - self.assumed) if self.assumed and self.count > 0 else self.count
        return WaitingTaskQueue(self.task_queue, count, self.head)

    def is_taken(self, job_id: int) -> bool:
        """Whether a match under way has reserved or claimed a job."""
        return job_id in self.reserved or job_id in self.claimed

    def current_position(self) -> QueuePosition | None:
        """Return the position that follows from the present heads and count; None = no jobs wait."""
        if self.count <= 0:
            return None
        first = self.heads[0] if self.heads else self.bound
        return (-first.priority, first.job_id, self.task_queue.id, self.bit)

    def add(self, head: QueueHead, count: int) -> None:
        """Add waiting jobs; `head` is the first of them, the others follow it as closely as jobs can."""
        if self.count < 0:  # the removal of some was applied before their addition
            self.heads, self.bound = [], _BEFORE_ALL
        is_whole = len(self.heads) >= self.count >= 0 and not self.has_unsettled_heads
        self.count += count
        if is_whole or (self.heads and head.order < self.heads[-1].order):
            self._insert(head, is_last=count > 1)
        elif not self.heads and head.order < self.bound.order:
            self._insert(head, is_last=True)

    def remove(self, job_id: int) -> None:
        """Remove one job, known as a head or not."""
        self.count -= 1
        self._remove_head(job_id)

    def reserve(self) -> QueueHead:
        """Reserve the first job for a match that is not committed; its head must be known."""
        head = self.bound = self.heads.pop(0)
        self.count -= 1
        self.reserved.add(head.job_id)
        return head

    def claim(self, head: QueueHead) -> None:
        """Claim a certain job for a match that is not committed; its head must be known."""
        self.remove(head.job_id)
        self.claimed[head.job_id] += 1
        self.unanswered += 1

    def confirm_certain(self, count: int) -> None:
        """Apply that the database gave so many certain jobs."""
        self.unanswered -= count

    def return_certain(self, job_id: int) -> None:
        """Return a certain job to the queue: the database did not give it, or was not asked."""
        self.unanswered -= 1
        self.roll_back([job_id])

    def confirm(self, taken: Iterable[QueueHead], job_ids: Sequence[int]) -> None:
        """Apply the jobs that the database gave for the reserved ones `taken`, which may wait on."""
        for job_id in job_ids:
            if not self.is_taken(job_id):
                self._pass_over(job_id)
        self._end_reservations(taken, job_ids)
        for job_id in job_ids:
            self.claimed[job_id] += 1

    def commit(self, job_ids: Iterable[int]) -> None:
        """Apply that a transaction that claimed these jobs has committed."""
        for job_id in job_ids:
            if self.claimed[job_id] > 1:
                self.claimed[job_id] -= 1
            else:
                del self.claimed[job_id]

    def roll_back(self, job_ids: Sequence[int]) -> None:
        """Apply that a transaction that claimed these jobs has failed."""
        self.commit(job_ids)
        self._wait_again(len(job_ids), _BEFORE_ALL)

    def unreserve(self, taken: Sequence[QueueHead]) -> None:
        """Return reserved jobs to the queue: the transaction failed before the database had answered."""
        self._end_reservations(taken)
        for head in taken:
            self._wait_again(1, head)

    def restore(self, head: QueueHead) -> None:
        """Return a job that was removed by a transaction that failed."""
        self._wait_again(1, head)

    def exhaust(self, taken: Iterable[QueueHead]) -> None:
        """Apply that the database had no job for `taken`: none waits."""
        self._end_reservations(taken)
        self.count, self.heads = 0, []

    def set_count(self, count: int, head: QueueHead | None) -> None:
        """Set count and head after jobs were moved; taken jobs stay taken."""
        self.count, self.bound = count, _BEFORE_ALL
        self.heads = [head] if head is not None and not self.is_taken(head.job_id) else []
        self.has_unsettled_heads = False

    def refresh_heads(self, heads: Iterable[QueueHead], *, is_all: bool, is_settled: bool = True) -> None:
        """Set the heads that the database has; `is_all` = there are no more jobs.

        `is_settled` False = some of them belong to transactions that are not applied yet, and must not be counted now.
        """
        self.heads = [head for head in heads if not self.is_taken(head.job_id)][:MAX_HEADS]
        self.has_unsettled_heads = not is_settled
        if is_all:
            self.count = min(self.count, len(self.heads))
        if is_settled and (is_all or self.heads):
            self.count = max(self.count, len(self.heads))

    def set_head(self, head: QueueHead | None) -> None:
        """Set the head that the database has; None = not known."""
        if head is None:
            self._forget_heads()
        elif not self.is_taken(head.job_id) and self.heads[:1] != [head]:
            self.heads = [head]
            self.has_unsettled_heads = False

    def shorten(self, most: int) -> None:
        """Forget all heads but the first `most`."""
        del self.heads[most:]

    def check(self) -> None:
        """Assert the invariants."""
        assert all(one.order < other.order for one, other in pairwise(self.heads))
        assert self.position == self.current_position()
        assert self.taken.isdisjoint(head.job_id for head in self.heads)

    def _insert(self, head: QueueHead, *, is_last: bool) -> None:
        """Insert a head; `is_last` = unknown jobs follow it.

        A match may have claimed it already, in the transaction that added it.
        """
        end = bisect_left(self.heads, head.order, key=_order)
        if not self.is_taken(head.job_id):
            if self.heads[end : end + 1] != [head]:
                self.heads.insert(end, head)
            end += 1
        del self.heads[end if is_last else MAX_HEADS :]

    def _end_reservations(self, taken: Iterable[QueueHead], job_ids: Sequence[int] = ()) -> None:
        """End the reservations of `taken`, for which the database gave `job_ids`.

        Those of their jobs that other matches have got by now are replaced by any other reserved ones.
        """
        taken_ids = [head.job_id for head in taken]
        ended = [job_id for job_id in dict.fromkeys((*job_ids, *taken_ids)) if job_id in self.reserved]
        self.reserved.difference_update(ended[: len(taken_ids)])
        for _ in range(min(len(taken_ids) - len(ended), len(self.reserved))):
            self.reserved.pop()

    def _wait_again(self, count: int, first: QueueHead) -> None:
        """Return jobs, of which none goes before `first`, to the queue.

        The heads have to be read again: other jobs may have been first meanwhile.
        """
        self.count += count
        self.bound = min(self.bound, first, *self.heads[:1], key=_order)
        self.heads = []

    def _pass_over(self, job_id: int) -> None:
        """Drop a job that was given out of order, and the heads before it: the database had them no more.

        The job is counted already, as the one that was reserved in its place. The removal of the others is reported
        separately.
        """
        index = next((index for index, head in enumerate(self.heads) if head.job_id == job_id), None)
        if index is None:
            self._forget_heads()
        else:
            self.bound = self.heads[index]
            del self.heads[: index + 1]

    def _remove_head(self, job_id: int) -> None:
        for index, head in enumerate(self.heads):
            if head.job_id == job_id:
                self.bound = self.heads[0]
                del self.heads[index]
                return

    def _forget_heads(self) -> None:
        if self.heads:
            self.bound = self.heads[0]
            self.heads = []


def _order(head: QueueHead) -> tuple[int, int]:
    return head.order
