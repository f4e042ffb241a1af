"""Connections to the database: set-up of SQLite and PostgreSQL, the connection pool, and SQLite's checkpoints.

Rules
-----
A pooled connection stays open from one transaction to the next and has one session. The transaction is the driver's
own. The session joins it only when more is needed than the statements of `sql`: to begin and end a session's own
transaction costs as much as a dozen of those.

A thread checkpoints SQLite's log beside the writer. Otherwise a commit that finds the log long does it, and the calls
in that commit wait for tens of milliseconds.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import structlog
from sqlalchemy import Connection, Engine, event
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlmodel import Session, create_engine

from pilotage.errors import WorldError
from pilotage_server.storage.database import sql

NETWORK_FILE_SYSTEMS = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "lustre", "ceph", "fuse.sshfs", "beegfs", "gpfs"}
)

ONE_SNAPSHOT = {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
"""Execution options of PostgreSQL's read transactions; in SQLite every transaction reads one snapshot."""

_WRITER_CACHE_KIB = 64 * 1024
_READER_CACHE_KIB = 8 * 1024
_LOG_PAGES = 16_000
"""A commit copies SQLite's log into the database only when it is as long as this: see `Checkpointer`."""
_PLANS_OF_SMALL_THINGS = ("enable_hashjoin", "enable_mergejoin", "enable_seqscan", "jit")
"""Disabled planner features: queries look up few rows in large tables, often before there are statistics."""
_QUICK_COMPRESSION = """
    SELECT set_config(name, 'lz4', false) FROM pg_settings
    WHERE name = 'default_toast_compression' AND 'lz4' = ANY(enumvals)
"""
"""Use lz4 for long values, such as stored answers, where PostgreSQL offers it: it takes an eighth of the time."""

_SILENCE_S = 30
"""A connection to PostgreSQL on which a peer is silent for so long is given up: its host or network has failed."""
_PATIENCE: Mapping[str, str] = {
    "connect_timeout": "10",
    "keepalives_idle": str(_SILENCE_S // 3),
    "keepalives_interval": str(_SILENCE_S // 6),
    "keepalives_count": "4",
    "tcp_user_timeout": str(_SILENCE_S * 1000),
}
"""Parameters of libpq, unless the URL has others; the system's defaults wait for hours."""

_OWNER_ONLY = 0o600
_LOG_FILES = ("-wal", "-shm", "-journal")
_BEGIN = "begin"
"""Execution option of SQLite's engines: the statement that begins a transaction."""
_STATEMENTS_KEPT = 512
"""Prepared statements cached by a connection to SQLite: more than the server has different ones."""


def open_engines(url: str) -> tuple[Engine, Engine]:
    """Return the engines of a database: one for read transactions and one for write transactions.

    PostgreSQL has one engine for both, and so has SQLite in memory, which a second engine could not see.
    Raises WorldError when SQLite's file would be on a network file system.
    """
    parsed = make_url(url)
    if parsed.get_backend_name() != "sqlite":
        # Explicit, not the default of the database: code that locks rows and then reads depends on it.
        patience = {name: value for name, value in _PATIENCE.items() if name not in parsed.query}
        engine = create_engine(url, pool_size=16, isolation_level="READ COMMITTED", connect_args=patience)
        event.listen(engine, "connect", _set_up_postgresql)
        return engine, engine
    # A writer takes the lock at its begin: SQLite cannot wait for another writer once a transaction has read.
    writing = _sqlite_engine(url, beginning="BEGIN IMMEDIATE", cache_kib=_WRITER_CACHE_KIB)
    if parsed.database in (None, "", ":memory:"):
        return writing, writing
    refuse_network_file_system(parsed.database)
    _make_private(Path(parsed.database))
    return _sqlite_engine(url, beginning="BEGIN", cache_kib=_READER_CACHE_KIB), writing


def _make_private(database: Path) -> None:
    """Create the database's file for its owner alone, and take an existing one from others; raises WorldError.

    SQLite gives the files of its log the mode of the database's file.
    """
    try:
        with suppress(FileNotFoundError):  # without the folder, SQLite says what is missing
            os.close(os.open(database, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _OWNER_ONLY))
        for file in (database, *(database.with_name(database.name + suffix) for suffix in _LOG_FILES)):
            with suppress(FileNotFoundError):
                file.chmod(_OWNER_ONLY)
    except OSError as error:
        why = f"the database {database} cannot be opened for this user alone: {error}"
        raise WorldError(why, transient=False) from error


def _set_up_postgresql(connection: Any, _record: Any) -> None:
    from psycopg.types.array import ListBinaryDumper  # imported here: installations with SQLite do not need psycopg

    # As text, each item of a list is escaped separately: 40 µs for a job's description; in binary 0.7 µs.
    connection.adapters.register_dumper(list, ListBinaryDumper)
    for setting in _PLANS_OF_SMALL_THINGS:
        connection.execute(f"SET {setting} = off")
    # The locks of a server that is stopped or cut off must not stop the others.
    connection.execute(f"SET idle_in_transaction_session_timeout = '{_SILENCE_S}s'")
    connection.execute(_QUICK_COMPRESSION)
    connection.commit()


def _sqlite_engine(url: str, *, beginning: str, cache_kib: int) -> Engine:
    options = {"check_same_thread": False, "timeout": 30.0, "cached_statements": _STATEMENTS_KEPT}
    engine = create_engine(url, connect_args=options, execution_options={_BEGIN: beginning})
    event.listen(engine, "connect", partial(_set_up_sqlite, cache_kib=cache_kib))
    event.listen(engine, "begin", begin)
    return engine


def begin(connection: Connection) -> None:
    """Begin a transaction of the driver unless one is open; PostgreSQL begins it with the first statement."""
    driver: Any = connection.connection.driver_connection
    statement = connection.get_execution_options().get(_BEGIN)
    if statement is not None and not driver.in_transaction:
        driver.execute(statement)


def _set_up_sqlite(connection: Any, _record: Any, *, cache_kib: int) -> None:
    connection.isolation_level = None  # `begin` issues BEGIN
    # Some builds zero deleted content at once, which costs an eighth of a match. It is overwritten later anyway.
    settings = ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", "secure_delete=OFF")
    for setting in (*settings, f"wal_autocheckpoint={_LOG_PAGES}", f"cache_size=-{cache_kib}"):
        connection.execute(f"PRAGMA {setting}")


def refuse_network_file_system(path: str) -> None:
    """Raise WorldError when `path` is on a network file system: SQLite's locks do not work there."""
    kind = file_system_of(path)
    if kind in NETWORK_FILE_SYSTEMS:
        message = f"{path} lies on a network file system ({kind}), where SQLite loses data"
        raise WorldError(f"{message}; use a local disk or PostgreSQL", transient=False)


def file_system_of(path: str) -> str:
    """Return the type of the file system that holds `path`, such as ext4; "" = unknown."""
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


class PooledConnection:
    """A connection and the session that uses it."""

    __slots__ = ("_connection", "_driver", "session")

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._driver = sql.Driver(connection)
        self.session = Session(connection, autoflush=False)
        sql.set_driver(self.session, self._driver)

    def begin(self) -> None:
        """Begin a transaction."""
        with self._driver:
            begin(self._connection)

    def commit(self) -> None:
        """Put the transaction on disk."""
        with self._driver:
            self._driver.commit()
        self._end_session_transaction()

    def roll_back(self) -> None:
        """Undo the transaction."""
        with self._driver:
            self._driver.roll_back()
        self._end_session_transaction()

    def _end_session_transaction(self) -> None:
        """Tell the session that the transaction has ended."""
        if self.session.in_transaction():
            self.session.rollback()

    def close(self) -> None:
        """Roll back and close the connection; discard it when it is lost."""
        try:
            self.roll_back()
        except DBAPIError:
            self._connection.invalidate()
        self._connection.close()


class ConnectionPool:
    """The open connections of an engine: a new transaction takes an idle one or opens another one.

    `options` are execution options of the connections.
    """

    def __init__(self, engine: Engine, options: Mapping[str, Any] = MappingProxyType({})) -> None:
        self._engine = engine
        self._options = options
        self._idle: list[PooledConnection] = []

    def acquire(self) -> PooledConnection:
        """Return a connection for exclusive use."""
        try:
            return self._idle.pop()
        except IndexError:
            return PooledConnection(self._engine.connect().execution_options(**self._options))

    def release(self, line: PooledConnection) -> None:
        """Take back a connection whose transaction has ended well; after a failure, close the connection instead."""
        self._idle.append(line)

    def close_idle(self) -> None:
        """Close the idle connections."""
        while self._idle:
            self._idle.pop().close()


log = structlog.get_logger()

_PAUSE_S = 1.0
"""Pause between two checkpoints; pages that change again within it are copied once."""
_FEW_PAGES = 200
"""A checkpoint ends when commits have added no more pages than this meanwhile."""


class Checkpointer:
    """The thread that checkpoints SQLite's log after `notify`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._due = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="checkpoints", daemon=True)
        self._thread.start()

    def notify(self) -> None:
        """Request a checkpoint soon."""
        if not self._due.is_set():  # cheaper than setting it again
            self._due.set()

    def close(self) -> None:
        """End the thread; SQLite copies the rest of the log when the last connection is closed."""
        self._closing.set()
        self._due.set()
        self._thread.join()

    def _serve(self) -> None:
        while self._due.wait() and not self._closing.is_set():
            self._due.clear()
            try:
                checkpoint(self._engine)
            except (sqlite3.Error, SQLAlchemyError) as error:  # such as a full disk
                log.warning("log not copied into the database", why=str(error))
            self._closing.wait(_PAUSE_S)


def checkpoint(engine: Engine) -> None:
    """Copy the log into the database. Commits go on meanwhile, so it repeats until few new pages are left."""
    connection = engine.raw_connection()
    try:
        cursor = connection.cursor()
        before, copied = 0, _FEW_PAGES + 1
        while copied - before > _FEW_PAGES:
            before = copied
            _, _, copied = cursor.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    finally:
        connection.close()
