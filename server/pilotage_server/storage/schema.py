"""The schema of the database: brought to this release's version at every start of a server."""

from __future__ import annotations

from importlib.resources import files

from alembic import command
from alembic.config import Config
from alembic.util import CommandError
from sqlalchemy import text

from pilotage.errors import WorldError
from pilotage_server.storage import bulk
from pilotage_server.storage.engine import Database, Unit

_SCHEMA_LOCK = 0x70696C73
"""Number of the advisory lock under which one server at a time changes the schema."""


def upgrade(database: Database) -> None:
    """Bring the database to the schema of this release; a new one gets all of it.

    Raises
    ------
    WorldError
        The database cannot be reached or written, or a later release has changed it.
    """
    database.write(_upgrade)


def _upgrade(unit: Unit) -> None:
    if not bulk.is_sqlite(unit.session):
        unit.session.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _SCHEMA_LOCK})
    config = Config()
    config.set_main_option("script_location", str(files("pilotage_server.storage") / "migrations"))
    config.attributes["connection"] = unit.session.connection()
    try:
        command.upgrade(config, "head")
    except CommandError as error:
        raise WorldError(f"the database does not belong to this release: {error}", transient=False) from error
