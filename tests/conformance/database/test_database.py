"""Transactions, snapshots, clocks and connections of every database."""

from __future__ import annotations

import queue
import shutil
import sqlite3
import threading
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import ClassVar

import pytest
from sqlalchemy import event, insert, select, text

from pilotage import clock as machine
from pilotage_server.storage.database.connections import Checkpointer, checkpoint, open_engines
from pilotage_server.storage.database.engine import Database, closing
from pilotage_server.storage.database.tables import metadata
from pilotage_server.storage.database.transaction import Transaction

BANS = metadata.tables["bans"]


def insert_ban(transaction: Transaction, since: datetime | None = None) -> None:
    row = {
        "site": "A",
        "ce": "",
        "queue": "",
        "reason": "",
        "by": "op",
        "since": since or transaction.now,
        "until": None,
    }
    transaction.session.execute(insert(BANS).values(**row))


@dataclass
class DeferredBans:
    """A deferred write that inserts bans at the end of a transaction."""

    rank: ClassVar[int] = 1

    count: int = 0

    def merge(self, other: DeferredBans) -> None:
        self.count += other.count

    def write(self, transaction: Transaction) -> None:
        for _ in range(self.count):
            insert_ban(transaction)


def count_bans(transaction: Transaction) -> int:
    return len(transaction.session.execute(select(BANS.c.id)).all())


def test_times_are_read_back_aware_and_in_utc(database: Database) -> None:
    noon_in_tokyo = datetime(2026, 5, 1, 12, tzinfo=timezone(timedelta(hours=9)))
    database.write(lambda transaction: insert_ban(transaction, noon_in_tokyo))
    found = database.read(lambda transaction: transaction.session.execute(select(BANS.c.since)).scalar_one())
    assert found == noon_in_tokyo
    assert found.tzinfo is UTC


def test_failed_transaction_writes_nothing_and_drops_commit_hooks(database: Database) -> None:
    called: list[str] = []

    def fail(transaction: Transaction) -> None:
        insert_ban(transaction)
        transaction.after_commit(lambda: called.append("committed"))
        raise LookupError("in the middle")

    with pytest.raises(LookupError):
        database.write(fail)
    assert database.read(count_bans) == 0
    assert called == []


def test_failing_rollback_hook_does_not_stop_other_hooks(database: Database) -> None:
    undone: list[str] = []

    def fail(transaction: Transaction) -> None:
        transaction.on_rollback(lambda: undone.append("first"))
        transaction.on_rollback(lambda: undone.remove("never done"))
        raise LookupError

    with pytest.raises(ValueError, match="not in list"):
        database.write(fail)
    assert undone == ["first"]


def test_deferred_writes_run_before_commit_and_hooks_after_it(
    database: Database,
) -> None:
    counts: list[int] = []

    def operation(transaction: Transaction) -> None:
        transaction.deferred(DeferredBans, DeferredBans).count += 1
        transaction.after_commit(lambda: counts.append(database.read(count_bans)))
        counts.append(count_bans(transaction))

    database.write(operation)
    assert counts == [0, 1]


def test_writers_in_several_threads_are_serialized(database: Database) -> None:
    def read_then_write(transaction: Transaction) -> None:
        count_bans(transaction)
        insert_ban(transaction)

    threads = [threading.Thread(target=database.write, args=(read_then_write,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert database.read(count_bans) == 8


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_postgresql_clock_is_the_default(database_url: str) -> None:
    ahead = timedelta(days=400)
    with closing(Database(database_url)) as set_up:
        set_up.write(lambda transaction: _set_clock_ahead(transaction, ahead))
    with closing(Database(database_url)) as database:
        for time in (
            database.write(lambda transaction: transaction.now),
            database.read(lambda transaction: transaction.now),
        ):
            assert time.tzinfo is UTC
            assert abs(time - machine.now() - ahead) < timedelta(minutes=5)


def _set_clock_ahead(transaction: Transaction, ahead: timedelta) -> None:
    """Hide this database's clock behind one that runs ahead."""
    body = f"SELECT pg_catalog.clock_timestamp() + interval '{ahead.days} days'"
    transaction.session.execute(
        text(f"CREATE FUNCTION public.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS $${body}$$")
    )
    name = transaction.session.execute(text("SELECT current_database()")).scalar_one()
    transaction.session.execute(text(f"ALTER DATABASE {name} SET search_path = public, pg_catalog"))


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_lost_idle_connections_are_replaced(database_url: str) -> None:
    other_connections = "datname = current_database() AND pid <> pg_backend_pid()"
    terminate = f"SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE {other_connections}"
    with closing(Database(database_url)) as database, closing(Database(database_url)) as restart:
        metadata.create_all(database.engine)
        database.write(insert_ban)
        restart.write(lambda transaction: transaction.session.execute(text(terminate)).all())
        assert database.read(count_bans) == 1
        restart.write(lambda transaction: transaction.session.execute(text(terminate)).all())
        database.write(insert_ban)
        assert database.read(count_bans) == 2


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_machine_clock_is_the_default_on_sqlite(database_url: str) -> None:
    with closing(Database(database_url)) as database:
        before = machine.now()
        assert before <= database.write(lambda transaction: transaction.now) <= machine.now()


def test_read_sees_one_snapshot(database: Database) -> None:
    def count_twice(transaction: Transaction) -> tuple[int, int]:
        before = count_bans(transaction)
        database.submit_write(insert_ban).result()
        return before, count_bans(transaction)

    assert database.read(count_twice) == (0, 0)
    assert database.read(count_bans) == 1


def test_checkpointer_continues_after_failed_checkpoint(tmp_path: Path) -> None:
    file = tmp_path / "pilotage.db"
    file.write_bytes(b"no database " * 1000)
    reading, writing = open_engines(f"sqlite:///{file}")
    connection_attempts: queue.Queue[bool] = queue.Queue()
    event.listen(reading, "do_connect", lambda *_: connection_attempts.put(True))
    checkpoints = Checkpointer(reading)
    for _ in range(2):
        checkpoints.notify()
        assert connection_attempts.get(timeout=30)
    checkpoints.close()
    reading.dispose()
    writing.dispose()


def test_checkpoint_copies_log_while_database_is_open(tmp_path: Path) -> None:
    reading, writing = open_engines(f"sqlite:///{tmp_path / 'pilotage.db'}")
    with writing.begin() as connection:
        connection.execute(text("CREATE TABLE kept (number INTEGER)"))
    checkpoint(reading)
    # The copy of the file has no log, so it has only what the checkpoint wrote.
    copied = sqlite3.connect(shutil.copy(tmp_path / "pilotage.db", tmp_path / "copy.db"))
    assert copied.execute("SELECT name FROM sqlite_master").fetchall() == [("kept",)]
    copied.close()
    reading.dispose()
    writing.dispose()
