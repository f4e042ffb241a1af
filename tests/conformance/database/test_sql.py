"""Statements that insert, update and select many rows, on every database."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Table, delete, insert, select

from pilotage_server.storage.attempts import ATTEMPTS
from pilotage_server.storage.database import sql
from pilotage_server.storage.database.conditions import one_of
from pilotage_server.storage.database.engine import Database
from pilotage_server.storage.database.tables import metadata
from pilotage_server.storage.database.transaction import Transaction
from pilotage_server.storage.events import EVENTS
from pilotage_server.storage.jobs import JOBS
from support.virtual_clock import START

USAGE = metadata.tables["usage"]
OWNERS = ["ann", "bob", "o'\"hara, {x}\\"]


def test_each_row_is_updated_to_its_own_values(database: Database) -> None:
    columns = {"vo": ["lhcb"] * 3, "group": ["users"] * 3, "owner": OWNERS}
    later = [START + timedelta(seconds=number) for number in range(3)]

    def operation(transaction: Transaction) -> None:
        sql.insert_rows(transaction.session, USAGE, columns | {"core_s": [0.0, 1.0, 2.0], "updated": [START] * 3})
        where = {"owner": OWNERS, "vo": ["lhcb"] * 3}
        sql.update_rows(transaction.session, USAGE, where, {"core_s": [5.0] * 3, "updated": later})

    database.write(operation)
    query = select(USAGE.c.owner, USAGE.c.core_s, USAGE.c.updated).order_by(USAGE.c.updated)
    rows = database.read(lambda transaction: [tuple(row) for row in transaction.session.execute(query)])
    assert rows == [(owner, 5.0, time) for owner, time in zip(OWNERS, later, strict=True)]


@pytest.mark.parametrize("count", [1, 7, 8, 75, 200])
def test_any_number_of_rows_is_updated_where_values_match(database: Database, count: int) -> None:
    texts = {name: ["as it was"] * count for name in ("from_state", "to_state", "cause", "reason", "actor")}
    job_ids = list(range(count))
    columns: dict[str, list[Any]] = {**texts, "job_id": job_ids, "time": [START] * count, "attempt": [0] * count}
    ids = database.write(lambda transaction: sql.insert_numbered_rows(transaction.session, EVENTS, columns))
    # job_id is both compared and set, so it is bound twice.
    to: sql.Columns = {"job_id": [2 * job_id for job_id in job_ids], "attempt": [4] * count}
    database.write(lambda transaction: sql.update_rows(transaction.session, EVENTS, {"id": ids, "job_id": job_ids}, to))
    query = select(EVENTS.c.job_id, EVENTS.c.attempt).order_by(EVENTS.c.id)
    stored = database.read(lambda transaction: [tuple(row) for row in transaction.session.execute(query)])
    assert stored == [(2 * job_id, 4) for job_id in job_ids]


def test_compare_and_set_skips_row_with_other_values(database: Database) -> None:
    texts = {name: ["as it was"] * 3 for name in ("from_state", "to_state", "cause", "reason", "actor")}
    columns: dict[str, list[Any]] = {**texts, "job_id": [1, 2, 3], "time": [START] * 3, "attempt": [0] * 3}
    ids = database.write(lambda transaction: sql.insert_numbered_rows(transaction.session, EVENTS, columns))
    where = {"id": ids, "job_id": [1, 9, 3]}
    to: sql.Columns = {"reason": ["first", "second", "third"], "attempt": [4, 4, 4]}
    updated = database.write(lambda transaction: sql.update_rows_if(transaction.session, EVENTS, where, to))
    assert updated == {ids[0], ids[2]}
    query = select(EVENTS.c.reason, EVENTS.c.attempt).order_by(EVENTS.c.id)
    stored = database.read(lambda transaction: [tuple(row) for row in transaction.session.execute(query)])
    assert stored == [("first", 4), ("as it was", 0), ("third", 4)]


def test_update_of_no_rows_does_nothing(database: Database) -> None:
    def operation(transaction: Transaction) -> set[Any]:
        sql.update_rows(transaction.session, JOBS, {"id": []}, {"slot": []})
        return sql.update_rows_if(transaction.session, JOBS, {"id": []}, {"slot": []})

    assert database.write(operation) == set()


texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=8)
times = st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1)).map(lambda time: time.replace(tzinfo=UTC))  # noqa: DTZ001
attempts = st.fixed_dictionaries(
    {
        "pilot_stamp": texts,
        "cpus": st.integers(0, 2**31 - 1),
        "matched": times,
        "ended": st.none() | times,
        "exit_code": st.none() | st.integers(-(2**31), 2**31 - 1),
        "peak_memory_mib": st.integers(-(2**63), 2**63 - 1),
        "cpu_s": st.floats(allow_nan=False, allow_infinity=False),
        "reported": st.booleans(),
    }
)
DEFAULTS: dict[str, Any] = dict.fromkeys(("site", "ce", "queue", "node", "slot", "outcome", "reason"), "")
DEFAULTS |= {"wall_s": 0.1, "suspended_s": 0.0}


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(attempts, min_size=1, max_size=5))
def test_inserted_rows_are_read_back_unchanged(database: Database, rows: list[dict[str, Any]]) -> None:
    given = [DEFAULTS | row | {"job_id": nth, "attempt": 1} for nth, row in enumerate(rows)]
    columns = {name: [row[name] for row in given] for name in given[0]}

    def add_and_read(transaction: Transaction) -> list[dict[str, Any]]:
        transaction.session.execute(delete(ATTEMPTS))
        sql.insert_rows(transaction.session, ATTEMPTS, columns)
        read = transaction.session.execute(select(*(ATTEMPTS.c[name] for name in columns)).order_by(ATTEMPTS.c.job_id))
        return [dict(row) for row in read.mappings()]

    assert database.write(add_and_read) == given


def test_inserted_rows_get_ids_in_their_order(database: Database) -> None:
    reasons = [str(nth) for nth in range(50)]
    columns: dict[str, list[Any]] = {"job_id": [7] * 50, "time": [START] * 50, "attempt": [0] * 50, "reason": reasons}
    columns |= {name: ["x"] * 50 for name in ("from_state", "to_state", "cause", "actor")}
    ids = database.write(lambda transaction: sql.insert_numbered_rows(transaction.session, EVENTS, columns))
    query = select(EVENTS.c.id, EVENTS.c.reason).order_by(EVENTS.c.id)
    read = database.read(lambda transaction: transaction.session.execute(query).all())
    assert [tuple(row) for row in read] == list(zip(ids, reasons, strict=True))


BANS: Table = metadata.tables["bans"]
INSERT_BAN = 'INSERT INTO bans (site, ce, queue, reason, "by", since) VALUES (?, ?, ?, ?, ?, ?)'
SELECT_BANS = "SELECT id, site FROM bans WHERE site = ANY(?) ORDER BY id FOR UPDATE SKIP LOCKED"
NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)

utc_times = st.datetimes(min_value=datetime(1970, 1, 1), max_value=datetime(2999, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001 - hypothesis sets the zone


def ban_row(transaction: Transaction, site: str, since: datetime = NOON) -> tuple[Any, ...]:
    return (site, "", "", "", "op", sql.column_time(transaction.session, since))


def ban_all(database: Database, sites: Sequence[str]) -> int:
    return database.write(
        lambda transaction: sql.execute_many(
            transaction.session, INSERT_BAN, [ban_row(transaction, site) for site in sites]
        )
    )


def test_statement_for_many_rows_returns_their_number(database: Database) -> None:
    assert ban_all(database, ["A", "B", "C"]) == 3
    assert database.read(lambda transaction: transaction.session.execute(select(BANS.c.site)).scalars().all()) == [
        "A",
        "B",
        "C",
    ]


def test_statement_for_no_rows_is_not_executed(database: Database) -> None:
    assert ban_all(database, []) == 0


def test_list_parameter_matches_any_of_its_values(database: Database) -> None:
    ban_all(database, ["A", "it's", "C"])
    found = database.write(lambda transaction: sql.rows(transaction.session, SELECT_BANS, ["it's", "C", "nobody"]))
    assert [site for _, site in found] == ["it's", "C"]
    assert database.write(lambda transaction: sql.rows(transaction.session, SELECT_BANS, [])) == []


SITES = ["A", "it's", 'say "hi"', "é, %", "5"]


@pytest.mark.parametrize(
    ("column", "wanted", "found"),
    [
        ("site", ["it's", 'say "hi"', "é, %", "nobody"], ["it's", 'say "hi"', "é, %"]),
        ("site", ["5"], ["5"]),
        ("site", [], []),
        ("id", [2, 4, 2**40], ["it's", "é, %"]),
    ],
)
def test_condition_finds_rows_with_one_of_the_values(
    database: Database, column: str, wanted: list[Any], found: list[str]
) -> None:
    ban_all(database, SITES)
    query = select(BANS.c.site).where(one_of(BANS.c[column], wanted)).order_by(BANS.c.id)
    assert database.read(lambda transaction: list(transaction.session.execute(query).scalars())) == found


def test_statement_is_the_same_for_any_number_of_values(database: Database) -> None:
    queries = [select(BANS.c.site).where(one_of(BANS.c.id, range(count))) for count in (0, 1, 50)]
    assert len({str(query.compile(database.engine)) for query in queries}) == 1


def test_statement_returns_number_of_changed_rows(database: Database) -> None:
    ban_all(database, ["A", "B", "C"])
    change = "UPDATE bans SET reason = ? WHERE site = ANY(?)"
    assert (
        database.write(lambda transaction: sql.execute(transaction.session, change, "100 % sure?", ["A", "C", "D"]))
        == 2
    )
    reasons = database.read(
        lambda transaction: transaction.session.execute(select(BANS.c.reason).order_by(BANS.c.id)).scalars().all()
    )
    assert reasons == ["100 % sure?", "", "100 % sure?"]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(time=utc_times)
def test_raw_statements_store_times_as_sqlalchemy_does(database: Database, time: datetime) -> None:
    def both_ways(transaction: Transaction) -> tuple[datetime, datetime, int]:
        sql.execute(
            transaction.session, INSERT_BAN, *ban_row(transaction, "A", time.astimezone(timezone(timedelta(hours=9))))
        )
        transaction.session.execute(insert(BANS).values(site="B", ce="", queue="", reason="", by="op", since=time))
        here = transaction.session.execute(select(BANS.c.since).where(BANS.c.site == "A")).scalar_one()
        ((there,),) = sql.rows(transaction.session, "SELECT since FROM bans WHERE site = ?", "B")
        same = sql.rows(transaction.session, "SELECT count(DISTINCT since) FROM bans")[0][0]
        transaction.session.execute(BANS.delete())
        return here, sql.utc_time(there), same

    assert database.write(both_ways) == (time, time, 1)
