"""How a database would answer the questions of a block: which indexes serve."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import event

from pilotage_server.storage.engine import Database
from pilotage_server.storage.unit import Unit


def plan_of(database: Database, ask: Callable[[Unit], object]) -> str:
    """Return the plan of the first statement that `ask` brings to the database."""
    asked: list[tuple[str, Any]] = []

    def note(*arguments: Any) -> None:
        asked.append((arguments[2], arguments[3]))

    def question(unit: Unit) -> None:
        connection = unit.session.connection()
        if not database.is_sqlite:
            connection.exec_driver_sql("SET LOCAL enable_seqscan = off")  # tables in tests are too small for an index
        event.listen(connection, "before_cursor_execute", note)
        ask(unit)
        event.remove(connection, "before_cursor_execute", note)
        statement, parameters = asked[0]
        explain = "EXPLAIN QUERY PLAN" if database.is_sqlite else "EXPLAIN"
        plans.append(" ".join(str(row) for row in connection.exec_driver_sql(f"{explain} {statement}", parameters)))

    plans: list[str] = []
    database.write(question)
    return plans[0]
