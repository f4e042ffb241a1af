"""The script of alembic: it runs migrations on the connection of `upgrade`, or on that of a developer.

A new migration, after an edit of `tables`, with any scratch database:
alembic -x url=sqlite:///scratch.db upgrade head
alembic -x url=sqlite:///scratch.db revision --autogenerate --rev-id 0002 -m "what it brings"
A migration that is on the main branch does not change any more (decision 0056).
Then read it: on SQLite alembic misses indexes over expressions; the conformance test of the schema fails then.
"""

from __future__ import annotations

from typing import Any, Literal

from alembic import context
from sqlalchemy import Connection, create_engine
from sqlmodel import AutoString

from pilotage_server.storage.database.tables import UtcDateTime, metadata


def run(connection: Connection) -> None:
    """Run the requested migrations."""
    context.configure(
        connection=connection,
        target_metadata=metadata,
        render_as_batch=True,
        render_item=render_type,
    )
    with context.begin_transaction():
        context.run_migrations()


def render_type(kind: str, item: Any, _autogenerate: Any) -> str | Literal[False]:
    """Return the text of a custom type in a migration: the plain type that stores it."""
    if kind == "type" and isinstance(item, UtcDateTime):
        return "sa.DateTime(timezone=True)"
    if kind == "type" and isinstance(item, AutoString):
        return f"sa.String(length={item.length})" if item.length else "sa.String()"
    return False


given: Connection | None = context.config.attributes.get("connection")
if given is not None:
    run(given)
else:
    with create_engine(context.get_x_argument(as_dictionary=True)["url"]).begin() as own:
        run(own)
