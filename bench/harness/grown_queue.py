"""A queue of any length from a short one, by copying its rows in the database while no server runs.

The copies have the shape of the original: each task queue grows alike. Whatever columns the tables have are copied
as they are, ids apart.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

_SHIFTED: Mapping[str, Mapping[str, str]] = {
    "jobs": {"id": "jobs"},
    "job_events": {"id": "job_events", "job_id": "jobs"},
}
"""By table: which columns hold ids, and of which table."""


def grow(data: Path, times: int) -> None:
    """Make the queue in a stopped server's folder so many times as long."""
    if times == 1:
        return
    with closing(sqlite3.connect(data / "pilotage.db", isolation_level=None)) as database:
        for setting in ("journal_mode = OFF", "synchronous = OFF", "cache_size = -1000000", "temp_store = MEMORY"):
            database.execute(f"PRAGMA {setting}")
        highest = {table: _highest_id(database, table) for table in _SHIFTED}
        for table in _SHIFTED:
            _copy_rows(database, table, highest, times)
        database.execute("PRAGMA journal_mode = WAL")


def _highest_id(database: sqlite3.Connection, table: str) -> int:
    (highest,) = database.execute(f"SELECT coalesce(max(id), 0) FROM {table}").fetchone()
    return int(highest)


def _copy_rows(database: sqlite3.Connection, table: str, highest: Mapping[str, int], times: int) -> None:
    """Insert the copies, with the indexes taken off meanwhile: made at the end, each is one sort."""
    indexes = database.execute(
        "SELECT name, sql FROM sqlite_master WHERE type = 'index' AND tbl_name = ? AND sql IS NOT NULL", (table,)
    ).fetchall()
    for name, _ in indexes:
        database.execute(f"DROP INDEX {name}")
    shifted = _SHIFTED[table]
    columns = [f'"{row[1]}"' for row in database.execute(f"PRAGMA table_info({table})")]
    values = [
        f"{column} + copy * {highest[shifted[plain]]}" if (plain := column.strip('"')) in shifted else column
        for column in columns
    ]
    database.execute(
        f"WITH RECURSIVE copies (copy) AS (SELECT 1 UNION ALL SELECT copy + 1 FROM copies WHERE copy < {times - 1})"
        f" INSERT INTO {table} ({', '.join(columns)}) SELECT {', '.join(values)}"
        f" FROM copies CROSS JOIN {table} AS original WHERE original.id <= {highest[table]}"
    )
    for _, sql in indexes:
        database.execute(sql)
