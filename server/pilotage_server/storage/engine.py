"""The database: transactions that write, alone or in groups, and transactions that read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, TypeVar

from sqlalchemy import func, select
from sqlalchemy.engine import make_url
from sqlalchemy.exc import OperationalError
from sqlmodel import Session

from pilotage import clock as machine
from pilotage.clock import Clock
from pilotage.errors import WorldError
from pilotage_server.storage.checkpoints import Checkpoints
from pilotage_server.storage.connections import ONE_SNAPSHOT, open_engines
from pilotage_server.storage.groups import Batch, Groups, OneByOne
from pilotage_server.storage.unit import OvertakenError, Unit

__all__ = ["Batch", "Database", "OvertakenError", "Unit", "closing"]

Item = TypeVar("Item")
Result = TypeVar("Result")

_RUN_AGAIN = frozenset({"40001", "40P01"})
"""PostgreSQL gave the transaction up for the sake of another: serialization failures and deadlocks."""
_TRIES = 5
_OPERATIONS_AT_ONCE = 64


class Database:
    """A database with its threads: writers (one for SQLite, which knows no more) and readers.

    `clock` tells the time of transactions; None = the database's own, which all servers on it share (SQLite has
    this machine's).
    """

    def __init__(self, url: str, clock: Clock | None = None, *, writers: int = 4, readers: int = 4) -> None:
        self.url = make_url(url)
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        self.engine, self.write_engine = open_engines(url)
        self._clock = clock
        self._operations = OneByOne(_OPERATIONS_AT_ONCE if self.is_sqlite else 1)
        self.writers = 1 if self.is_sqlite else writers
        self._checkpoints = Checkpoints(self.engine) if self.engine is not self.write_engine else None
        self._groups = Groups(self._commit, threads=self.writers, mixed=self.is_sqlite)
        self._readers = ThreadPoolExecutor(readers, thread_name_prefix="reader")

    def write(self, operation: Callable[[Unit], Result]) -> Result:
        """Run `operation` in one transaction, in this thread, and return its result once it is on disk."""
        unit, result = self._commit(operation)
        unit.committed()
        return result

    def _commit(self, operation: Callable[[Unit], Result]) -> tuple[Unit, Result]:
        """Run `operation` in one transaction and return both once it is on disk; its hooks are still to be run.

        It runs again when another was quicker, or PostgreSQL has given it up for another: nothing of it has happened
        then.
        """
        for _ in range(_TRIES - 1):
            try:
                return self._commit_once(operation)
            except WorldError as error:
                if not _was_given_up(error):
                    raise
        return self._commit_once(operation)

    def _commit_once(self, operation: Callable[[Unit], Result]) -> tuple[Unit, Result]:
        with _clear_failures(), Session(self.write_engine, expire_on_commit=False, autoflush=False) as session:
            unit = Unit(session, self._begun(session))
            try:
                result = operation(unit)
                session.flush()
                unit.committing()
                session.commit()
            except BaseException:
                try:
                    session.rollback()
                finally:  # a connection that is lost cannot even be rolled back
                    unit.rolled_back()
                raise
        if self._checkpoints is not None:
            self._checkpoints.due()
        return unit, result

    def read(self, operation: Callable[[Unit], Result]) -> Result:
        """Run `operation` on a snapshot that is rolled back afterwards, in this thread."""
        with _clear_failures(), Session(self.engine, autoflush=False) as session:
            unit = Unit(session, self._begun(session, {} if self.is_sqlite else ONE_SNAPSHOT))
            try:
                return operation(unit)
            finally:
                unit.rolled_back()

    def _begun(self, session: Session, options: Mapping[str, Any] = MappingProxyType({})) -> datetime:
        """Begin a transaction and return its time, which is not before that of one that it had to wait for.

        A connection that was lost while nobody used it is replaced, for nothing has happened yet.
        """
        try:
            session.connection(execution_options=options)
            return self._now(session)
        except OperationalError as error:
            if not error.connection_invalidated:
                raise
        session.rollback()
        session.connection(execution_options=options)
        return self._now(session)

    def _now(self, session: Session) -> datetime:
        """Return the time of a transaction that begins: leases end on one clock, whichever server looks at it."""
        if self._clock is not None:
            return self._clock()
        if self.is_sqlite:
            return machine.now()
        time: datetime = session.execute(select(func.clock_timestamp())).scalar_one()
        return time.astimezone(UTC)

    def submit_write(self, operation: Callable[[Unit], Result]) -> Future[Result]:
        """Have a writer thread run `operation` and give its result once it is on disk; others share its commit."""
        return self._groups.submit(self._operations, operation)

    def submit_batch(self, batch: Batch[Item, Result], item: Item) -> Future[Result]:
        """Have a writer thread handle `item` together with the others that wait for the same batch."""
        return self._groups.submit(batch, item)

    def submit_read(self, operation: Callable[[Unit], Result]) -> Future[Result]:
        """Have a reader thread do `read`."""
        return self._readers.submit(self.read, operation)

    def close(self) -> None:
        """Let what is under way end, then close every connection."""
        self._groups.close()
        self._readers.shutdown(wait=True)
        if self._checkpoints is not None:
            self._checkpoints.close()
        self.engine.dispose()
        self.write_engine.dispose()


def _was_given_up(error: WorldError) -> bool:
    return (
        isinstance(error, OvertakenError)
        or getattr(getattr(error.__cause__, "orig", None), "sqlstate", "") in _RUN_AGAIN
    )


@contextmanager
def _clear_failures() -> Iterator[None]:
    """Turn a full disk, a read-only folder or a lost connection into one clear WorldError."""
    try:
        yield
    except OperationalError as error:
        raise WorldError(f"the database does not serve: {error.orig}", transient=True) from error


@contextmanager
def closing(database: Database) -> Iterator[Database]:
    """Close the database at the end of the block."""
    try:
        yield database
    finally:
        database.close()
