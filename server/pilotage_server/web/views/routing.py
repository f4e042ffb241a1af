"""The job routers with their routes."""

from __future__ import annotations

from pilotage.v1 import route_service_pb2
from pilotage_server.web.pages import PageView, Shown, Visit

MOST_ROUTES = 200
"""Routes of a router that the page shows."""


async def collect_routes(visit: Visit) -> Shown:
    """Return the routers."""
    found = await visit.calls("RouteService/ListRoutes", route_service_pb2.ListRoutesRequest())
    return {"routers": found.routers, "most": MOST_ROUTES}


ROUTING = PageView("/routes", "Routes", ("RouteService/ListRoutes",), "routes.html", collect_routes)
