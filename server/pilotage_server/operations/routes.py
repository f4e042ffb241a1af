"""What job routers tell people of their routes."""

from __future__ import annotations

from pilotage_server.core.route_tables import RouteTable, ToldRoutes
from pilotage_server.core.turns import Turn
from pilotage_server.operations.turns import hold_turn
from pilotage_server.storage import routers as stored
from pilotage_server.storage.engine import Unit


def put_routes(unit: Unit, turn: Turn, table: RouteTable) -> None:
    """Replace what a router tells of its routes; raises TurnLostError."""
    hold_turn(unit, turn)
    stored.put_router(unit.session, ToldRoutes(turn.agent, unit.now, table))


def list_routes(unit: Unit) -> tuple[ToldRoutes, ...]:
    """Return what the routers tell, by name."""
    return stored.load_routers(unit.session)
