"""The database: engines, transactions, and what waits for a commit."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, event, func, select
from sqlalchemy.engine import make_url
from sqlalchemy.exc import OperationalError
from sqlmodel import Session, create_engine

from pilotage import clock as machine
from pilotage.clock import Clock
from pilotage.errors import WorldError

Result = TypeVar("Result")

NETWORK_FILE_SYSTEMS = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "lustre", "ceph", "fuse.sshfs", "beegfs", "gpfs"}
)

_DEADLOCK = "40P01"
_DEADLOCK_TRIES = 5

WRITES = {"pilotage_writes": True}
"""Execution options of a transaction that writes."""

ONE_SNAPSHOT = {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
"""Execution options of a transaction that reads in PostgreSQL; in SQLite every transaction reads one snapshot."""


@dataclass(slots=True)
class Unit:
    """One transaction under way: its session, its time, and what is to happen once it is committed."""

    session: Session
    now: datetime
    _before_commit: list[Callable[[], None]] = field(default_factory=list)
    _after_commit: list[Callable[[], None]] = field(default_factory=list)

    def before_commit(self, act: Callable[[], None]) -> None:
        """Let `act` run as the last thing inside the transaction, when every row it touches is locked."""
        self._before_commit.append(act)

    def after_commit(self, act: Callable[[], None]) -> None:
        """Let `act` run once the transaction is on disk; it is forgotten when the transaction fails."""
        self._after_commit.append(act)

    def committing(self) -> None:
        """Run what waited for the end of the transaction, in the order in which it was asked for."""
        for act in self._before_commit:
            act()

    def committed(self) -> None:
        """Run what waited for the commit, in the order in which it was asked for."""
        for act in self._after_commit:
            act()


class Database:
    """A database with its threads: writers (one for SQLite, which knows no more) and readers.

    `clock` tells the time of transactions; None = the database's own, which all servers on it share (SQLite has
    this machine's).
    """

    def __init__(self, url: str, clock: Clock | None = None, *, writers: int = 4, readers: int = 4) -> None:
        self.url = make_url(url)
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        self.engine = _create_engine(url, is_sqlite=self.is_sqlite)
        self._clock = clock
        self._writers = ThreadPoolExecutor(1 if self.is_sqlite else writers, thread_name_prefix="writer")
        self._readers = ThreadPoolExecutor(readers, thread_name_prefix="reader")

    def write(self, operation: Callable[[Unit], Result]) -> Result:
        """Run `operation` in one transaction, in this thread, and return its result once it is on disk.

        It runs again when PostgreSQL has chosen it as the victim of a deadlock: nothing of it has happened then.
        """
        for _ in range(_DEADLOCK_TRIES - 1):
            try:
                return self._write_once(operation)
            except WorldError as error:
                if getattr(getattr(error.__cause__, "orig", None), "sqlstate", "") != _DEADLOCK:
                    raise
        return self._write_once(operation)

    def _write_once(self, operation: Callable[[Unit], Result]) -> Result:
        with (
            _clear_failures(),
            Session(self.engine, expire_on_commit=False, autoflush=False) as session,
            session.begin(),
        ):
            session.connection(execution_options=WRITES)
            unit = Unit(session, self._now(session))
            result = operation(unit)
            session.flush()
            unit.committing()
        unit.committed()
        return result

    def read(self, operation: Callable[[Unit], Result]) -> Result:
        """Run `operation` on a snapshot that is rolled back afterwards, in this thread."""
        with _clear_failures(), Session(self.engine, autoflush=False) as session:
            session.connection(execution_options={} if self.is_sqlite else ONE_SNAPSHOT)
            return operation(Unit(session, self._now(session)))

    def _now(self, session: Session) -> datetime:
        """Return the time of a transaction that begins: leases end on one clock, whichever server looks at it."""
        if self._clock is not None:
            return self._clock()
        if self.is_sqlite:
            return machine.now()
        time: datetime = session.execute(select(func.clock_timestamp())).scalar_one()
        return time.astimezone(UTC)

    def submit_write(self, operation: Callable[[Unit], Result]) -> Future[Result]:
        """Have a writer thread do `write`."""
        return self._writers.submit(self.write, operation)

    def submit_read(self, operation: Callable[[Unit], Result]) -> Future[Result]:
        """Have a reader thread do `read`."""
        return self._readers.submit(self.read, operation)

    def close(self) -> None:
        """Let what is under way end, then close every connection."""
        self._writers.shutdown(wait=True)
        self._readers.shutdown(wait=True)
        self.engine.dispose()


def _create_engine(url: str, *, is_sqlite: bool) -> Engine:
    if not is_sqlite:
        # Said, not left to how the database is set up: all that locks and then looks counts on it.
        return create_engine(url, pool_pre_ping=True, pool_size=16, isolation_level="READ COMMITTED")
    path = make_url(url).database
    if path and path != ":memory:":
        refuse_network_file_system(path)
    engine = create_engine(url, connect_args={"check_same_thread": False, "timeout": 30.0})
    event.listen(engine, "connect", _set_up_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _set_up_sqlite(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # we say BEGIN ourselves, see _begin_sqlite
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", "cache_size=-65536"):
        connection.execute(f"PRAGMA {pragma}")


def _begin_sqlite(connection: Connection) -> None:
    # A writer takes the lock at once: one that reads first could not wait for another writer any more.
    writes = connection.get_execution_options().get("pilotage_writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


@contextmanager
def _clear_failures() -> Iterator[None]:
    """Turn a full disk, a read-only folder or a lost connection into one clear WorldError."""
    try:
        yield
    except OperationalError as error:
        raise WorldError(f"the database does not serve: {error.orig}", transient=True) from error


def refuse_network_file_system(path: str) -> None:
    """Raise WorldError where `path` lies on a network file system: SQLite's locks do not hold there."""
    kind = file_system_of(path)
    if kind in NETWORK_FILE_SYSTEMS:
        message = f"{path} lies on a network file system ({kind}), where SQLite loses data"
        raise WorldError(f"{message}; use a local disk or PostgreSQL", transient=False)


def file_system_of(path: str) -> str:
    """Return the type of the file system that holds `path`, such as ext4; empty where it is not known."""
    target = os.path.realpath(path)
    best, kind = "", ""
    for mount_point, mount_kind in _mounts():
        inside = target == mount_point or target.startswith(mount_point.rstrip("/") + "/")
        if inside and len(mount_point) >= len(best):
            best, kind = mount_point, mount_kind
    return kind


def _mounts() -> Iterator[tuple[str, str]]:
    try:
        with open("/proc/self/mounts", encoding="utf-8", errors="surrogateescape") as mounts:
            for line in mounts:
                fields = line.split()
                yield fields[1].replace("\\040", " "), fields[2]
    except OSError:
        return


@contextmanager
def closing(database: Database) -> Iterator[Database]:
    """Close the database at the end of the block."""
    try:
        yield database
    finally:
        database.close()
