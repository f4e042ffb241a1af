"""The routes of the web page: views, forms, live updates and static files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from http import HTTPStatus

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Message, Receive, Scope, Send

from pilotage.clock import BootClock, Clock
from pilotage_server.web.calls import Handlers
from pilotage_server.web.login import Access
from pilotage_server.web.openid import Attempts, Provider
from pilotage_server.web.pages import SECURITY_HEADERS, PageMaker, PageView
from pilotage_server.web.views.agents import AGENTS
from pilotage_server.web.views.audit import AUDIT
from pilotage_server.web.views.health import HEALTH, PlaceChanges
from pilotage_server.web.views.job import JOB, JobLife
from pilotage_server.web.views.jobs import JOBS, JobChanges
from pilotage_server.web.views.node import NODE
from pilotage_server.web.views.overview import OVERVIEW, OverviewLife
from pilotage_server.web.views.places import PLACES, SITE
from pilotage_server.web.views.pools import POOLS
from pilotage_server.web.views.routing import ROUTING
from pilotage_server.web.views.shares import SHARES
from pilotage_server.web.views.slots import SLOTS
from pilotage_server.web.views.tree import PUT_TREE, TREE, TreeForms
from pilotage_server.web.views.workflows import WORKFLOW, WORKFLOWS

PAGE_VIEWS: Sequence[PageView] = (
    *(OVERVIEW, JOBS, JOB, WORKFLOWS, WORKFLOW, POOLS, PLACES, SITE, SLOTS, NODE, SHARES, ROUTING),
    *(HEALTH, TREE, AGENTS, AUDIT),
)
"""All views; those with a title are in the navigation, in this order."""

_CHANGES = ("JobService/ChangeJobs",)


def web_routes(
    handlers: Handlers,
    boot_clock: BootClock,
    is_open: Callable[[], bool],
    clock: Clock,
    providers: Sequence[Provider],
    attempts: Attempts,
) -> tuple[list[BaseRoute], Callable[[Request], Response]]:
    """Return the routes of the page, and the page for other paths.

    `handlers` are the entry points of calls, `is_open` = the server does not stop.
    """
    pages = PageMaker(PAGE_VIEWS, handlers, clock, boot_clock)
    access, changes, life = Access(pages, clock, providers, attempts), JobChanges(pages), JobLife(pages)
    places = PlaceChanges(pages)
    routes: list[BaseRoute] = [
        *(Route(view.path, pages.page_of(view)) for view in PAGE_VIEWS),
        Route("/live", pages.endpoint(OverviewLife(pages, is_open).follow, OVERVIEW.needs)),
        Route("/jobs/change", pages.endpoint(changes.confirm, _CHANGES), methods=["POST"]),
        Route("/jobs/changed", pages.endpoint(changes.make, _CHANGES), methods=["POST"]),
        Route("/jobs/{job_id:int}/live", pages.endpoint(life.follow, JOB.needs)),
        Route("/jobs/{job_id:int}/files/{checksum}", pages.endpoint(life.download, ("JobService/DownloadFile",))),
        Route("/health/change", pages.endpoint(places.confirm, places.needs), methods=["POST"]),
        Route("/health/changed", pages.endpoint(places.make, places.needs), methods=["POST"]),
        Route("/tree", pages.endpoint(TreeForms(pages).change, PUT_TREE), methods=["POST"]),
        Route("/login", access.ask, methods=["GET"]),
        Route("/login", access.log_in, methods=["POST"]),
        Route("/login/{provider}", access.begin, methods=["GET"]),
        Route("/login/{provider}/callback", access.end, methods=["GET"]),
        Route("/logout", access.log_out, methods=["POST"]),
        Route("/colours", access.choose_colours, methods=["POST"]),
        Mount("/static", _StaticFiles(packages=[("pilotage_server.web", "static")])),
    ]
    return routes, partial(pages.error, status=HTTPStatus.NOT_FOUND, text="there is no such page")


class _StaticFiles(StaticFiles):
    """The files of pages, with the headers of pages. A browser keeps them; their addresses change with the release."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                more = {**SECURITY_HEADERS, "Cache-Control": "public, max-age=86400"}
                pairs = [(name.lower().encode(), text.encode()) for name, text in more.items()]
                message = {**message, "headers": [*message["headers"], *pairs]}
            await send(message)

        await super().__call__(scope, receive, send_with_headers)
