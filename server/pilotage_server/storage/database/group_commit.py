"""Group commit: all operations that wait when a writer becomes free share one transaction.

Rules
-----
A group is what waits now; no operation waits for others to arrive. One thread at a time works on a batch: items that
arrive meanwhile are the next group. Results are set after the commit only.

Failures: a member that fails with a PilotageError fails alone and is rolled back. When the group fails in any other
way (a deadlock, an unexpected error, the commit itself), it is rolled back as a whole, and each member runs again in
its own transaction, as long as the database is available. An error in a hook after the commit is logged: the members
get their results, because their work is on disk.

Locks: SQLite has one writer, which takes everything that waits. PostgreSQL runs several transactions at once, which
must not wait for each other in a circle. There a group consists of one batch, which takes its locks in one order for
all its items; an operation outside a batch has its own transaction, because its locks would follow those of another
operation. The order of locks: the tree, the examination of dependencies, referenced rows, sources of dependencies,
rows of jobs by id, blocks with unmet dependencies, counters of limits by key, the feed. Waiting jobs, events of parents
and blocks without unmet dependencies are claimed with SKIP LOCKED, which never waits.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from typing import Any, Protocol, TypeVar

import structlog

from pilotage.errors import PilotageError, WorldError
from pilotage_server.storage.database.transaction import Transaction, WriteConflictError

log = structlog.get_logger()

Item = TypeVar("Item")
Item_contra = TypeVar("Item_contra", contravariant=True)
Result = TypeVar("Result")
Result_co = TypeVar("Result_co", covariant=True)


Commit = Callable[[Callable[[Transaction], list[Any]]], tuple[Transaction, list[Any]]]


class Batch(Protocol[Item_contra, Result_co]):
    """Work that handles many items in one transaction; one object lives as long as the server."""

    @property
    def most(self) -> int:
        """The maximum number of items in one transaction."""

    def run(self, transaction: Transaction, items: Sequence[Item_contra]) -> Sequence[Result_co | PilotageError]:
        """Return one result per item, in order; an item whose result is an error has had no effect."""


@dataclass(frozen=True, slots=True)
class SingleOperations:
    """The batch of independent operations: each fails alone."""

    most: int

    def run(self, transaction: Transaction, items: Sequence[Callable[[Transaction], Any]]) -> list[Any]:
        """Return what each operation returns, or the PilotageError that it raises."""
        return [_run_in_savepoint(transaction, operation) for operation in items]


def _run_in_savepoint(transaction: Transaction, operation: Callable[[Transaction], Any]) -> Any:
    try:
        with transaction.savepoint() as part:
            return operation(part)
    except PilotageError as error:
        return error


@dataclass(frozen=True, slots=True)
class _Member:
    """An item that waits for its batch, with its future result."""

    batch: Batch[Any, Any]
    item: Any
    future: Future[Any] = field(default_factory=Future)


class GroupCommit:
    """The waiting members, and the threads that process them in groups.

    `commit` runs one transaction and returns it with the results. `mixed` = a group may consist of several batches.
    `count_group` is called with the size of each group that is on disk.
    """

    def __init__(self, commit: Commit, count_group: Callable[[int], None], *, threads: int, mixed: bool) -> None:
        self._commit = commit
        self._count_group = count_group
        self._mixed = mixed
        self._waiting: dict[Batch[Any, Any], deque[_Member]] = {}
        self._busy: set[Batch[Any, Any]] = set()
        self._changed = threading.Condition(threading.Lock())
        self._closed = False
        self._threads = [
            threading.Thread(target=self._serve, name=f"writer-{number}", daemon=True) for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, batch: Batch[Item, Result], item: Item) -> Future[Result]:
        """Add the item to the next group; its result is set once it is on disk.

        Raises RuntimeError after `close`.
        """
        member = _Member(batch, item)
        with self._changed:
            if self._closed:
                raise RuntimeError("the database is closed")
            self._waiting.setdefault(batch, deque()).append(member)
            self._changed.notify()
        return member.future

    def close(self) -> None:
        """Accept no more items and return when all waiting ones are done."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _serve(self) -> None:
        while self._serve_group():
            pass

    def _serve_group(self) -> bool:
        """Wait for a group and process it; False = closed, and nothing is left.

        It returns after each group, so that references to the members, such as calls on the wire, are dropped at once.
        """
        group = self._next()
        wanted = [member for member in group if member.future.set_running_or_notify_cancel()]
        if wanted:
            self._run(wanted)
        self._done(group)
        return bool(group)

    def _next(self) -> list[_Member]:
        """Return the members of the next group, ordered by batch; empty = closed, and nothing is left."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._ready())
            batches = self._ready() if self._mixed else self._ready()[:1]
            self._busy.update(batch for batch in batches if batch.most > 1)
            return [member for batch in batches for member in self._take_members(batch)]

    def _ready(self) -> list[Batch[Any, Any]]:
        """Return the batches with waiting members that no thread is working on."""
        return [batch for batch in self._waiting if batch not in self._busy]

    def _done(self, group: Sequence[_Member]) -> None:
        with self._changed:
            self._busy.difference_update({member.batch for member in group})
            self._changed.notify()  # a thread that was notified of new items of these batches has gone back to sleep

    def _take_members(self, batch: Batch[Any, Any]) -> list[_Member]:
        """Remove the first members of the batch, at most `batch.most`; the rest queue behind all other batches."""
        members = self._waiting.pop(batch)
        if len(members) <= batch.most:
            return list(members)
        self._waiting[batch] = members
        return [members.popleft() for _ in range(batch.most)]

    def _run(self, group: Sequence[_Member]) -> None:
        try:
            transaction, results = self._commit(lambda transaction: _results(transaction, group))
        except Exception as error:  # any error goes to the members, and the thread continues
            if len(group) == 1:
                group[0].future.set_exception(error)
            else:
                self._run_individually(group)
            return
        self._count_group(len(group))
        try:
            transaction.run_after_commit()
        except Exception as error:
            log.error("hook after a commit failed", why=str(error), exc_info=error)
        for member, result in zip(group, results, strict=True):
            if isinstance(result, Exception):
                member.future.set_exception(result)
            else:
                member.future.set_result(result)

    def _run_individually(self, group: Sequence[_Member]) -> None:
        """Run each member in its own transaction; once the database is unavailable, fail the others with that error."""
        failure: BaseException | None = None
        for member in group:
            if isinstance(failure, WorldError) and not isinstance(failure, WriteConflictError):
                member.future.set_exception(failure)
            else:
                self._run([member])
                failure = member.future.exception()


def _results(transaction: Transaction, group: Sequence[_Member]) -> list[Any]:
    if len(group) == 1 and isinstance(group[0].batch, SingleOperations):
        return [group[0].item(transaction)]  # without a savepoint: the transaction is not shared
    results: list[Any] = []
    for batch, members in groupby(group, key=attrgetter("batch")):
        items = [member.item for member in members]
        batch_results = batch.run(transaction, items)
        assert len(batch_results) == len(items), f"{batch} gives one result per item"
        results.extend(batch_results)
    return results
