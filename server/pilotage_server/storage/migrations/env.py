"""What alembic runs: migrations on the connection that `storage.schema` hands over, or on a developer's own.

A new migration, after an edit of `tables`, with any scratch database:
alembic -x url=sqlite:///scratch.db upgrade head
alembic -x url=sqlite:///scratch.db revision --autogenerate --rev-id 0002 -m "what it brings"
Then read it: alembic overlooks an index over an expression on SQLite, and tests/conformance/test_schema.py tells.
"""

from __future__ import annotations

from typing import Any, Literal

from alembic import context
from sqlalchemy import Connection, create_engine
from sqlmodel import AutoString

from pilotage_server.storage.tables import UtcDateTime, metadata


def run(connection: Connection) -> None:
    """Run the migrations that are asked for."""
    context.configure(
        connection=connection,
        target_metadata=metadata,
        render_as_batch=True,
        render_item=render_type,
    )
    with context.begin_transaction():
        context.run_migrations()


def render_type(kind: str, item: Any, _autogenerate: Any) -> str | Literal[False]:
    """Return how a type of ours stands in a migration: as the plain type it is kept in."""
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
