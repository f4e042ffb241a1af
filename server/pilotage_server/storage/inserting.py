"""Inserts that give way to a row that is already there, in the words of either database."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Table
from sqlalchemy.dialects import postgresql, sqlite
from sqlmodel import Session

from pilotage_server.storage import bulk


def insert_if_absent(session: Session, table: Table, values: Mapping[str, Any]) -> bool:
    """Insert a row unless its key is taken; return whether it was inserted.

    A row that another transaction is inserting at the same time is waited for.
    """
    is_sqlite = bulk.is_sqlite(session)
    insert = sqlite.insert(table) if is_sqlite else postgresql.insert(table)
    inserted = insert.values(**values).on_conflict_do_nothing().returning(*table.primary_key.columns)
    # Not every driver tells the row count of such an insert; what comes back is the row itself.
    return session.execute(inserted).first() is not None
