"""Which task queues have waiting jobs: their traits, how many wait, and which jobs are first.

Rules
-----
A picture of what the database has, changed by what has been committed, and by what matches have taken ahead of their
commits. Its size grows with the task queues, never with the jobs. Counts are sums of what came and went, so it does
not matter in which order two transactions tell of theirs. What is not known (a head that has gone, a task queue never
heard of) is asked for by name, and read from the database by who matches next.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count as counter

from pilotage_server.core.accounting import Account
from pilotage_server.core.kept_heads import MOST_HEADS, KeptHeads
from pilotage_server.core.known_task_queues import KnownTaskQueues
from pilotage_server.core.place_sets import set_of
from pilotage_server.core.task_queues import TaskQueue
from pilotage_server.core.untold import Told, Untold
from pilotage_server.core.waiting_line import Head, Line, Waiting

__all__ = ["MOST_HEADS", "Head", "Told", "Waiting", "WaitingIndex"]


class WaitingIndex(KnownTaskQueues):
    """The task queues with their waiting jobs, by account, so that an order between accounts is quick to walk."""

    def __init__(self, most_heads: int = MOST_HEADS) -> None:
        super().__init__()
        self.woken: set[Account] = set()
        """The accounts for which something has begun to wait; who keeps an order of accounts empties it."""
        self.doubted: set[int] = set()
        """The task queues of which more or fewer may be known than wait; who has them counted empties it."""
        self.untold = Untold()
        """The task queues in which jobs come or go by transactions that are under way."""

        self._headless: set[int] = set()
        self._unknown: set[int] = set()
        self._versions = counter(1)
        self._kept = KeptHeads(self._lines, most_heads)

    def take_in(self, task_queue: TaskQueue, count: int = 0, head: Head | None = None, assumed: int = 0) -> None:
        """Take in a task queue that the database has, with what waits in it; one that is known stays as it is.

        `assumed` = so many more are taken to wait until all are counted.
        """
        if task_queue.id not in self._lines:
            self._unknown.discard(task_queue.id)
            line = self._add(task_queue)
            line.count = count + assumed
            self._rebase(line)
            line.assumed = assumed
            line.confirm(head)
            self._changed(line)

    def count_anew(self, task_queue: TaskQueue, count: int, head: Head | None) -> None:
        """Take in what waits in a task queue after a transaction that has moved jobs; it is doubted.

        What others have told meanwhile may be among it, or not.
        """
        line = self._lines.get(task_queue.id)
        if line is None:
            self.take_in(task_queue, count, head)
        else:
            line.count_anew(count, head)
            self._rebase(line)
            self._changed(line)
        self.doubted.add(task_queue.id)

    def unknown(self) -> frozenset[int]:
        """Return the ids of task queues to which jobs have come and whose traits are not known here."""
        return frozenset(self._unknown)

    def headless(self) -> frozenset[int]:
        """Return the ids of task queues in which jobs wait and whose first job is not known."""
        return frozenset(self._headless)

    def forget(self, task_queue_ids: Iterable[int]) -> None:
        """Drop task queues that the database no longer has."""
        for task_queue_id in task_queue_ids:
            gone = self._lines.get(task_queue_id)
            if gone is not None:
                gone.end(())
                self._changed(gone)
                self._drop(gone)

    def enqueued(self, task_queue_id: int, head: Head, count: int = 1) -> None:
        """Count jobs that have come to wait; `head` is the first of them."""
        line = self._lines.get(task_queue_id)
        if line is None:
            self._unknown.add(task_queue_id)
            return
        line.come(head, count)
        self._changed(line)

    def dequeued(self, task_queue_id: int, job_id: int) -> None:
        """Count a job that no longer waits."""
        self.gone(task_queue_id, [job_id])

    def gone(self, task_queue_id: int, job_ids: Iterable[int]) -> None:
        """Count jobs that no longer wait."""
        line = self._lines.get(task_queue_id)
        if line is not None:
            for job_id in job_ids:
                line.go(job_id)
            self._changed(line)

    def renew_head(self, task_queue_id: int, head: Head | None) -> None:
        """Take in what the database says is the head; None = it has not been asked."""
        line = self._lines.get(task_queue_id)
        if line is not None:
            line.confirm(head, is_told=task_queue_id not in self.untold)
            self._changed(line)

    def learn_heads(self, task_queue_id: int, heads: Iterable[Head], *, is_all: bool) -> None:
        """Take in the first jobs as the database has them, in order; `is_all` = there are no more."""
        line = self._lines.get(task_queue_id)
        if line is not None:
            before = line.count
            line.learn(heads, is_all=is_all, is_told=task_queue_id not in self.untold)
            if line.count != before:  # what others did may have been told before, or is told once more
                self._rebase(line)
                self.doubted.add(task_queue_id)
            self._kept.asked(task_queue_id)
            self._changed(line)

    def take(self, line: Line) -> Head:
        """Take the first job of a line, whose head must be known, for a match that is not committed yet."""
        head, before, after = line.take(), line.turn, line.turn_now()
        if not line.heads or before is None or after is None:
            self._changed(line)
            return head
        self._kept.count_taken(line)
        line.version = next(self._versions)
        line.turn = after
        line.order.move(before, after)
        return head

    def put_back(self, task_queue_id: int, heads: Iterable[Head]) -> None:
        """Let jobs that were taken wait again; a count that saw them do so already would be one too many."""
        line = self._lines.get(task_queue_id)
        if line is not None:
            line.put_back(heads)
            self._changed(line)
            self.doubted.add(task_queue_id)

    def claimed(self, task_queue_id: int, taken: Sequence[Head], job_ids: Sequence[int]) -> None:
        """Take note of the jobs that the database gave for what was taken of a task queue."""
        line = self._lines.get(task_queue_id)
        if line is not None:
            line.claimed(taken, job_ids)
            self._changed(line)

    def settled(self, task_queue_id: int, job_ids: Sequence[int]) -> None:
        """Take note that the transaction that has claimed these jobs is at its end."""
        line = self._lines.get(task_queue_id)
        if line is not None:
            line.settled(job_ids)
            self._changed(line)

    def ended(self, task_queue_id: int, taken: Iterable[Head]) -> None:
        """Take note that the database had nothing for what was taken: nobody waits any more."""
        line = self._lines.get(task_queue_id)
        if line is not None:
            line.end(taken)
            self._rebase(line)
            self._changed(line)
            self.doubted.add(task_queue_id)

    def snapshot(self, ids: Iterable[int] | None = None) -> Mapping[int, Told]:
        """Return the state of task queues (None = of all), to be handed back when the database has been asked."""
        lines = self._lines.values() if ids is None else map(self._lines.get, ids)
        return {line.task_queue.id: self._told(line) for line in lines if line is not None}

    def recount(self, before: Mapping[int, Told], counts: Mapping[int, int]) -> frozenset[int]:
        """Take in what the database counted when all that was told here was `before`; what came since then stays.

        Returns the task queues for which that is so: the others were counted in another way meanwhile.
        """
        counted = {each for each in counts if each in self._lines and self._lines[each].base == before[each].base}
        for task_queue_id in counted:
            line = self._lines[task_queue_id]
            line.count += counts[task_queue_id] - before[task_queue_id].waiting
            self._rebase(line)
            self._changed(line)
        return frozenset(counted)

    def agree(
        self, before: Mapping[int, Told], known: Iterable[TaskQueue], counts: Mapping[int, tuple[int, Head | None]]
    ) -> dict[int, int]:
        """Take in what the database says, as far as nothing was told here since `before` nor is about to be.

        `known` are all task queues with a live job, others are forgotten; one that `counts`, without what was under
        way, lacks has no jobs that wait. Returns how many more wait than was known, where any do.
        """
        stays = {id_ for id_, line in self._lines.items() if not self._told(line).is_all_since(before.get(id_))}
        live = {each.id: each for each in known if each.id in self._lines or each.id not in self.untold}
        self.doubted |= self._unknown & live.keys()  # of these more may have been told since the database was asked
        more: dict[int, int] = {}
        for task_queue_id in live.keys() - stays:
            count, head = counts.get(task_queue_id, (0, None))
            self.take_in(live[task_queue_id])
            line = self._lines[task_queue_id]
            if count > max(0, line.count):
                more[task_queue_id] = count - max(0, line.count)
            line.count = count
            self._rebase(line)
            line.confirm(head)
            line.shorten(count)
            self._changed(line)
        self.forget(self._lines.keys() - live.keys() - stays)
        return more

    def asked(self, task_queue_ids: Iterable[int]) -> None:
        """Take note that the database has been asked for these unknown task queues; it may not have them either."""
        self._unknown.difference_update(task_queue_ids)

    def count(self, task_queue_id: int) -> int:
        """Return how many jobs wait in a task queue."""
        line = self._lines.get(task_queue_id)
        return max(0, line.count) if line is not None else 0

    def has_any(self, task_queue_id: int) -> bool:
        """Whether jobs wait in a task queue, or will again if the matches fail that have taken them."""
        line = self._lines.get(task_queue_id)
        return line is not None and (line.count > 0 or bool(line.under_way))

    def accounts(self) -> Iterator[Account]:
        """Return the accounts that have waiting jobs."""
        return iter([account for account, order in self.orders.items() if order])

    def accounts_among(self, task_queue_ids: frozenset[int]) -> Iterator[Account]:
        """Return the accounts that have waiting jobs in any of these task queues."""
        places = set_of(self._lines[each].place for each in task_queue_ids if each in self._lines)
        return iter([account for account, order in self.orders.items() if order.first_among(places) is not None])

    def of_account(self, account: Account) -> tuple[Waiting, ...]:
        """Return the task queues of an account that have waiting jobs."""
        order = self.orders.get(account)
        turns = order.turns() if order is not None else []
        return tuple(self._lines[task_queue_id].shown for _, _, task_queue_id, _ in turns)

    def of_pool(self, pool_id: str) -> tuple[Waiting, ...]:
        """Return all task queues of a pool, also those in which nothing waits."""
        return tuple(self._lines[task_queue_id].shown for task_queue_id in sorted(self._by_pool.get(pool_id, ())))

    def waiting(self) -> tuple[Waiting, ...]:
        """Return every task queue that has waiting jobs, in the order of the ids."""
        return tuple(self._lines[each].shown for each in sorted(self._lines) if self._lines[each].count > 0)

    def check(self) -> None:
        """Assert what must always be so."""
        self._kept.check()
        for account, order in self.orders.items():
            mine = [line for line in self._lines.values() if line.account == account]
            assert mine, "an account without task queues is forgotten"
            order.check()
            assert order.turns() == sorted(line.turn_now() or () for line in mine if line.count > 0)
        for line in self._lines.values():
            assert line.order is self.orders[line.account]
            assert self._by_place[line.place] is line
            assert (line.task_queue.id in self._headless) == line.is_headless
            line.check()

    def _told(self, line: Line) -> Told:
        is_marked = bool(line.chosen) or line.task_queue.id in self.untold
        return Told(line.version, line.count, line.base, frozenset(line.under_way), is_marked)

    def _rebase(self, line: Line) -> None:
        """Take note that the count of a line was set: none of it is assumed, and no older difference applies to it."""
        line.assumed = 0
        line.base = next(self._versions)

    def _changed(self, line: Line) -> None:
        """Bring all that is kept of a line up to date."""
        line.version = next(self._versions)
        before, after = line.turn, line.turn_now()
        if before != after:
            line.turn = after
            if not line.order:
                self.woken.add(line.account)
            if after is None:
                self.doubted.add(line.task_queue.id)
            line.order.change(before, after)
        if line.is_headless:
            self._headless.add(line.task_queue.id)
        else:
            self._headless.discard(line.task_queue.id)
        self._kept.count(line)
