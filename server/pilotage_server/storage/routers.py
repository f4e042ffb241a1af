"""What job routers tell people of their routes, in the database: one row a router."""

from __future__ import annotations

from datetime import datetime

from sqlmodel import Session

from pilotage_server.core.route_tables import ToldRoutes, table_from_json, table_to_json
from pilotage_server.core.routes import stamp_of
from pilotage_server.storage import bulk
from pilotage_server.storage.tables.conditions import UNREPORTED

_PUT = """
    INSERT INTO routers (name, told, routes_json) VALUES (?, ?, ?)
    ON CONFLICT (name) DO UPDATE SET told = excluded.told, routes_json = excluded.routes_json
"""
_LOAD = "SELECT name, told, routes_json FROM routers ORDER BY name"
_KNOWN = "SELECT 1 FROM routers WHERE name = ?"
_FORGET = "DELETE FROM routers WHERE name = ?"
_DELETE_GONE = f"""
    DELETE FROM routers WHERE told < ? AND NOT EXISTS (SELECT 1 FROM turns WHERE agent = name AND until >= ?)
        AND NOT EXISTS (SELECT 1 FROM attempts WHERE pilot_stamp = ? || name AND {UNREPORTED})
    RETURNING name
"""  # noqa: S608 - of our own texts only


def put_router(session: Session, told: ToldRoutes) -> None:
    """Keep what a router has told, in the place of what it told before."""
    bulk.once(session, _PUT, told.router, bulk.moment(session, told.told), table_to_json(told.table))


def load_routers(session: Session) -> tuple[ToldRoutes, ...]:
    """Return what the routers have told, by name."""
    rows = bulk.rows(session, _LOAD)
    return tuple(ToldRoutes(name, bulk.time_of(told), table_from_json(text)) for name, told, text in rows)


def is_known(session: Session, name: str) -> bool:
    """Whether the router has told anything."""
    return bool(bulk.rows(session, _KNOWN, name))


def forget_router(session: Session, name: str) -> None:
    """Keep nothing of what the router has told."""
    bulk.once(session, _FORGET, name)


def delete_gone(session: Session, since: datetime) -> int:
    """Forget the routers that have told nothing and had no turn since then, and have no copies; return how many."""
    before = bulk.moment(session, since)
    return len(bulk.rows(session, _DELETE_GONE, before, before, stamp_of("")))
