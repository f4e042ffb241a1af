"""Views and how they become pages: one function collects what a template shows.

Rules
-----
- A view names the calls that it needs. A visitor whose roles permit one of them not at all does not see the view.
- Templates escape everything. Pages have no script and no style of their own: the Content-Security-Policy permits the
  files of `static/` only.
- A view makes a fixed, small number of calls, never one for each row.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from importlib.metadata import version
from typing import Any

import structlog
from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from pilotage.clock import BootClock, Clock
from pilotage.v1 import identity_service_pb2
from pilotage_server.rpc.framework.access import REQUIRED_ROLES
from pilotage_server.web.calls import CallFailedError, Handlers, PageCalls
from pilotage_server.web.formats import FILTERS
from pilotage_server.web.sessions import PageError, checked_choice, login_path, scheme_of, token_of

log = structlog.get_logger()

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
SECURITY_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_PAGE_HEADERS = {**SECURITY_HEADERS, "Cache-Control": "no-store"}

RELEASE = version("pilotage")


@dataclass(frozen=True, slots=True)
class Visit:
    """A request of a visitor who has logged in: the visitor's identity, and calls with the visitor's token."""

    request: Request
    calls: PageCalls
    identity: Any
    clock: Clock

    def may(self, *calls: str) -> bool:
        """Return whether the visitor's roles permit all of these calls."""
        roles = set(self.identity.roles)
        return all(not roles.isdisjoint(REQUIRED_ROLES[f"/pilotage.v1.{call}"]) for call in calls)

    @property
    def sees_all(self) -> bool:
        """Whether the visitor sees the jobs of all owners."""
        return not {"operator", "admin"}.isdisjoint(self.identity.roles)

    def query(self, name: str) -> str:
        """Return a parameter of the query, "" = it is not there."""
        return self.request.query_params.get(name, "").strip()

    def choice(self, name: str, choices: Collection[str]) -> str:
        """Return a parameter of the query, "" = it is not there; raises PageError if it is none of the choices."""
        return checked_choice(name, self.query(name), choices)


Shown = Mapping[str, Any]
"""What a template shows, by name."""


@dataclass(frozen=True, slots=True)
class PageView:
    """A view: its path, the calls that it needs, its template, and the function that collects what the template shows.

    `title` is its name in the navigation; "" = it is not there.
    """

    path: str
    title: str
    needs: Sequence[str]
    template: str
    collect: Callable[[Visit], Awaitable[Shown]]


class PageMaker:
    """Makes the pages of all views; `handlers` are the entry points of calls."""

    def __init__(self, views: Sequence[PageView], handlers: Handlers, clock: Clock, boot_clock: BootClock) -> None:
        self._views = views
        self._handlers = handlers
        self._clock = clock
        self._boot_clock = boot_clock
        self._templates = Environment(
            loader=PackageLoader("pilotage_server.web"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.filters.update(FILTERS)
        self._templates.globals["release"] = RELEASE
        self._templates.globals["parts"] = self._templates.get_template("parts.html").module
        for name in self._templates.list_templates():
            self._templates.get_template(name)  # a first visitor need not wait until all are compiled

    def page_of(self, view: PageView) -> Callable[[Request], Awaitable[Response]]:
        """Return the endpoint of a view."""

        async def show(visit: Visit) -> Response:
            return self.page(view.template, visit, await view.collect(visit), path=view.path)

        return self.endpoint(show, view.needs)

    def endpoint(
        self, act: Callable[[Visit], Awaitable[Response]], needs: Sequence[str] = ()
    ) -> Callable[[Request], Awaitable[Response]]:
        """Return an endpoint for visitors who may make these calls; others get the log-in page, or a refusal."""

        async def serve(request: Request) -> Response:
            response = await answer(request)
            if response.status_code >= HTTPStatus.MULTIPLE_CHOICES and "hx-request" in request.headers:
                # A part of the page was asked for, and the browser shows another page instead.
                return Response(headers={**_PAGE_HEADERS, "HX-Redirect": _own_address(request)})
            return response

        async def answer(request: Request) -> Response:
            visit: Visit | None = None
            try:
                visit = await self._visit(request)
                _check_roles(visit, needs)
                return await act(visit)
            except CallFailedError as failed:
                if failed.problem.status == HTTPStatus.UNAUTHORIZED:
                    return _to_login(request)
                return self.error(request, failed.problem.status, str(failed), visit)
            except PageError as error:
                if error.status is HTTPStatus.UNAUTHORIZED:
                    return _to_login(request)
                return self.error(request, error.status, error.text, visit)
            except TimeoutError:
                return self.error(request, HTTPStatus.GATEWAY_TIMEOUT, "the server did not answer in time", visit)
            except Exception as error:  # the edge of a request: every other error becomes an incident
                incident = secrets.token_hex(6)
                log.error("page failed", path=request.url.path, incident=incident, exc_info=error)
                text = f"the server failed; its log has the details under incident {incident}"
                return self.error(request, HTTPStatus.INTERNAL_SERVER_ERROR, text, visit)

        return serve

    def calls_with(self, request: Request, token: str) -> PageCalls:
        """Return the calls of a request with a token."""
        peer = "" if request.client is None else f"http:{request.client.host}:{request.client.port}"
        return PageCalls(self._handlers, self._boot_clock, token, peer)

    async def _visit(self, request: Request) -> Visit:
        token = token_of(request)
        if not token:
            raise PageError(HTTPStatus.UNAUTHORIZED, "log in")
        calls = self.calls_with(request, token)
        identity = await calls("IdentityService/WhoAmI", identity_service_pb2.WhoAmIRequest())
        return Visit(request, calls, identity, self._clock)

    def page(
        self, template: str, visit: Visit, shown: Shown, *, path: str = "", status: HTTPStatus = HTTPStatus.OK
    ) -> Response:
        """Return a page for a visitor; `path` = its view in the navigation."""
        text = self._templates.get_template(template).render(self._context(visit, shown, path))
        return HTMLResponse(text, status, _PAGE_HEADERS)

    def part(self, template: str, block: str, visit: Visit, shown: Shown) -> str:
        """Return the HTML of one block of a template, for live updates."""
        found = self._templates.get_template(template)
        return "".join(found.blocks[block](found.new_context(self._context(visit, shown, ""))))

    def _context(self, visit: Visit, shown: Shown, path: str) -> dict[str, Any]:
        views = [view for view in self._views if view.title and visit.may(*view.needs)]
        request = visit.request
        return {
            **_frame(request),
            "visitor": visit.identity,
            "views": views,
            "here": path,
            "may": visit.may,
            "now": visit.clock(),
            **shown,
        }

    def plain(self, template: str, request: Request, shown: Shown, status: HTTPStatus = HTTPStatus.OK) -> Response:
        """Return a page without navigation, for anybody."""
        text = self._templates.get_template(template).render({**_frame(request), **shown})
        return HTMLResponse(text, status, _PAGE_HEADERS)

    def error(self, request: Request, status: HTTPStatus, text: str, visit: Visit | None = None) -> Response:
        """Return a page that says what is wrong, for a visitor with the navigation."""
        shown = {"status": status, "text": text}
        if visit is None:
            return self.plain("error.html", request, shown, status)
        return self.page("error.html", visit, shown, status=status)

    def fault(self, request: Request, error: PageError) -> Response:
        """Return the page of an error."""
        return self.error(request, error.status, error.text)


def _check_roles(visit: Visit, needs: Sequence[str]) -> None:
    """Raise PageError if the visitor's roles do not permit all of these calls."""
    for call in needs:
        if not visit.may(call):
            roles = ", ".join(visit.identity.roles)
            wanted = " or ".join(sorted(REQUIRED_ROLES[f"/pilotage.v1.{call}"]))
            text = f"your roles ({roles}) do not permit this page; it needs the role {wanted}"
            raise PageError(HTTPStatus.FORBIDDEN, text)


def _frame(request: Request) -> dict[str, Any]:
    """Return what all templates show; `back` = where the switch of colours leads back to."""
    back = _own_address(request) if request.method == "GET" else "/"
    return {"scheme": scheme_of(request), "back": back, "visitor": None}


def _own_address(request: Request) -> str:
    return request.url.path + (f"?{request.url.query}" if request.url.query else "")


def _to_login(request: Request) -> Response:
    return RedirectResponse(login_path(request), HTTPStatus.SEE_OTHER, _PAGE_HEADERS)


def redirect(path: str) -> Response:
    """Return the answer to a form, which leads to a page."""
    return RedirectResponse(path, HTTPStatus.SEE_OTHER, _PAGE_HEADERS)
