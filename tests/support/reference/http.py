"""The page of the HTTP gateway's routes, made from their table and the comments of the protocol."""

from __future__ import annotations

from pilotage_server.rpc.framework.access import REQUIRED_ROLES
from pilotage_server.rpc.gateway.openapi import description_of
from pilotage_server.rpc.gateway.routes import LEFT_OUT, ROUTES, CallRoute, Exchange
from support.reference.markdown import code, prose, table

_HEAD = """# HTTP

On this page you find the route of each call over HTTP. `make reference` writes it from the table of routes and the
comments of the protocol. The fields of each call are
in the [OpenAPI](https://spec.openapis.org/oas/v3.1.1.html) document that the server has at `/openapi.json`.
[How to call over HTTP](../how-to/http.md) says how to turn the gateway on, and how requests and answers look.
"""

_KINDS = {
    Exchange.JSON: "JSON",
    Exchange.EVENTS: "events",
    Exchange.UPLOAD: "body = content",
    Exchange.DOWNLOAD: "answer = content",
}


def page() -> str:
    """Return the text of the page."""
    lines = [_HEAD]
    for service in dict.fromkeys(route.service for route in ROUTES):
        rows = [_row(route) for route in ROUTES if route.service == service]
        lines += [f"## {service}", "", *table(("route", "form", "call", "roles", "what it does"), rows)]
    lines += ["## Calls without a route", "", "Programs of Pilotage make these calls, over gRPC.", ""]
    return "\n".join([*lines, *table(("callers", "calls"), ((who, code(*calls)) for who, calls in LEFT_OUT.items()))])


def _row(route: CallRoute) -> tuple[str, ...]:
    roles = ", ".join(sorted(REQUIRED_ROLES[route.method]))
    return f"`{route.verb} {route.path}`", _KINDS[route.exchange], route.name, roles, prose(description_of(route))
