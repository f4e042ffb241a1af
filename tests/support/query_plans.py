"""How a database would answer a question: which indexes serve."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pilotage_server.storage.database.engine import Database
from pilotage_server.storage.database.transaction import Transaction
from support.statements import listen


def plan_of(database: Database, ask: Callable[[Transaction], object]) -> str:
    """Return the plan of the first statement that `ask` brings to the database."""
    plans: list[str] = []

    def question(transaction: Transaction) -> None:
        connection = transaction.session.connection()
        if not database.is_sqlite:
            connection.exec_driver_sql("SET LOCAL enable_seqscan = off")  # tables in tests are too small for an index
        asked: list[tuple[Any, Any]] = []
        stop = listen(connection.connection.dbapi_connection, lambda *statement: asked.append(statement))
        ask(transaction)
        stop()
        statement, values = asked[0]
        explain = "EXPLAIN QUERY PLAN" if database.is_sqlite else "EXPLAIN"
        plans.append(" ".join(str(row) for row in connection.exec_driver_sql(f"{explain} {statement}", values)))

    database.write(question)
    return plans[0]
