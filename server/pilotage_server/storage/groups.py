"""Group commit: what is waiting when a writer is free becomes one transaction.

Rules
-----
A group is what waits now; nobody waits for others to come. One thread at a time is at a batch: what comes meanwhile
is the next group, the larger the more there is to do, and a large one costs less. Answers are given after the commit
only.

Alone: a member that fails with a PilotageError fails alone, and nothing of it has happened. When the group fails in
any other way (a deadlock, an unexpected error, the commit itself), nothing of it has happened, and every member runs
again in a transaction of its own, as long as the database serves. What fails after the commit, in a hook, is logged:
the members are answered all the same, for what they asked for is on disk.

Locks: SQLite has one writer, which takes all that waits. In PostgreSQL several transactions lock rows at once, and
two of them must not wait for each other in a circle. There a group is of one batch, which takes its locks in one
order for all its items; an operation outside a batch is a transaction of its own, as its locks, taken after those of
another operation, would be in no order. The order of locks, for all: the tree, what is referred to, rows of jobs by
id, counters of limits by key, the feed. Waiting jobs are claimed with SKIP LOCKED, which waits for nobody.
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
from pilotage_server.storage.unit import OvertakenError, Unit

log = structlog.get_logger()

Item = TypeVar("Item")
Item_contra = TypeVar("Item_contra", contravariant=True)
Result = TypeVar("Result")
Result_co = TypeVar("Result_co", covariant=True)


Commit = Callable[[Callable[[Unit], list[Any]]], tuple[Unit, list[Any]]]


class Batch(Protocol[Item_contra, Result_co]):
    """Work that is done for many items at once; one object serves for the life of the server."""

    @property
    def most(self) -> int:
        """So many items at most go into one transaction."""

    def run(self, unit: Unit, items: Sequence[Item_contra]) -> Sequence[Result_co | PilotageError]:
        """Return one result per item, in order; of an item that has an error for a result nothing has happened."""


@dataclass(frozen=True, slots=True)
class OneByOne:
    """The batch of operations that know nothing of one another: each fails alone."""

    most: int

    def run(self, unit: Unit, items: Sequence[Callable[[Unit], Any]]) -> list[Any]:
        """Return what each operation returns, or the PilotageError that it raises."""
        return [_apart(unit, operation) for operation in items]


def _apart(unit: Unit, operation: Callable[[Unit], Any]) -> Any:
    try:
        with unit.part() as part:
            return operation(part)
    except PilotageError as error:
        return error


@dataclass(frozen=True, slots=True)
class _Member:
    """An item that waits for its batch, and its answer."""

    batch: Batch[Any, Any]
    item: Any
    future: Future[Any] = field(default_factory=Future)


class Groups:
    """The members that wait, and the threads that take them in groups.

    `commit` runs one transaction and returns it with what was returned inside; `mixed` says that a group may be of
    several batches.
    """

    def __init__(self, commit: Commit, *, threads: int, mixed: bool) -> None:
        self._commit = commit
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
        """Let the item be handled with the next group; its result is given once it is on disk.

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
        """Take nothing more, and return once all that waits has been done."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _serve(self) -> None:
        while self._serve_group():
            pass

    def _serve_group(self) -> bool:
        """Take what waits, or will, and do it; False = nothing more is to be done here.

        What the members held, such as calls on the wire, goes with the return: nobody new has to wait for that.
        """
        group = self._next()
        wanted = [member for member in group if member.future.set_running_or_notify_cancel()]
        if wanted:
            self._run(wanted)
        self._done(group)
        return bool(group)

    def _next(self) -> list[_Member]:
        """Return the members of the next group, those of one batch together; none = nothing more is to be done here."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._ready())
            batches = self._ready() if self._mixed else self._ready()[:1]
            self._busy.update(batch for batch in batches if batch.most > 1)
            return [member for batch in batches for member in self._taken(batch)]

    def _ready(self) -> list[Batch[Any, Any]]:
        """Return the batches for which somebody waits, but for those that a thread is at."""
        return [batch for batch in self._waiting if batch not in self._busy]

    def _done(self, group: Sequence[_Member]) -> None:
        with self._changed:
            self._busy.difference_update({member.batch for member in group})
            self._changed.notify()  # who was told of new items of these batches went back to sleep

    def _taken(self, batch: Batch[Any, Any]) -> list[_Member]:
        """Take what waits for the batch, as much as it bears; what is left stands behind all other batches."""
        members = self._waiting.pop(batch)
        if len(members) <= batch.most:
            return list(members)
        self._waiting[batch] = members
        return [members.popleft() for _ in range(batch.most)]

    def _run(self, group: Sequence[_Member]) -> None:
        try:
            unit, results = self._commit(lambda unit: _results(unit, group))
        except Exception as error:  # whatever it is, the members hear of it, and the thread goes on
            if len(group) == 1:
                group[0].future.set_exception(error)
            else:
                self._run_apart(group)
            return
        try:
            unit.committed()
        except Exception as error:
            log.error("memory does not follow a commit", why=str(error), exc_info=error)
        for member, result in zip(group, results, strict=True):
            _answer(member, result)

    def _run_apart(self, group: Sequence[_Member]) -> None:
        """Run each in a transaction of its own, until the database does not serve: then the others are told so."""
        failure: BaseException | None = None
        for member in group:
            if isinstance(failure, WorldError) and not isinstance(failure, OvertakenError):
                member.future.set_exception(failure)
            else:
                self._run([member])
                failure = member.future.exception()


def _results(unit: Unit, group: Sequence[_Member]) -> list[Any]:
    if len(group) == 1 and isinstance(group[0].batch, OneByOne):
        return [group[0].item(unit)]  # without a savepoint: the transaction is its own
    results: list[Any] = []
    for batch, members in groupby(group, key=attrgetter("batch")):
        items = [member.item for member in members]
        given = batch.run(unit, items)
        assert len(given) == len(items), f"{batch} gives one result per item"
        results.extend(given)
    return results


def _answer(member: _Member, result: Any) -> None:
    if isinstance(result, Exception):
        member.future.set_exception(result)
    else:
        member.future.set_result(result)
