"""The fence: which servers may join a database, and when a server must stop writing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from threading import Event
from typing import Any

import pytest
from sqlalchemy import text

from pilotage.errors import StateConflictError, WorldError
from pilotage_server.core.incarnation import Installation
from pilotage_server.operations.installation import (
    Belongings,
    adopt_keys,
    begin_incarnation,
    change_keys,
    confirm_place,
    join,
)
from pilotage_server.storage.database.engine import Database, closing, upgrade
from pilotage_server.storage.database.fence import Fence, FencedError, close_fence, schema_name
from pilotage_server.storage.database.installation import load_installation
from pilotage_server.storage.database.transaction import Transaction
from pilotage_server.storage.identity.audit import AuditQuery, find_entries
from support.database import has_lock_waiter

FIRST = datetime.min.replace(tzinfo=UTC)
OWN = Belongings({"a": FIRST}, "store", None)


@pytest.fixture
def installed(database_url: str) -> Iterator[Database]:
    """Return a database with the schema of this build, which a server has joined."""
    with closing(Database(database_url)) as opened:
        upgrade(opened)
        joined = opened.write(lambda transaction: join(transaction, OWN))
        opened.fence = Fence(joined.schema, joined.incarnation)
        yield opened


def run(statement: str) -> Callable[[Transaction], Any]:
    return lambda transaction: transaction.session.execute(text(statement))


def installation(database: Database) -> Installation:
    return database.read(lambda transaction: load_installation(transaction.session))


def begin(database: Database) -> None:
    database.write(lambda transaction: begin_incarnation(transaction, OWN, timedelta(minutes=20)))


@pytest.mark.parametrize(
    ("own", "fault"),
    [
        (Belongings({"a": FIRST}, "other", None), "set 'files' to the store of the other servers"),
        (Belongings({"a": FIRST}, None, None), "its file store is a new one"),
        (Belongings({"b": FIRST}, "store", None), "'pilotage-server keys adopt'"),
    ],
)
def test_server_with_another_part_does_not_join(installed: Database, own: Belongings, fault: str) -> None:
    before = installation(installed)
    with pytest.raises(StateConflictError, match=fault):
        installed.write(lambda transaction: join(transaction, own))
    assert installation(installed) == before


def test_rotation_of_keys_needs_no_downtime(installed: Database) -> None:
    later = installed.read(lambda transaction: transaction.now) + timedelta(hours=1)
    installed.write(lambda transaction: change_keys(transaction, {"a": FIRST, "b": later}, frozenset()))
    installed.write(lambda transaction: join(transaction, OWN))
    assert installation(installed).keys == {"a": FIRST, "b": later}
    installed.write(lambda transaction: change_keys(transaction, {"b": FIRST}, frozenset({"a"})))
    assert installation(installed).keys == {"b": FIRST}
    with pytest.raises(StateConflictError, match="none of this server's signing keys"):
        installed.write(lambda transaction: join(transaction, OWN))
    installed.write(lambda transaction: adopt_keys(transaction, OWN.keys, "root"))
    installed.write(lambda transaction: join(transaction, OWN))


def test_changes_of_keys_are_in_the_audit_once(installed: Database) -> None:
    both = {"a": FIRST, "b": datetime(2026, 1, 1, tzinfo=UTC)}
    for _ in range(2):  # each server finds the new key
        installed.write(lambda transaction: change_keys(transaction, both, frozenset()))
    installed.write(lambda transaction: join(transaction, Belongings({**both, "c": FIRST}, "store", None)))
    installed.write(lambda transaction: adopt_keys(transaction, {"b": FIRST}, "root"))
    installed.write(lambda transaction: begin_incarnation(transaction, OWN, timedelta(minutes=20)))
    query = AuditQuery(FIRST, what="keys")
    found = installed.read(lambda transaction: find_entries(transaction.session, query, 0, 10))
    first, later = "the first start", "2026-01-01 00:00:00 UTC"
    assert [(each.who, each.roles, each.difference) for each in reversed(found)] == [
        ("server", (), f"+ b signs from {later}"),
        ("server", (), f"+ c signs from {first}"),
        (
            "root",
            (),
            f"- a signs from {first}\n- b signs from {later}\n- c signs from {first}\n+ b signs from {first}",
        ),
        ("server", (), f"- b signs from {first}\n+ a signs from {first}"),
    ]


def test_put_back_backup_is_refused_until_the_restore(installed: Database) -> None:
    installed.write(run("UPDATE installation SET place = 'backup of yesterday'"))
    with pytest.raises(StateConflictError, match="is a backup of yesterday"):
        installed.write(lambda transaction: join(transaction, OWN))
    with pytest.raises(FencedError, match="was backup of yesterday"):
        installed.write(confirm_place)
    begin(installed)
    installed.fence = None
    joined = installed.write(lambda transaction: join(transaction, OWN))
    assert joined.incarnation == 2
    installed.write(confirm_place)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("UPDATE installation SET schema_name = 'newer'", f"from {schema_name()} to newer"),
        ("ALTER TABLE installation RENAME TO elsewhere", "another release has changed the schema"),
        ("UPDATE installation SET incarnation = 2", "of incarnation 2, this server of 1"),
    ],
)
def test_running_server_stops_writing(installed: Database, database_url: str, change: str, why: str) -> None:
    with closing(Database(database_url)) as other:
        other.write(run(change))
    with pytest.raises(FencedError, match=why) as fenced:
        installed.write(run("DELETE FROM bans"))
    assert fenced.value.transient  # clients try another server
    with pytest.raises(FencedError):
        installed.submit_write(run("DELETE FROM bans")).result()


def test_write_at_the_moment_of_a_restore_has_no_effect_afterwards(installed: Database, database_url: str) -> None:
    """A transaction that has begun is awaited; one that begins later is refused."""
    begun, go_on = Event(), Event()

    def write(transaction: Transaction) -> None:
        begun.set()
        assert go_on.wait(30)
        run("DELETE FROM bans")(transaction)

    with closing(Database(database_url)) as other:
        writing = installed.submit_write(write)
        assert begun.wait(30)
        restoring = other.submit_write(lambda transaction: begin_incarnation(transaction, OWN, timedelta(minutes=20)))
        if not installed.is_sqlite:
            while not installed.read(has_lock_waiter):
                assert not restoring.done()
        assert not restoring.done()
        go_on.set()
        writing.result(30)
        assert restoring.result(30).incarnation.number == 2
    with pytest.raises(FencedError):
        installed.write(run("DELETE FROM bans"))


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_write_during_a_change_of_the_schema_is_refused_for_now(installed: Database, database_url: str) -> None:
    closed, go_on = Event(), Event()

    def change(transaction: Transaction) -> None:
        close_fence(transaction.session)
        closed.set()
        assert go_on.wait(30)

    with closing(Database(database_url)) as other:
        changing = other.submit_write(change)
        assert closed.wait(30)
        with pytest.raises(WorldError, match="the schema is being changed") as refused:
            installed.write(run("DELETE FROM bans"))
        assert refused.value.transient
        go_on.set()
        changing.result(30)
    installed.write(run("DELETE FROM bans"))


def test_start_of_another_server_disturbs_no_writes(installed: Database, database_url: str) -> None:
    """Only an upgrade that changes something closes the fence."""
    is_open = Event()

    def write(transaction: Transaction) -> None:
        with closing(Database(database_url)) as other:
            if not other.is_sqlite:  # SQLite's only writer is this transaction
                upgrade(other)
        is_open.set()

    installed.write(write)
    assert is_open.is_set()


def test_database_of_another_build_is_refused(installed: Database) -> None:
    installed.write(run("UPDATE installation SET schema_name = 'another'"))
    installed.fence = None
    with pytest.raises(WorldError, match="another build of this release has made the database: its schema is another"):
        upgrade(installed)
    installed.write(run("DROP TABLE installation"))
    with pytest.raises(WorldError, match="another build"):
        upgrade(installed)
