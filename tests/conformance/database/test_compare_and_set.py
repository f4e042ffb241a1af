"""Many rows of a table are changed at once, each to values of its own, on every database."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import select

from pilotage_server.storage.database import sql
from pilotage_server.storage.database.engine import Database
from pilotage_server.storage.database.tables import metadata
from pilotage_server.storage.database.transaction import Transaction
from pilotage_server.storage.events import EVENTS
from pilotage_server.storage.jobs import JOBS
from support.virtual_clock import START

USAGE = metadata.tables["usage"]
OWNERS = ["ann", "bob", "o'\"hara, {x}\\"]


def test_each_row_changes_to_its_own_values(database: Database) -> None:
    columns = {"vo": ["lhcb"] * 3, "group": ["users"] * 3, "owner": OWNERS}
    later = [START + timedelta(seconds=number) for number in range(3)]

    def operation(transaction: Transaction) -> None:
        sql.insert_rows(transaction.session, USAGE, columns | {"core_s": [0.0, 1.0, 2.0], "updated": [START] * 3})
        where = {"owner": OWNERS, "vo": ["lhcb"] * 3}
        sql.update_rows(transaction.session, USAGE, where, {"core_s": [5.0] * 3, "updated": later})

    database.write(operation)
    query = select(USAGE.c.owner, USAGE.c.core_s, USAGE.c.updated).order_by(USAGE.c.updated)
    found = database.read(lambda transaction: [tuple(row) for row in transaction.session.execute(query)])
    assert found == [(owner, 5.0, time) for owner, time in zip(OWNERS, later, strict=True)]


@pytest.mark.parametrize("count", [1, 7, 8, 75, 200])
def test_rows_in_any_number_change_where_they_have_what_is_told(database: Database, count: int) -> None:
    texts = {name: ["as it was"] * count for name in ("from_state", "to_state", "cause", "reason", "actor")}
    job_ids = list(range(count))
    columns: dict[str, list[Any]] = {**texts, "job_id": job_ids, "time": [START] * count, "attempt": [0] * count}
    ids = database.write(lambda transaction: sql.insert_numbered_rows(transaction.session, EVENTS, columns))
    # A column may be told as it was and as it is to be: two columns of what goes in.
    to: sql.Columns = {"job_id": [2 * job_id for job_id in job_ids], "attempt": [4] * count}
    database.write(lambda transaction: sql.update_rows(transaction.session, EVENTS, {"id": ids, "job_id": job_ids}, to))
    query = select(EVENTS.c.job_id, EVENTS.c.attempt).order_by(EVENTS.c.id)
    stored = database.read(lambda transaction: [tuple(row) for row in transaction.session.execute(query)])
    assert stored == [(2 * job_id, 4) for job_id in job_ids]


def test_a_row_that_is_not_as_it_was_seen_stays_as_it_is(database: Database) -> None:
    texts = {name: ["as it was"] * 3 for name in ("from_state", "to_state", "cause", "reason", "actor")}
    columns: dict[str, list[Any]] = {**texts, "job_id": [1, 2, 3], "time": [START] * 3, "attempt": [0] * 3}
    ids = database.write(lambda transaction: sql.insert_numbered_rows(transaction.session, EVENTS, columns))
    where = {"id": ids, "job_id": [1, 9, 3]}
    to: sql.Columns = {"reason": ["first", "second", "third"], "attempt": [4, 4, 4]}
    found = database.write(lambda transaction: sql.update_rows_if(transaction.session, EVENTS, where, to))
    assert found == {ids[0], ids[2]}
    query = select(EVENTS.c.reason, EVENTS.c.attempt).order_by(EVENTS.c.id)
    stored = database.read(lambda transaction: [tuple(row) for row in transaction.session.execute(query)])
    assert stored == [("first", 4), ("as it was", 0), ("third", 4)]


def test_where_there_are_no_rows_nothing_is_done(database: Database) -> None:
    def operation(transaction: Transaction) -> set[Any]:
        sql.update_rows(transaction.session, JOBS, {"id": []}, {"slot": []})
        return sql.update_rows_if(transaction.session, JOBS, {"id": []}, {"slot": []})

    assert database.write(operation) == set()
