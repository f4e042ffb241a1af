"""The statements that a database receives, and the indexes that its query plans use."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from sqlalchemy import Engine, event

from pilotage_server.storage.database.engine import Database
from pilotage_server.storage.database.transaction import Transaction

Hear = Callable[[Any, Any], None]
"""Takes a statement and its values."""

_OF_TRANSACTIONS = ("BEGIN", "COMMIT", "ROLLBACK", "SAVEPOINT", "RELEASE")


@contextmanager
def statements(database: Database) -> Iterator[list[str]]:
    """Collect the statements of the transactions that begin in the block."""
    seen: list[str] = []
    heard: dict[int, Callable[[], None]] = {}

    def note(statement: Any, _values: Any) -> None:
        if not str(statement).startswith(_OF_TRANSACTIONS):
            seen.append(str(statement).strip())

    def opens(driver: Any, *_: object) -> None:
        if id(driver) not in heard:
            heard[id(driver)] = listen(driver, note)

    engines = _without_lines(database)
    for engine in engines:
        event.listen(engine, "checkout", opens)
    yield seen
    for engine in engines:
        event.remove(engine, "checkout", opens)
    for stop in heard.values():
        stop()


def _without_lines(database: Database) -> set[Engine]:
    """Return the engines of the database, over which new lines must be opened now."""
    for lines in (database.read_connections, database.write_connections):
        lines.close_idle()
    return {database.engine, database.write_engine}


def listen(driver: Any, hear: Hear) -> Callable[[], None]:
    """Hear what the driver's connection is asked from now on, by whomever; returns what ends that."""
    if not isinstance(driver, psycopg.Connection):
        driver.set_trace_callback(lambda statement: hear(statement, ()))
        return lambda: driver.set_trace_callback(None)

    class Listening(psycopg.Cursor[Any]):
        def execute(self, query: Any, params: Any = None, **options: Any) -> Any:
            hear(query, params)
            return super().execute(query, params, **options)

        def executemany(self, query: Any, params_seq: Any, **options: Any) -> Any:
            hear(query, ())
            return super().executemany(query, params_seq, **options)

    before, driver.cursor_factory = driver.cursor_factory, Listening

    def stop() -> None:
        driver.cursor_factory = before

    return stop


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
