"""Connections to the database: how SQLite and PostgreSQL are set up, and where SQLite is refused."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from typing import Any

from sqlalchemy import Connection, Engine, event
from sqlalchemy.engine import make_url
from sqlmodel import create_engine

from pilotage.errors import WorldError

NETWORK_FILE_SYSTEMS = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "lustre", "ceph", "fuse.sshfs", "beegfs", "gpfs"}
)

ONE_SNAPSHOT = {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
"""Execution options of a transaction that reads in PostgreSQL; in SQLite every transaction reads one snapshot."""

_WRITER_CACHE_KIB = 64 * 1024
_READER_CACHE_KIB = 8 * 1024
_LOG_PAGES = 16_000
"""A commit copies SQLite's log into the database only when it is as long as this: see `checkpoints`."""
_PLANS_OF_SMALL_THINGS = ("enable_hashjoin", "enable_mergejoin", "enable_seqscan", "jit")
"""What PostgreSQL is kept from: a few rows are looked up in large tables, of which it may have no statistics yet."""
_QUICK_COMPRESSION = """
    SELECT set_config(name, 'lz4', false) FROM pg_settings
    WHERE name = 'default_toast_compression' AND 'lz4' = ANY(enumvals)
"""
"""Long values, such as answers that are kept, are compressed in an eighth of the time, where PostgreSQL knows how."""

_BEGIN = "begin"
"""Execution option of SQLite's engines: the statement that begins a transaction."""
_STATEMENTS_KEPT = 512
"""Prepared statements that a connection to SQLite keeps: more than the server has different ones."""


def open_engines(url: str) -> tuple[Engine, Engine]:
    """Return the engines of a database: for transactions that read, and for those that write.

    It is one and the same for PostgreSQL, and for an SQLite in memory, which a second one could not see.
    Raises WorldError where SQLite's file would lie on a network file system.
    """
    parsed = make_url(url)
    if parsed.get_backend_name() != "sqlite":
        # Said, not left to how the database is set up: all that locks and then looks counts on it.
        engine = create_engine(url, pool_size=16, isolation_level="READ COMMITTED")
        event.listen(engine, "connect", _set_up_postgresql)
        return engine, engine
    # A writer takes the lock at once: one that reads first could not wait for another writer any more.
    writing = _sqlite_engine(url, beginning="BEGIN IMMEDIATE", cache_kib=_WRITER_CACHE_KIB)
    if parsed.database in (None, "", ":memory:"):
        return writing, writing
    refuse_network_file_system(parsed.database)
    return _sqlite_engine(url, beginning="BEGIN", cache_kib=_READER_CACHE_KIB), writing


def _set_up_postgresql(connection: Any, _record: Any) -> None:
    from psycopg.types.array import ListBinaryDumper  # who has SQLite need not have it

    # As text, each item of a list would be escaped by itself: 40 µs for a job's description, in binary 0.7 µs.
    connection.adapters.register_dumper(list, ListBinaryDumper)
    for setting in _PLANS_OF_SMALL_THINGS:
        connection.execute(f"SET {setting} = off")
    connection.execute(_QUICK_COMPRESSION)
    connection.commit()


def _sqlite_engine(url: str, *, beginning: str, cache_kib: int) -> Engine:
    options = {"check_same_thread": False, "timeout": 30.0, "cached_statements": _STATEMENTS_KEPT}
    engine = create_engine(url, connect_args=options, execution_options={_BEGIN: beginning})
    event.listen(engine, "connect", partial(_set_up_sqlite, cache_kib=cache_kib))
    event.listen(engine, "begin", begin)
    return engine


def begin(connection: Connection) -> None:
    """Begin a transaction of the driver's, unless one is under way; PostgreSQL's begins with its first statement."""
    driver: Any = connection.connection.driver_connection
    statement = connection.get_execution_options().get(_BEGIN)
    if statement is not None and not driver.in_transaction:
        driver.execute(statement)


def _set_up_sqlite(connection: Any, _record: Any, *, cache_kib: int) -> None:
    connection.isolation_level = None  # we say BEGIN ourselves
    # What is removed is overwritten when its place is needed: some builds zero it at once, for an eighth of a match.
    settings = ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", "secure_delete=OFF")
    for setting in (*settings, f"wal_autocheckpoint={_LOG_PAGES}", f"cache_size=-{cache_kib}"):
        connection.execute(f"PRAGMA {setting}")


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
