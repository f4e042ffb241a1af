"""Health and bans for operators: what keeps jobs from places, and forms that close and open them.

A form leads to a page that says what the change concerns; only the form of that page makes the change.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from google.protobuf.message import Message
from starlette.responses import Response

from pilotage.v1 import resource_service_pb2 as resources
from pilotage_server.web.pages import PageMaker, PageView, Shown, Visit
from pilotage_server.web.sessions import Form, PageError, read_form

MOST_ROWS = 500
"""Rows of each table."""

HEALTH_CALLS = ("ResourceService/ListBans", "ResourceService/ListDowntimes", "ResourceService/ListThrottles")


async def collect_health(visit: Visit) -> Shown:
    """Return all bans, downtimes and circuit breakers."""
    call = visit.calls
    bans = (await call("ResourceService/ListBans", resources.ListBansRequest())).bans
    downtimes = (await call("ResourceService/ListDowntimes", resources.ListDowntimesRequest())).downtimes
    throttles = (await call("ResourceService/ListThrottles", resources.ListThrottlesRequest())).throttles
    return {
        "bans": bans,
        "downtimes": downtimes,
        "throttles": throttles,
        "most": MOST_ROWS,
        "changes": [PLACE_CHANGES[verb] for verb in ("ban", "close")],
    }


HEALTH = PageView("/health", "Health", HEALTH_CALLS, "health.html", collect_health)


@dataclass(frozen=True, slots=True)
class PlaceName:
    """A place as a form names it: a site, CE or queue of the tree, or a node of a site."""

    site: str
    ce: str = ""
    queue: str = ""
    node: str = ""

    def __str__(self) -> str:
        """Return its names with slashes between them."""
        return "/".join(filter(None, (self.site, self.ce, self.queue, self.node)))


def _ban(place: PlaceName, request_id: str, reason: str) -> Message:
    return resources.BanRequest(request_id=request_id, site=place.site, ce=place.ce, queue=place.queue, reason=reason)


def _unban(place: PlaceName, request_id: str, _: str) -> Message:
    return resources.UnbanRequest(request_id=request_id, site=place.site, ce=place.ce, queue=place.queue)


def _close(place: PlaceName, request_id: str, reason: str) -> Message:
    return resources.HoldPlaceRequest(request_id=request_id, place=_place(place), reason=reason)


def _open(place: PlaceName, request_id: str, _: str) -> Message:
    return resources.OpenPlaceRequest(request_id=request_id, place=_place(place))


def _place(place: PlaceName) -> resources.Place:
    return resources.Place(site=place.site, ce=place.ce, queue=place.queue, node=place.node)


@dataclass(frozen=True, slots=True)
class PlaceChange:
    """A change of a place: the verb, its effect for people, the call, its request, and whether it has a reason."""

    verb: str
    effect: str
    call: str
    request: Callable[[PlaceName, str, str], Message]
    has_reason: bool
    of_nodes: bool


PLACE_CHANGES = {
    each.verb: each
    for each in (
        PlaceChange(
            "ban",
            "No job starts there, and no pilot is submitted, until the ban is removed. Running jobs go on.",
            "ResourceService/Ban",
            _ban,
            has_reason=True,
            of_nodes=False,
        ),
        PlaceChange(
            "unban",
            "The ban ends, and jobs start there again.",
            "ResourceService/Unban",
            _unban,
            has_reason=False,
            of_nodes=False,
        ),
        PlaceChange(
            "close",
            "The circuit breaker holds the place: no job starts there until it is opened. Running jobs go on.",
            "ResourceService/HoldPlace",
            _close,
            has_reason=True,
            of_nodes=True,
        ),
        PlaceChange(
            "open",
            "The circuit breaker opens the place: jobs start there again, and earlier failures no longer count.",
            "ResourceService/OpenPlace",
            _open,
            has_reason=False,
            of_nodes=True,
        ),
    )
}


class PlaceChanges:
    """The two steps of a change of a place: what it concerns, and the change."""

    needs: Sequence[str] = (*HEALTH_CALLS, *(change.call for change in PLACE_CHANGES.values()))

    def __init__(self, pages: PageMaker) -> None:
        self._pages = pages

    async def confirm(self, visit: Visit) -> Response:
        """Return the page that says what the change concerns."""
        form = await read_form(visit.request)
        change, place = _change_of(form)
        found = await visit.calls("ResourceService/ListQueues", resources.ListQueuesRequest(site=place.site))
        queues = [each for each in found.queues if _has(place, each)]
        shown = {"change": change, "place": place, "queues": queues, "request_id": secrets.token_hex(16)}
        return self._pages.page("place_change.html", visit, shown, path=HEALTH.path)

    async def make(self, visit: Visit) -> Response:
        """Make the change, and return the page that says so."""
        form = await read_form(visit.request)
        change, place = _change_of(form)
        reason = form.one("reason").strip()
        if change.has_reason and not reason:
            raise PageError(HTTPStatus.BAD_REQUEST, "the change needs a reason; go back and enter one")
        answer = await visit.calls(change.call, change.request(place, form.one("request_id")[:64], reason))
        warnings: Sequence[Any] = answer.warnings if isinstance(answer, resources.HoldPlaceResponse) else ()
        shown = {"change": change, "place": place, "warnings": warnings}
        return self._pages.page("place_changed.html", visit, shown, path=HEALTH.path)


def _has(place: PlaceName, queue: Any) -> bool:
    names = queue.queue
    return place.ce in ("", names.ce) and place.queue in ("", names.queue)


def _change_of(form: Form) -> tuple[PlaceChange, PlaceName]:
    change = PLACE_CHANGES.get(form.one("change"))
    place = PlaceName(*(form.one(name).strip() for name in ("site", "ce", "queue", "node")))
    if change is None:
        raise PageError(HTTPStatus.BAD_REQUEST, "the form names no change")
    if not place.site:
        raise PageError(HTTPStatus.BAD_REQUEST, "the form names no site; go back and enter one")
    if place.queue and not place.ce:
        raise PageError(HTTPStatus.BAD_REQUEST, "the form names a queue without its CE; go back and enter it")
    if place.node and not change.of_nodes:
        raise PageError(HTTPStatus.BAD_REQUEST, f"{change.verb} concerns no nodes; close the node instead")
    if place.node and place.ce:
        raise PageError(HTTPStatus.BAD_REQUEST, "a node is named by its site only; leave out the CE and the queue")
    return change, place
