"""The routes of the web page: views, forms, live updates and static files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from http import HTTPStatus

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Message, Receive, Scope, Send

from pilotage.clock import BootClock, Clock
from pilotage.v1 import identity_service_pb2
from pilotage_server.web.calls import CallFailedError, Handlers
from pilotage_server.web.formats import moment
from pilotage_server.web.pages import SECURITY_HEADERS, PageMaker, PageView, redirect
from pilotage_server.web.sessions import (
    SCHEMES,
    PageError,
    forget_token,
    keep_scheme,
    keep_token,
    own_path,
    read_form,
    token_fault,
    token_of,
)
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


def web_routes(handlers: Handlers, boot_clock: BootClock, is_open: Callable[[], bool], clock: Clock) -> list[BaseRoute]:
    """Return the routes of the page; `handlers` are the entry points of calls, `is_open` = the server does not stop."""
    pages = PageMaker(PAGE_VIEWS, handlers, clock, boot_clock)
    access, changes, life = Access(pages, clock), JobChanges(pages), JobLife(pages)
    places = PlaceChanges(pages)
    return [
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
        Route("/logout", access.log_out, methods=["POST"]),
        Route("/colours", access.choose_colours, methods=["POST"]),
        Mount("/static", _StaticFiles(packages=[("pilotage_server.web", "static")])),
    ]


class Access:
    """Log-in with a token, log-out, and the choice of colours."""

    def __init__(self, pages: PageMaker, clock: Clock) -> None:
        self._pages = pages
        self._clock = clock

    async def ask(self, request: Request) -> Response:
        """Return the form for the token.

        A link at another site comes without the cookie, although the visitor may have logged in. The page then loads
        itself once more, as a page of this server, and leads on.
        """
        back = own_path(request.query_params.get("next", "/"))
        if request.headers.get("sec-fetch-site") == "cross-site":
            return self._pages.plain("again.html", request, {"target": back})
        fault = "Your session has ended. Log in again." if token_of(request) else ""
        return self._pages.plain("login.html", request, {"next": back, "fault": fault})

    async def log_in(self, request: Request) -> Response:
        """Keep the token in the cookie if the server accepts it."""
        try:
            form = await read_form(request)
        except PageError as error:
            return self._pages.fault(request, error)
        token, back = form.one("token").strip(), own_path(form.one("next"))
        fault = token_fault(token)
        if not fault:
            calls = self._pages.calls_with(request, token)
            try:
                identity = await calls("IdentityService/WhoAmI", identity_service_pb2.WhoAmIRequest())
            except CallFailedError as failed:
                fault = f"The server does not accept this token: {failed}."
            else:
                response = redirect(back)
                expires = moment(identity.expires)
                lifetime_s = (expires - self._clock()).total_seconds() if expires else 0.0
                keep_token(request, response, token, lifetime_s)
                return response
        return self._pages.plain("login.html", request, {"next": back, "fault": fault}, HTTPStatus.UNAUTHORIZED)

    async def log_out(self, request: Request) -> Response:
        """Forget the token."""
        try:
            await read_form(request)
        except PageError as error:
            return self._pages.fault(request, error)
        response = redirect("/login")
        forget_token(request, response)
        return response

    async def choose_colours(self, request: Request) -> Response:
        """Keep the colour scheme."""
        try:
            form = await read_form(request)
        except PageError as error:
            return self._pages.fault(request, error)
        response, scheme = redirect(own_path(form.one("back"))), form.one("scheme")
        if scheme in SCHEMES:
            keep_scheme(request, response, scheme)
        return response


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
