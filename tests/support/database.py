"""Fixtures for tests that must hold on every database: `database`, `clock`, and `database_url` for an empty one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text

from pilotage_server.storage.engine import Database, Unit, closing
from pilotage_server.storage.tables import metadata
from support.postgresql_process import PostgresqlServer
from support.virtual_clock import VirtualClock

BACKENDS = ("sqlite", "postgresql")


_WAITING = text("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'")


def somebody_waits(unit: Unit) -> bool:
    """Whether a transaction waits for another one on this database, which is a PostgreSQL's."""
    return bool(unit.session.execute(_WAITING).scalar_one())


@pytest.fixture
def clock() -> VirtualClock:
    """Return a clock that stands still."""
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


@pytest.fixture
def sqlite_database(tmp_path: Path, clock: VirtualClock) -> Iterator[Database]:
    """Return an open SQLite database with all tables, for tests that need no other."""
    with closing(Database(f"sqlite:///{tmp_path / 'pilotage.db'}", clock)) as opened:
        metadata.create_all(opened.engine)
        yield opened


@pytest.fixture
def postgresql_database(postgresql_server: PostgresqlServer, clock: VirtualClock) -> Iterator[Database]:
    """Return an open PostgreSQL database with all tables, none of them with rows."""
    url = postgresql_server.emptied_database(metadata)
    with closing(Database(url.render_as_string(hide_password=False), clock)) as opened:
        yield opened


@pytest.fixture(params=BACKENDS)
def database(request: pytest.FixtureRequest) -> Database:
    """Return an open database with all tables, none of them with rows: once SQLite and once PostgreSQL."""
    opened: Database = request.getfixturevalue(f"{request.param}_database")
    return opened
