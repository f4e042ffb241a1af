"""A running transaction as operations see it: session, time, deferred writes and hooks.

Rules
-----
A savepoint is a part of a transaction that fails alone. Deferred writes are collected during the transaction and
written once, as its last act. Hooks run after the commit, or after a rollback to undo changes of memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar, Protocol, Self, TypeVar

from sqlmodel import Session

from pilotage.errors import WorldError


class WriteConflictError(WorldError):
    """A concurrent transaction changed what this one has read; the transaction must run again."""

    def __init__(self, why: str) -> None:
        super().__init__(f"a concurrent transaction was faster: {why}", transient=True)


class DatabaseUnavailableError(WorldError):
    """The database is down, cut off or full; `why` is in its words, which may name its host: for operators alone."""

    def __init__(self, why: str) -> None:
        super().__init__(f"the database is not available: {why}", transient=True)

    def for_callers(self) -> WorldError:
        """Return the error for callers."""
        return WorldError("the database is not available; try again later", transient=True)


class DeferredWrite(Protocol):
    """A write that the operations of a transaction collect; it is written once, as the last act of the transaction.

    `rank` is the order in which the deferred writes of a transaction are written, the lowest first, so that all
    transactions take their locks in the same order.
    """

    rank: ClassVar[int]

    def merge(self, part: Self) -> None:
        """Add what a savepoint of the transaction has collected after this."""

    def write(self, transaction: Transaction) -> None:
        """Write to the database."""


DeferredT = TypeVar("DeferredT", bound=DeferredWrite)


@dataclass(slots=True)
class Transaction:
    """A transaction or a savepoint: its session, its time, its deferred writes, and the hooks that run at its end.

    `boot_s` = the time on the boot clock at `now`. `is_retry` = the transaction ran before and met a conflict.
    """

    session: Session
    now: datetime
    boot_s: float
    is_retry: bool = False
    _outer: Transaction | None = None
    _deferred: dict[type[Any], Any] = field(default_factory=dict)
    _after_commit: list[Callable[[], None]] = field(default_factory=list)
    _on_rollback: list[Callable[[], None]] = field(default_factory=list)

    def deferred(self, type_: type[DeferredT], create: Callable[[], DeferredT]) -> DeferredT:
        """Return the deferred write of this type; the first call creates it."""
        found: DeferredT | None = self._deferred.get(type_)
        if found is None:
            found = self._deferred[type_] = create()
        return found

    def all_deferred(self, type_: type[DeferredT]) -> Iterator[DeferredT]:
        """Yield the deferred writes of this type: that of this savepoint first, then those of the enclosing ones."""
        level: Transaction | None = self
        while level is not None:
            if type_ in level._deferred:
                yield level._deferred[type_]
            level = level._outer

    def after_commit(self, act: Callable[[], None]) -> None:
        """Run `act` once the transaction is on disk; not when the transaction fails."""
        self._after_commit.append(act)

    def on_rollback(self, act: Callable[[], None]) -> None:
        """Run `act` when the transaction fails: it undoes what was changed in memory ahead of the commit."""
        self._on_rollback.append(act)

    @contextmanager
    def savepoint(self) -> Iterator[Transaction]:
        """Provide a transaction for one piece of the work; when the block raises, that piece is undone."""
        part = Transaction(self.session, self.now, self.boot_s, self.is_retry, self)
        try:
            with self.session.begin_nested():
                self.session.connection()  # which sets the savepoint: statements of `sql` do not
                yield part
        except BaseException:
            part.run_on_rollback()
            raise
        self._merge_deferred(part._deferred)
        self._after_commit.append(part.run_after_commit)
        self._on_rollback.append(part.run_on_rollback)

    def _merge_deferred(self, later: dict[type[Any], Any]) -> None:
        for type_, write in later.items():
            if type_ in self._deferred:
                self._deferred[type_].merge(write)
            else:
                self._deferred[type_] = write

    def flush_deferred(self) -> None:
        """Write the deferred writes. This is the last act: every other row that the transaction touches is locked."""
        for deferred in sorted(self._deferred.values(), key=lambda each: each.rank):
            deferred.write(self)

    def run_after_commit(self) -> None:
        """Run the hooks for the commit in the order of registration; a failed hook does not stop the others.

        Raises
        ------
        ExceptionGroup
            With the errors of the hooks that failed.
        """
        failures: list[Exception] = []
        for act in self._after_commit:
            try:
                act()
            except Exception as error:  # the data is on disk: the other hooks must run whatever happened here
                failures.append(error)
        if failures:
            raise ExceptionGroup("hooks after a commit failed", failures)

    def run_on_rollback(self) -> None:
        """Undo what was changed in memory, the last change first; a failed hook does not stop the others."""
        with ExitStack() as hooks:
            for act in self._on_rollback:
                hooks.callback(act)
