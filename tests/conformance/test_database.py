"""What every database must hold to, before anything is built on it."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta, timezone

import pytest
from sqlalchemy import insert, select

from pilotage_server.storage.engine import Database, Unit
from pilotage_server.storage.tables import metadata

BANS = metadata.tables["bans"]


def a_ban(unit: Unit, since: datetime | None = None) -> None:
    row = {"site": "A", "ce": "", "queue": "", "reason": "", "by": "op", "since": since or unit.now, "until": None}
    unit.session.execute(insert(BANS).values(**row))


def bans(unit: Unit) -> int:
    return len(unit.session.execute(select(BANS.c.id)).all())


def test_times_come_back_aware_and_in_utc(database: Database) -> None:
    noon_in_tokyo = datetime(2026, 5, 1, 12, tzinfo=timezone(timedelta(hours=9)))
    database.write(lambda unit: a_ban(unit, noon_in_tokyo))
    found = database.read(lambda unit: unit.session.execute(select(BANS.c.since)).scalar_one())
    assert found == noon_in_tokyo
    assert found.tzinfo is UTC


def test_a_failed_transaction_leaves_nothing_and_forgets_what_waited_for_its_commit(database: Database) -> None:
    told: list[str] = []

    def fail(unit: Unit) -> None:
        a_ban(unit)
        unit.after_commit(lambda: told.append("committed"))
        raise LookupError("in the middle")

    with pytest.raises(LookupError):
        database.write(fail)
    assert database.read(bans) == 0
    assert told == []


def test_what_waits_for_the_end_runs_inside_the_transaction_and_what_waits_for_the_commit_after_it(
    database: Database,
) -> None:
    counts: list[int] = []

    def operation(unit: Unit) -> None:
        unit.before_commit(lambda: a_ban(unit))
        unit.after_commit(lambda: counts.append(database.read(bans)))
        counts.append(bans(unit))

    database.write(operation)
    assert counts == [0, 1]


def test_writers_in_several_threads_wait_for_one_another(database: Database) -> None:
    def read_then_write(unit: Unit) -> None:
        bans(unit)
        a_ban(unit)

    threads = [threading.Thread(target=database.write, args=(read_then_write,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert database.read(bans) == 8
