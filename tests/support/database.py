"""Fixtures for tests that must hold on every database: `database`, `clock`, and `database_url` for an empty one.

Which databases a test of `database` runs on
--------------------------------------------
- On SQLite and on PostgreSQL, where the dialects differ in what the test shows: locks, concurrency, transactions,
  migrations, JSON, bulk statements, query plans, or a choice of rows by SQL.
- A file marked `any_database` tests decisions above SQL. It runs once, on PostgreSQL, which is stricter.
- With `--sqlite` (`make test-fast`) all tests run on SQLite only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event
from typing import Any, TypeVar

import pytest
from alembic import command
from sqlalchemy import event, text

from pilotage.clock import Clock
from pilotage_server.storage.database.engine import Database, closing, migrations, record_schema
from pilotage_server.storage.database.tables import metadata
from pilotage_server.storage.database.transaction import Transaction
from support.postgresql import PostgresqlServer
from support.virtual_clock import VirtualClock

BACKENDS = ("sqlite", "postgresql")

Result = TypeVar("Result")

_LOCK_WAITS = text(
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
)


def has_lock_waiter(transaction: Transaction) -> bool:
    """Return whether a transaction waits for a lock of another one; PostgreSQL only."""
    return bool(transaction.session.execute(_LOCK_WAITS).scalar_one())


def run_against_row_locks(
    database: Database, lock: str, keys: Sequence[object], act: Callable[[Transaction], Result]
) -> Result:
    """Run `act` while another transaction holds a lock on the first of these rows, and return its result.

    The other transaction then locks the other rows. That fails if `act` has locked one of them before the first.
    `lock` is the statement that locks the row of a `:key` without waiting.
    """
    is_locked, go_on = Event(), Event()

    def lock_all(transaction: Transaction) -> None:
        for key in keys:
            transaction.session.execute(text(lock), {"key": key})
            is_locked.set()
            assert go_on.wait(timeout=30)

    locking = database.submit_write(lock_all)
    assert is_locked.wait(timeout=30)
    acting = database.submit_write(act)
    while not database.read(has_lock_waiter):
        assert not acting.done()
    go_on.set()
    locking.result(timeout=30)
    return acting.result(timeout=30)


@pytest.fixture
def clock() -> VirtualClock:
    """Return a clock that only the test advances."""
    return VirtualClock()


@pytest.fixture(params=BACKENDS)
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Return the URL of an empty database, once on SQLite and once on PostgreSQL."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'pilotage.db'}"
        return
    server: PostgresqlServer = request.getfixturevalue("postgresql_server")
    url = server.new_database()
    yield url.render_as_string(hide_password=False)
    server.drop(url)


@contextmanager
def quick_sqlite(file: Path, clock: Clock) -> Iterator[Database]:
    """Open a new SQLite database with all tables, without rows, that does not wait for the disk."""
    file.write_bytes(_file_with_tables())
    with closing(without_fsync(Database(f"sqlite:///{file}", clock))) as opened:
        yield opened


def without_fsync(database: Database) -> Database:
    """Switch off fsync of an SQLite database: only a loss of power would damage it."""
    for engine in (database.engine, database.write_engine):
        event.listen(engine, "connect", _without_fsync)
    return database


@cache
def _file_with_tables() -> bytes:
    """Return the content of a database file with all tables; a copy takes a fifth of the time of new tables."""
    with TemporaryDirectory() as folder:
        file = Path(folder, "template.db")
        with closing(Database(f"sqlite:///{file}")) as template:
            metadata.create_all(template.engine)
        return file.read_bytes()


def _without_fsync(connection: Any, _record: Any) -> None:
    connection.execute("PRAGMA synchronous=OFF")


@pytest.fixture
def sqlite_database(tmp_path: Path, clock: VirtualClock) -> Iterator[Database]:
    """Return an open SQLite database with all tables, for tests that need no other database."""
    with quick_sqlite(tmp_path / "pilotage.db", clock) as opened:
        yield opened


@pytest.fixture
def postgresql_database(postgresql_server: PostgresqlServer, clock: VirtualClock) -> Iterator[Database]:
    """Return an open PostgreSQL database with all tables, without rows."""
    url = postgresql_server.emptied_database(metadata)
    with closing(Database(url.render_as_string(hide_password=False), clock)) as opened:
        yield opened


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Choose the databases of a test of `database`."""
    if "database" in metafunc.fixturenames:
        metafunc.parametrize("database", _backends(metafunc), indirect=True)


def _backends(metafunc: pytest.Metafunc) -> Sequence[str]:
    if metafunc.config.getoption("sqlite"):
        return ("sqlite",)
    if metafunc.definition.get_closest_marker("any_database"):
        return ("postgresql",)
    return BACKENDS


@pytest.fixture
def database(request: pytest.FixtureRequest) -> Database:
    """Return an open database with all tables, without rows, once for each kind that the test runs on."""
    opened: Database = request.getfixturevalue(f"{request.param}_database")
    return opened


def create_first_schema(database: Database) -> None:
    """Create the schema 0001 in an empty database, as the release that had it."""
    config = migrations()

    def create(transaction: Transaction) -> None:
        config.attributes["connection"] = transaction.session.connection()
        command.upgrade(config, "0001")
        record_schema(transaction.session)

    database.write(create)
