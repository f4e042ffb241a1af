"""How a database would answer a question: which indexes serve."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from pilotage_server.storage.engine import Database
from pilotage_server.storage.unit import Unit

Asked = list[tuple[Any, Any]]
"""Statements and their values."""


def plan_of(database: Database, ask: Callable[[Unit], object]) -> str:
    """Return the plan of the first statement that `ask` brings to the database."""
    plans: list[str] = []

    def question(unit: Unit) -> None:
        connection = unit.session.connection()
        if not database.is_sqlite:
            connection.exec_driver_sql("SET LOCAL enable_seqscan = off")  # tables in tests are too small for an index
        with _heard(connection.connection.dbapi_connection) as asked:
            ask(unit)
        statement, values = asked[0]
        explain = "EXPLAIN QUERY PLAN" if database.is_sqlite else "EXPLAIN"
        plans.append(" ".join(str(row) for row in connection.exec_driver_sql(f"{explain} {statement}", values)))

    database.write(question)
    return plans[0]


@contextmanager
def _heard(driver: Any) -> Iterator[Asked]:
    """Collect what the driver's connection is asked in the block, by whomever."""
    asked: Asked = []
    if not isinstance(driver, psycopg.Connection):
        driver.set_trace_callback(lambda statement: asked.append((statement, ())))
        yield asked
        driver.set_trace_callback(None)
        return

    class Listening(psycopg.Cursor[Any]):
        def execute(self, query: Any, params: Any = None, **options: Any) -> Any:
            asked.append((query, params))
            return super().execute(query, params, **options)

    before, driver.cursor_factory = driver.cursor_factory, Listening
    yield asked
    driver.cursor_factory = before
