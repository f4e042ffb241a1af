"""What a database is told: the statements of a block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import event

from pilotage_server.storage.engine import Database


@contextmanager
def statements(database: Database) -> Iterator[list[str]]:
    """Collect the statements that are executed in the block."""
    seen: list[str] = []

    def note(*arguments: object) -> None:
        seen.append(str(arguments[2]))

    engines = {database.engine, database.write_engine}
    for engine in engines:
        event.listen(engine, "before_cursor_execute", note)
    yield seen
    for engine in engines:
        event.remove(engine, "before_cursor_execute", note)
