"""The statements that a database receives, and the indexes that its query plans use."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from sqlalchemy import Engine, event

from pilotage_server.storage.database.engine import Database
from pilotage_server.storage.database.transaction import Transaction

StatementListener = Callable[[Any, Any], None]
"""Receives a statement and its values."""

_OF_TRANSACTIONS = ("BEGIN", "COMMIT", "ROLLBACK", "SAVEPOINT", "RELEASE")


@contextmanager
def statements(database: Database) -> Iterator[list[str]]:
    """Record the statements of the transactions that begin in the block."""
    recorded: list[str] = []
    stops: dict[int, Callable[[], None]] = {}

    def note(statement: Any, _values: Any) -> None:
        if not str(statement).startswith(_OF_TRANSACTIONS):
            recorded.append(str(statement).strip())

    def on_checkout(driver: Any, *_: object) -> None:
        if id(driver) not in stops:
            stops[id(driver)] = listen(driver, note)

    engines = _engines_without_idle_connections(database)
    for engine in engines:
        event.listen(engine, "checkout", on_checkout)
    yield recorded
    for engine in engines:
        event.remove(engine, "checkout", on_checkout)
    for stop in stops.values():
        stop()


def _engines_without_idle_connections(database: Database) -> set[Engine]:
    """Close idle connections, so that new ones are checked out; returns the engines of the database."""
    for connections in (database.read_connections, database.write_connections):
        connections.close_idle()
    return {database.engine, database.write_engine}


def listen(driver: Any, listener: StatementListener) -> Callable[[], None]:
    """Call the listener for every statement on a driver's connection; returns a function that ends it."""
    if not isinstance(driver, psycopg.Connection):
        driver.set_trace_callback(lambda statement: listener(statement, ()))
        return lambda: driver.set_trace_callback(None)

    class Listening(psycopg.Cursor[Any]):
        def execute(self, query: Any, params: Any = None, **options: Any) -> Any:
            listener(query, params)
            return super().execute(query, params, **options)

        def executemany(self, query: Any, params_seq: Any, **options: Any) -> Any:
            listener(query, ())
            return super().executemany(query, params_seq, **options)

    before, driver.cursor_factory = driver.cursor_factory, Listening

    def stop() -> None:
        driver.cursor_factory = before

    return stop


def plan_of(database: Database, query: Callable[[Transaction], object]) -> str:
    """Return the query plan of the first statement that `query` executes."""
    plans: list[str] = []

    def explain_first(transaction: Transaction) -> None:
        connection = transaction.session.connection()
        if not database.is_sqlite:
            connection.exec_driver_sql("SET LOCAL enable_seqscan = off")  # tables in tests are too small for an index
        executed: list[tuple[Any, Any]] = []
        stop = listen(connection.connection.dbapi_connection, lambda *statement: executed.append(statement))
        query(transaction)
        stop()
        statement, values = executed[0]
        explain = "EXPLAIN QUERY PLAN" if database.is_sqlite else "EXPLAIN"
        plans.append(" ".join(str(row) for row in connection.exec_driver_sql(f"{explain} {statement}", values)))

    database.write(explain_first)
    return plans[0]
