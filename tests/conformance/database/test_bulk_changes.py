"""Rows added many at a time are just those that were given, in their order, on every database."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import delete, select

from pilotage_server.storage.attempts import ATTEMPTS
from pilotage_server.storage.database import sql
from pilotage_server.storage.database.engine import Database
from pilotage_server.storage.database.transaction import Transaction
from pilotage_server.storage.events import EVENTS
from support.virtual_clock import START

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
SAME: dict[str, Any] = dict.fromkeys(("site", "ce", "queue", "node", "slot", "outcome", "reason"), "")
SAME |= {"wall_s": 0.1, "suspended_s": 0.0}


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(attempts, min_size=1, max_size=5))
def test_what_is_added_is_read_again(database: Database, rows: list[dict[str, Any]]) -> None:
    given = [SAME | row | {"job_id": nth, "attempt": 1} for nth, row in enumerate(rows)]
    columns = {name: [row[name] for row in given] for name in given[0]}

    def add_and_read(transaction: Transaction) -> list[dict[str, Any]]:
        transaction.session.execute(delete(ATTEMPTS))
        sql.insert_rows(transaction.session, ATTEMPTS, columns)
        read = transaction.session.execute(select(*(ATTEMPTS.c[name] for name in columns)).order_by(ATTEMPTS.c.job_id))
        return [dict(row) for row in read.mappings()]

    assert database.write(add_and_read) == given


def test_ids_are_given_in_the_order_of_the_rows(database: Database) -> None:
    reasons = [str(nth) for nth in range(50)]
    columns: dict[str, list[Any]] = {"job_id": [7] * 50, "time": [START] * 50, "attempt": [0] * 50, "reason": reasons}
    columns |= {name: ["x"] * 50 for name in ("from_state", "to_state", "cause", "actor")}
    ids = database.write(lambda transaction: sql.insert_numbered_rows(transaction.session, EVENTS, columns))
    query = select(EVENTS.c.id, EVENTS.c.reason).order_by(EVENTS.c.id)
    read = database.read(lambda transaction: transaction.session.execute(query).all())
    assert [tuple(row) for row in read] == list(zip(ids, reasons, strict=True))
