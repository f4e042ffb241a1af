"""The sites, and the queues of a site."""

from __future__ import annotations

from http import HTTPStatus

from pilotage.v1 import overview_service_pb2, resource_service_pb2
from pilotage_server.web.pages import PageView, Shown, Visit
from pilotage_server.web.sessions import PageError

SHOWN_PARAMETERS = 12
"""Values of a queue that its line names; the others are counted."""


async def collect_places(visit: Visit) -> Shown:
    """Return the sites."""
    overview = await visit.calls("OverviewService/GetOverview", overview_service_pb2.GetOverviewRequest())
    return {"sites": overview.sites}


PLACES = PageView("/sites", "Sites", ("OverviewService/GetOverview",), "places.html", collect_places)


async def collect_site(visit: Visit) -> Shown:
    """Return the queues of the site in the path, with their values."""
    site = visit.request.path_params["site"]
    request = resource_service_pb2.ListQueuesRequest(site=site)
    queues = (await visit.calls("ResourceService/ListQueues", request)).queues
    if not queues:
        raise PageError(HTTPStatus.NOT_FOUND, f"there is no site {site} with queues that you may see")
    return {"site": queues[0].queue.site, "queues": queues, "most": SHOWN_PARAMETERS}


SITE = PageView("/sites/{site}", "", ("ResourceService/ListQueues",), "site.html", collect_site)
