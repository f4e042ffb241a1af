"""The database: transactions that write, alone or in groups, and transactions that read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime
from typing import TypeVar

from sqlalchemy.engine import make_url
from sqlalchemy.exc import OperationalError
from sqlmodel import Session

from pilotage import clock as machine
from pilotage.clock import Clock
from pilotage.errors import WorldError
from pilotage_server.storage import bulk
from pilotage_server.storage.checkpoints import Checkpoints
from pilotage_server.storage.connections import ONE_SNAPSHOT, open_engines
from pilotage_server.storage.groups import Batch, Groups, OneByOne
from pilotage_server.storage.lines import Line, Lines
from pilotage_server.storage.unit import OvertakenError, Unit

__all__ = ["Batch", "Database", "OvertakenError", "Unit", "closing"]

Item = TypeVar("Item")
Result = TypeVar("Result")

_RUN_AGAIN = frozenset({"40001", "40P01"})
"""PostgreSQL gave the transaction up for the sake of another: serialization failures and deadlocks."""
_TRIES = 5
_MOST_CONNECTIONS = 32
"""More than a server has open: when so many of them were lost one after the other, the database does not serve."""
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
        self.reading = Lines(self.engine, {} if self.is_sqlite else ONE_SNAPSHOT)
        self.writing = Lines(self.write_engine)
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
        for before in range(_TRIES - 1):
            try:
                return self._commit_once(operation, again=before > 0)
            except WorldError as error:
                if not _was_given_up(error):
                    raise
        return self._commit_once(operation, again=True)

    def _commit_once(self, operation: Callable[[Unit], Result], *, again: bool) -> tuple[Unit, Result]:
        with _clear_failures():
            line, unit = self._begun(self.writing)
            unit.again = again
            try:
                result = operation(unit)
                unit.committing()
                line.commit()
            except BaseException:
                line.close()
                unit.rolled_back()
                raise
        self.writing.give_back(line)
        if self._checkpoints is not None:
            self._checkpoints.due()
        return unit, result

    def read(self, operation: Callable[[Unit], Result]) -> Result:
        """Run `operation` on a snapshot that is rolled back afterwards, in this thread."""
        with _clear_failures():
            line, unit = self._begun(self.reading)
            try:
                result = operation(unit)
                line.roll_back()
            except BaseException:
                line.close()
                raise
            finally:
                unit.rolled_back()
        self.reading.give_back(line)
        return result

    def _begun(self, lines: Lines) -> tuple[Line, Unit]:
        """Begin a transaction; its time is not before that of one that it had to wait for.

        Connections that were lost while nobody used them are replaced, for nothing has happened yet.
        """
        for _ in range(_MOST_CONNECTIONS):
            try:
                return self._begun_on(lines.take())
            except OperationalError as error:
                if not error.connection_invalidated:
                    raise
        return self._begun_on(lines.take())

    def _begun_on(self, line: Line) -> tuple[Line, Unit]:
        try:
            line.begin()
            return line, Unit(line.session, self._now(line.session))
        except BaseException:
            line.close()
            raise

    def _now(self, session: Session) -> datetime:
        """Return the time of a transaction that begins: leases end on one clock, whichever server looks at it."""
        if self._clock is not None:
            return self._clock()
        if self.is_sqlite:
            return machine.now()
        ((time,),) = bulk.rows(session, "SELECT clock_timestamp()")
        return bulk.time_of(time)

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
        self.reading.close_idle()
        self.writing.close_idle()
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
