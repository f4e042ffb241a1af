"""The database: write transactions, alone or in groups, read transactions, and the upgrade of the schema."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from importlib.resources import files
from typing import TypeVar

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import insert, inspect, text, update
from sqlalchemy.engine import make_url
from sqlalchemy.exc import OperationalError
from sqlmodel import Session

from pilotage import clock as machine
from pilotage.clock import Clock
from pilotage.errors import WorldError
from pilotage_server.storage.database import sql
from pilotage_server.storage.database.connections import (
    ONE_SNAPSHOT,
    Checkpointer,
    ConnectionPool,
    PooledConnection,
    open_engines,
)
from pilotage_server.storage.database.fence import Fence, check_fence, close_fence, place_of, schema_name
from pilotage_server.storage.database.group_commit import Batch, GroupCommit, SingleOperations
from pilotage_server.storage.database.tables import metadata
from pilotage_server.storage.database.transaction import DatabaseUnavailableError, Transaction, WriteConflictError
from pilotage_server.storage.database.write_counts import WriteCounts

Item = TypeVar("Item")
Result = TypeVar("Result")

_RETRYABLE_STATES = frozenset({"40001", "40P01"})
"""SQLSTATE codes with which PostgreSQL aborts one of several transactions: serialization failures and deadlocks."""
_TRIES = 5
_MAX_CONNECTIONS = 32
"""More connections than a server has open: after so many lost ones in a row, the database is unavailable."""
_OPERATIONS_AT_ONCE = 64


class Database:
    """A database with its threads: writers (one for SQLite, which supports only one) and readers.

    `clock` gives the time of transactions; None = the clock of the database, which all servers on it share. SQLite uses
    the clock of this machine.
    """

    def __init__(self, url: str, clock: Clock | None = None, *, writers: int = 4, readers: int = 4) -> None:
        self.url = make_url(url)
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        self.engine, self.write_engine = open_engines(url)
        self.read_connections = ConnectionPool(self.engine, {} if self.is_sqlite else ONE_SNAPSHOT)
        self.write_connections = ConnectionPool(self.write_engine)
        self.fence: Fence | None = None
        """What the server has joined; None = not yet, and write transactions are not checked."""
        self._clock = clock
        self._operations = SingleOperations(_OPERATIONS_AT_ONCE if self.is_sqlite else 1)
        self.writers = 1 if self.is_sqlite else writers
        self._checkpoints = Checkpointer(self.engine) if self.engine is not self.write_engine else None
        self.write_counts = WriteCounts()
        self._groups = GroupCommit(
            self._commit, self.write_counts.add_group, threads=self.writers, mixed=self.is_sqlite
        )
        self._readers = ThreadPoolExecutor(readers, thread_name_prefix="reader")

    def write(self, operation: Callable[[Transaction], Result]) -> Result:
        """Run `operation` in one transaction, in this thread, and return its result once it is on disk."""
        transaction, result = self._commit(operation)
        transaction.run_after_commit()
        return result

    def _commit(self, operation: Callable[[Transaction], Result]) -> tuple[Transaction, Result]:
        """Run `operation` in one transaction and return both once it is on disk; the caller runs the hooks.

        After a conflict or an abort by PostgreSQL the transaction has had no effect, and it runs again.
        """
        for earlier_tries in range(_TRIES):
            began_s = machine.boot_time_s()
            try:
                done = self._commit_once(operation, again=earlier_tries > 0)
            except Exception as error:
                is_repeated = _is_retryable(error) and earlier_tries < _TRIES - 1
                self.write_counts.add_error(error, is_repeated=is_repeated)
                if not is_repeated:
                    raise
            else:
                self.write_counts.add_committed(machine.boot_time_s() - began_s)
                return done
        raise AssertionError("the last try returns or raises")

    def _commit_once(self, operation: Callable[[Transaction], Result], *, again: bool) -> tuple[Transaction, Result]:
        with _translated_errors():
            line, transaction = self._begin(self.write_connections, self.fence)
            transaction.is_retry = again
            try:
                result = operation(transaction)
                transaction.flush_deferred()
                line.commit()
            except BaseException:
                line.close()
                transaction.run_on_rollback()
                raise
        self.write_connections.release(line)
        if self._checkpoints is not None:
            self._checkpoints.notify()
        return transaction, result

    def read(self, operation: Callable[[Transaction], Result]) -> Result:
        """Run `operation` on a snapshot that is rolled back afterwards, in this thread."""
        with _translated_errors():
            line, transaction = self._begin(self.read_connections)
            try:
                result = operation(transaction)
                line.roll_back()
            except BaseException:
                line.close()
                raise
            finally:
                transaction.run_on_rollback()
        self.read_connections.release(line)
        return result

    def _begin(self, lines: ConnectionPool, fence: Fence | None = None) -> tuple[PooledConnection, Transaction]:
        """Begin a transaction; its time is not before that of a transaction that it had to wait for.

        Connections that were lost while they were idle are replaced, because nothing has been executed yet.
        """
        for _ in range(_MAX_CONNECTIONS):
            try:
                return self._begin_on(lines.acquire(), fence)
            except OperationalError as error:
                if not error.connection_invalidated:
                    raise
        return self._begin_on(lines.acquire(), fence)

    def _begin_on(self, line: PooledConnection, fence: Fence | None) -> tuple[PooledConnection, Transaction]:
        try:
            line.begin()
            time = None if fence is None else check_fence(line.session, fence)
            now = self._now(line.session) if time is None else time
            return line, Transaction(line.session, now, machine.boot_time_s())
        except BaseException:
            line.close()
            raise

    def _now(self, session: Session) -> datetime:
        """Return the time at the begin of a transaction: leases end on one clock for all servers."""
        if self._clock is not None:
            return self._clock()
        if self.is_sqlite:
            return machine.now()
        ((time,),) = sql.rows(session, "SELECT clock_timestamp()")
        return sql.utc_time(time)

    def submit_write(self, operation: Callable[[Transaction], Result]) -> Future[Result]:
        """Run `operation` in a writer thread; the result is set once it is on disk. Operations share commits."""
        return self._groups.submit(self._operations, operation)

    def submit_batch(self, batch: Batch[Item, Result], item: Item) -> Future[Result]:
        """Handle `item` in a writer thread, together with the other items that wait for the same batch."""
        return self._groups.submit(batch, item)

    def submit_read(self, operation: Callable[[Transaction], Result]) -> Future[Result]:
        """Run `read` in a reader thread."""
        return self._readers.submit(self.read, operation)

    def close(self) -> None:
        """Wait for running transactions, then close every connection."""
        self._groups.close()
        self._readers.shutdown(wait=True)
        if self._checkpoints is not None:
            self._checkpoints.close()
        self.read_connections.close_idle()
        self.write_connections.close_idle()
        self.engine.dispose()
        self.write_engine.dispose()


def _is_retryable(error: Exception) -> bool:
    return isinstance(error, WorldError) and (
        isinstance(error, WriteConflictError)
        or getattr(getattr(error.__cause__, "orig", None), "sqlstate", "") in _RETRYABLE_STATES
    )


@contextmanager
def _translated_errors() -> Iterator[None]:
    """Turn a full disk, a read-only folder or a lost connection into one clear error of one line."""
    try:
        yield
    except OperationalError as error:
        raise DatabaseUnavailableError(" ".join(str(error.orig).split())) from error


@contextmanager
def closing(database: Database) -> Iterator[Database]:
    """Close the database at the end of the block."""
    try:
        yield database
    finally:
        database.close()


SCHEMA_LOCK = 0x70696C73
"""Number of the advisory lock that a server holds while it changes the schema."""


def upgrade(database: Database) -> None:
    """Upgrade the schema of the database to this release; create it in an empty database.

    Servers of an earlier release that run on the database are fenced: they stop.

    Raises
    ------
    WorldError
        The database cannot be reached or written, or a later release or another build has made its schema.
    """
    database.write(_upgrade)


def _upgrade(transaction: Transaction) -> None:
    session = transaction.session
    if not sql.is_sqlite(session):
        session.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": SCHEMA_LOCK})
    status = read_schema(session)
    if status.pending:
        close_fence(session)
        config = migrations()
        config.attributes["connection"] = session.connection()
        command.upgrade(config, "head")
        record_schema(session)
        status = read_schema(session)
    if fault := status.fault():
        raise WorldError(fault, transient=False)


@dataclass(frozen=True, slots=True)
class Migration:
    """A step of the schema: its number, and what it brings."""

    number: str
    title: str


@dataclass(frozen=True, slots=True)
class SchemaStatus:
    """The schema that a database has (None = it is empty), the one that this program wants, and the steps between.

    `found` and `own` are the digests of both, which tell builds apart that have the same number; `found` "" = none.
    """

    present: str | None
    wanted: str
    pending: tuple[Migration, ...]
    found: str
    own: str

    def fault(self) -> str:
        """Return why this program cannot use the database, nor upgrade it; "" = it can."""
        if self.pending:
            return ""
        if self.present != self.wanted:
            why = f"the database has schema {self.present}, and this server knows those up to {self.wanted}"
            cure = "run a server of the release that has upgraded it, or restore a backup that is older"
            return f"{why}: {cure}"
        if self.found != self.own:
            why = f"another build of this release has made the database: its schema is {self.found}, not {self.own}"
            return f"{why}; use that build, or a new database"
        return ""


def read_schema(session: Session) -> SchemaStatus:
    """Return which schema the database has; nothing is changed."""
    scripts = ScriptDirectory.from_config(migrations())
    present = MigrationContext.configure(session.connection()).get_current_revision()
    newest_first = [*scripts.walk_revisions()]
    numbers = [each.revision for each in newest_first]
    is_known = present is None or present in numbers
    steps = newest_first[: None if present is None else numbers.index(present)] if is_known else []
    pending = tuple(Migration(each.revision, each.doc) for each in reversed(steps))
    names = inspect(session.connection()).get_table_names()
    found = session.execute(text("SELECT schema_name FROM installation")).scalar() if "installation" in names else None
    return SchemaStatus(present, numbers[0], pending, found or "", schema_name())


def migrations() -> Config:
    """Return the configuration of alembic with the migrations of this release."""
    config = Config()
    config.set_main_option("script_location", str(files("pilotage_server.storage") / "migrations"))
    return config


def record_schema(session: Session) -> None:
    """Record the schema of this build; a new database becomes an installation."""
    installed = metadata.tables["installation"]
    renamed = session.execute(update(installed).values(schema_name=schema_name()))
    if getattr(renamed, "rowcount", 0) == 0:
        row = {
            "id": 1,
            "database_id": secrets.token_hex(8),
            "schema_name": schema_name(),
            "incarnation": 1,
            "place": place_of(session),
            "store": "",
            "keys_json": "{}",
        }
        session.execute(insert(installed).values(row))
