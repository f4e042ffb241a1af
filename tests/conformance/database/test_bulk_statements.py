"""Statements for many rows mean the same on every database."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Table, insert, select

from pilotage_server.storage.database import sql
from pilotage_server.storage.database.engine import Database
from pilotage_server.storage.database.tables import metadata
from pilotage_server.storage.database.transaction import Transaction

BANS: Table = metadata.tables["bans"]
INSERT = 'INSERT INTO bans (site, ce, queue, reason, "by", since) VALUES (?, ?, ?, ?, ?, ?)'
SITES = "SELECT id, site FROM bans WHERE site = ANY(?) ORDER BY id FOR UPDATE SKIP LOCKED"
NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)

times = st.datetimes(min_value=datetime(1970, 1, 1), max_value=datetime(2999, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001 - hypothesis sets the zone


def a_row(transaction: Transaction, site: str, since: datetime = NOON) -> tuple[Any, ...]:
    return (site, "", "", "", "op", sql.column_time(transaction.session, since))


def ban_all(database: Database, sites: Sequence[str]) -> int:
    return database.write(
        lambda transaction: sql.execute_many(transaction.session, INSERT, [a_row(transaction, site) for site in sites])
    )


def test_many_rows_are_inserted_and_counted(database: Database) -> None:
    assert ban_all(database, ["A", "B", "C"]) == 3
    assert database.read(lambda transaction: transaction.session.execute(select(BANS.c.site)).scalars().all()) == [
        "A",
        "B",
        "C",
    ]


def test_no_rows_are_no_statement(database: Database) -> None:
    assert ban_all(database, []) == 0


def test_a_list_stands_for_any_of_its_values(database: Database) -> None:
    ban_all(database, ["A", "it's", "C"])
    found = database.write(lambda transaction: sql.rows(transaction.session, SITES, ["it's", "C", "nobody"]))
    assert [site for _, site in found] == ["it's", "C"]
    assert database.write(lambda transaction: sql.rows(transaction.session, SITES, [])) == []


def test_how_many_rows_a_statement_has_touched_is_told(database: Database) -> None:
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
@given(time=times)
def test_a_time_is_stored_as_all_other_code_stores_and_reads_it(database: Database, time: datetime) -> None:
    def both_ways(transaction: Transaction) -> tuple[datetime, datetime, int]:
        sql.execute(
            transaction.session, INSERT, *a_row(transaction, "A", time.astimezone(timezone(timedelta(hours=9))))
        )
        transaction.session.execute(insert(BANS).values(site="B", ce="", queue="", reason="", by="op", since=time))
        here = transaction.session.execute(select(BANS.c.since).where(BANS.c.site == "A")).scalar_one()
        ((there,),) = sql.rows(transaction.session, "SELECT since FROM bans WHERE site = ?", "B")
        same = sql.rows(transaction.session, "SELECT count(DISTINCT since) FROM bans")[0][0]
        transaction.session.execute(BANS.delete())
        return here, sql.utc_time(there), same

    assert database.write(both_ways) == (time, time, 1)
