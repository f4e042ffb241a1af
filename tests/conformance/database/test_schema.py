"""Migrations on every database, and errors of databases that cannot be opened or written."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import text

from pilotage.errors import WorldError
from pilotage_server.storage.database.engine import Database, SchemaStatus, closing, read_schema, upgrade
from pilotage_server.storage.database.tables import metadata
from pilotage_server.storage.database.transaction import Transaction
from pilotage_server.storage.submission.workflows import load_graph, newest_workflows
from support.database import create_first_schema
from support.virtual_clock import VirtualClock


@pytest.fixture
def empty(database_url: str, clock: VirtualClock) -> Iterator[Database]:
    with closing(Database(database_url, clock)) as opened:
        yield opened


def schema_statements(database: Database) -> dict[str, list[str]]:
    """Return the parts of the CREATE statements of a SQLite database's tables and indexes, by name."""
    query = text("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite_%'")
    rows = database.read(lambda transaction: transaction.session.execute(query).all())
    return {name: _normalized(sql) for name, sql in rows if name != "alembic_version"}


def _normalized(sql: str) -> list[str]:
    """Return the parts of a statement in one order: SQLite adds the columns of migrations after the constraints."""
    statement = re.sub(r"\s*([(),])\s*", r"\1", re.sub(r"\s+", " ", sql)).strip()
    return sorted(re.split(r",(?![^(]*\))", statement.removesuffix(")").replace("(", "(,", 1)))


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_migrations_create_schema_of_tables_on_postgresql(empty: Database) -> None:
    upgrade(empty)
    with empty.engine.connect() as connection:
        differences = compare_metadata(MigrationContext.configure(connection), metadata)
    assert differences == []


def test_migrations_create_exact_schema_of_tables_on_sqlite(tmp_path: Path, clock: VirtualClock) -> None:
    migrated = Database(f"sqlite:///{tmp_path / 'migrated.db'}", clock)
    created = Database(f"sqlite:///{tmp_path / 'created.db'}", clock)
    with closing(migrated), closing(created):
        upgrade(migrated)
        metadata.create_all(created.engine)
        assert schema_statements(migrated) == schema_statements(created)


def test_upgrade_keeps_database_of_this_release(empty: Database) -> None:
    upgrade(empty)
    empty.write(insert_ban)
    upgrade(empty)
    assert (
        empty.read(lambda transaction: transaction.session.execute(text("SELECT site FROM bans")).scalar_one()) == "A"
    )


def insert_ban(transaction: Transaction) -> None:
    row = {"site": "A", "ce": "", "queue": "", "reason": "", "by": "op", "since": transaction.now}
    transaction.session.execute(metadata.tables["bans"].insert().values(row))


def test_status_of_the_schema_names_the_pending_migrations(empty: Database) -> None:
    assert [each.number for each in schema_of(empty).pending][:2] == ["0001", "0002"]
    assert schema_of(empty).present is None
    upgrade(empty)
    status = schema_of(empty)
    assert (status.pending, status.fault(), status.present) == ((), "", status.wanted)


def schema_of(database: Database) -> SchemaStatus:
    return database.read(lambda transaction: read_schema(transaction.session))


def test_upgrade_of_the_first_schema_keeps_its_rows(empty: Database) -> None:
    create_first_schema(empty)
    assert [each.number for each in schema_of(empty).pending] == ["0002", "0003", "0004"]
    template = """
        INSERT INTO templates (owner, vo, "group", description_json, jobs) VALUES ('alice', 'sky', 'users', '{}', 0)
    """
    empty.write(lambda transaction: transaction.session.execute(text(template)))
    upgrade(empty)
    query = text("SELECT owner, traceparent FROM templates")
    (row,) = empty.read(lambda transaction: transaction.session.execute(query).all())
    assert tuple(row) == ("alice", "")
    assert schema_of(empty).fault() == ""


def test_workflows_of_earlier_releases_have_no_graph(empty: Database) -> None:
    create_first_schema(empty)
    workflow = """
        INSERT INTO workflows (id, last, vo, "group", owner, name, submitted)
        VALUES (7, 9, 'sky', 'users', 'alice', 'flow.dag', '2026-01-02 03:04:05')
    """
    empty.write(lambda transaction: transaction.session.execute(text(workflow)))
    upgrade(empty)
    found = empty.read(lambda transaction: newest_workflows(transaction.session, "alice", "sky", 0, 10))
    assert [(each.ids, each.name) for each in found] == [(range(7, 10), "flow.dag")]
    assert empty.read(lambda transaction: load_graph(transaction.session, 7)) is None


def test_concurrent_upgrades_succeed(empty: Database) -> None:
    failures: list[Exception] = []

    def start() -> None:
        try:
            upgrade(empty)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=start) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_database_of_later_release_is_refused(empty: Database) -> None:
    upgrade(empty)
    empty.write(
        lambda transaction: transaction.session.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    )
    with pytest.raises(WorldError, match="9999") as refused:
        upgrade(empty)
    assert not refused.value.transient


def test_missing_folder_is_reported(tmp_path: Path, clock: VirtualClock) -> None:
    database = Database(f"sqlite:///{tmp_path / 'absent' / 'pilotage.db'}", clock)
    with closing(database), pytest.raises(WorldError, match="unable to open database file"):
        upgrade(database)


def test_full_disk_is_reported_and_keeps_committed_rows(sqlite_database: Database) -> None:
    sqlite_database.write(insert_ban)
    fill = text("INSERT INTO bans SELECT NULL, hex(zeroblob(8000000)), '', '', '', '', '2026-01-01', NULL")

    def write_too_much(transaction: Transaction) -> None:
        transaction.session.execute(text("PRAGMA max_page_count = 100"))
        transaction.session.execute(fill)

    with pytest.raises(WorldError, match="the database is not available: database or disk is full") as failed:
        sqlite_database.write(write_too_much)
    assert failed.value.transient
    assert (
        sqlite_database.read(
            lambda transaction: transaction.session.execute(text("SELECT count(*) FROM bans")).scalar_one()
        )
        == 1
    )
