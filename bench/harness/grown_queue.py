"""Lengthens a queue by copying its rows in the database while no server runs.

Each task queue grows by the same factor. All columns are copied unchanged, except ids of jobs, clusters and events.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

_SHIFTED: Mapping[str, Mapping[str, str]] = {
    "jobs": {"id": "jobs", "cluster": "jobs"},
    "attempts": {"job_id": "jobs"},
    "job_events": {"id": "job_events", "job_id": "jobs"},
}
"""By table: the columns with ids, the first of them its key, and the table of these ids."""


def grow(data: Path, times: int) -> None:
    """Make the queue in a stopped server's folder `times` as long."""
    if times == 1:
        return
    with closing(sqlite3.connect(data / "pilotage.db", isolation_level=None)) as database:
        for setting in ("journal_mode = OFF", "synchronous = OFF", "cache_size = -1000000", "temp_store = MEMORY"):
            database.execute(f"PRAGMA {setting}")
        highest = {table: _highest_id(database, table) for table in ("jobs", "job_events")}
        for table in _SHIFTED:
            _copy_rows(database, table, highest, times)
        database.execute("PRAGMA journal_mode = WAL")


def _highest_id(database: sqlite3.Connection, table: str) -> int:
    (highest,) = database.execute(f"SELECT coalesce(max(id), 0) FROM {table}").fetchone()
    return int(highest)


def _copy_rows(database: sqlite3.Connection, table: str, highest: Mapping[str, int], times: int) -> None:
    """Insert the copies without indexes; each index is then created by one sort, which is faster."""
    indexes = database.execute(
        "SELECT name, sql FROM sqlite_master WHERE type = 'index' AND tbl_name = ? AND sql IS NOT NULL", (table,)
    ).fetchall()
    for name, _ in indexes:
        database.execute(f"DROP INDEX {name}")
    shifted = _SHIFTED[table]
    key, ids = next(iter(shifted.items()))
    columns = [f'"{row[1]}"' for row in database.execute(f"PRAGMA table_info({table})")]
    values = [
        f"{column} + copy * {highest[shifted[name_]]}" if (name_ := column.strip('"')) in shifted else column
        for column in columns
    ]
    database.execute(
        f"WITH RECURSIVE copies (copy) AS (SELECT 1 UNION ALL SELECT copy + 1 FROM copies WHERE copy < {times - 1})"
        f" INSERT INTO {table} ({', '.join(columns)}) SELECT {', '.join(values)}"
        f" FROM copies CROSS JOIN {table} AS original WHERE original.{key} <= {highest[ids]}"
    )
    for _, sql in indexes:
        database.execute(sql)
