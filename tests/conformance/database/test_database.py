"""What every database must hold to, before anything is built on it."""

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


def a_ban(transaction: Transaction, since: datetime | None = None) -> None:
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
class BansToMake:
    """A tab that bans something as the last act of a transaction."""

    rank: ClassVar[int] = 1

    count: int = 0

    def merge(self, part: BansToMake) -> None:
        self.count += part.count

    def write(self, transaction: Transaction) -> None:
        for _ in range(self.count):
            a_ban(transaction)


def bans(transaction: Transaction) -> int:
    return len(transaction.session.execute(select(BANS.c.id)).all())


def test_times_come_back_aware_and_in_utc(database: Database) -> None:
    noon_in_tokyo = datetime(2026, 5, 1, 12, tzinfo=timezone(timedelta(hours=9)))
    database.write(lambda transaction: a_ban(transaction, noon_in_tokyo))
    found = database.read(lambda transaction: transaction.session.execute(select(BANS.c.since)).scalar_one())
    assert found == noon_in_tokyo
    assert found.tzinfo is UTC


def test_a_failed_transaction_leaves_nothing_and_forgets_what_waited_for_its_commit(database: Database) -> None:
    told: list[str] = []

    def fail(transaction: Transaction) -> None:
        a_ban(transaction)
        transaction.after_commit(lambda: told.append("committed"))
        raise LookupError("in the middle")

    with pytest.raises(LookupError):
        database.write(fail)
    assert database.read(bans) == 0
    assert told == []


def test_what_cannot_be_undone_keeps_nothing_else_from_it(database: Database) -> None:
    undone: list[str] = []

    def fail(transaction: Transaction) -> None:
        transaction.on_rollback(lambda: undone.append("first"))
        transaction.on_rollback(lambda: undone.remove("never done"))
        raise LookupError

    with pytest.raises(ValueError, match="not in list"):
        database.write(fail)
    assert undone == ["first"]


def test_what_waits_for_the_end_runs_inside_the_transaction_and_what_waits_for_the_commit_after_it(
    database: Database,
) -> None:
    counts: list[int] = []

    def operation(transaction: Transaction) -> None:
        transaction.deferred(BansToMake, BansToMake).count += 1
        transaction.after_commit(lambda: counts.append(database.read(bans)))
        counts.append(bans(transaction))

    database.write(operation)
    assert counts == [0, 1]


def test_writers_in_several_threads_wait_for_one_another(database: Database) -> None:
    def read_then_write(transaction: Transaction) -> None:
        bans(transaction)
        a_ban(transaction)

    threads = [threading.Thread(target=database.write, args=(read_then_write,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert database.read(bans) == 8


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_without_a_clock_of_its_own_a_server_goes_by_that_of_postgresql(database_url: str) -> None:
    ahead = timedelta(days=400)
    with closing(Database(database_url)) as set_up:
        set_up.write(lambda transaction: _set_the_clock_ahead(transaction, ahead))
    with closing(Database(database_url)) as database:
        for time in (
            database.write(lambda transaction: transaction.now),
            database.read(lambda transaction: transaction.now),
        ):
            assert time.tzinfo is UTC
            assert abs(time - machine.now() - ahead) < timedelta(minutes=5)


def _set_the_clock_ahead(transaction: Transaction, ahead: timedelta) -> None:
    """Put a clock that runs ahead before the one of this database's own."""
    body = f"SELECT pg_catalog.clock_timestamp() + interval '{ahead.days} days'"
    transaction.session.execute(
        text(f"CREATE FUNCTION public.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS $${body}$$")
    )
    name = transaction.session.execute(text("SELECT current_database()")).scalar_one()
    transaction.session.execute(text(f"ALTER DATABASE {name} SET search_path = public, pg_catalog"))


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_connections_that_were_lost_while_nobody_used_them_are_replaced(database_url: str) -> None:
    mine = "datname = current_database() AND pid <> pg_backend_pid()"
    others = f"SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE {mine}"
    with closing(Database(database_url)) as database, closing(Database(database_url)) as restart:
        metadata.create_all(database.engine)
        database.write(a_ban)
        restart.write(lambda transaction: transaction.session.execute(text(others)).all())
        assert database.read(bans) == 1
        restart.write(lambda transaction: transaction.session.execute(text(others)).all())
        database.write(a_ban)
        assert database.read(bans) == 2


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_without_a_clock_of_its_own_a_server_on_sqlite_goes_by_its_machine(database_url: str) -> None:
    with closing(Database(database_url)) as database:
        before = machine.now()
        assert before <= database.write(lambda transaction: transaction.now) <= machine.now()


def test_a_read_sees_one_snapshot(database: Database) -> None:
    def look_twice(transaction: Transaction) -> tuple[int, int]:
        before = bans(transaction)
        database.submit_write(a_ban).result()
        return before, bans(transaction)

    assert database.read(look_twice) == (0, 0)
    assert database.read(bans) == 1


def test_the_log_is_copied_later_where_that_has_failed(tmp_path: Path) -> None:
    file = tmp_path / "pilotage.db"
    file.write_bytes(b"no database " * 1000)
    reading, writing = open_engines(f"sqlite:///{file}")
    looks: queue.Queue[bool] = queue.Queue()
    event.listen(reading, "do_connect", lambda *_: looks.put(True))
    checkpoints = Checkpointer(reading)
    for _ in range(2):
        checkpoints.notify()
        assert looks.get(timeout=30)
    checkpoints.close()
    reading.dispose()
    writing.dispose()


def test_the_log_can_be_copied_into_the_database_while_others_have_it_open(tmp_path: Path) -> None:
    reading, writing = open_engines(f"sqlite:///{tmp_path / 'pilotage.db'}")
    with writing.begin() as connection:
        connection.execute(text("CREATE TABLE kept (number INTEGER)"))
    checkpoint(reading)
    # without its log, a copy of the file has what was copied
    copied = sqlite3.connect(shutil.copy(tmp_path / "pilotage.db", tmp_path / "copy.db"))
    assert copied.execute("SELECT name FROM sqlite_master").fetchall() == [("kept",)]
    copied.close()
    reading.dispose()
    writing.dispose()
