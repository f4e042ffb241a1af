"""The map of slots: a square for each slot of the nodes, with a form and a colour for its state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from itertools import groupby
from typing import Any

from pilotage.v1 import node_service_pb2
from pilotage_server.web.pages import PageView, Shown, Visit
from pilotage_server.web.sessions import PageError

NODES_OF_PAGE = 200
MOST_SQUARES = 128
"""Squares of one node; beyond it, a square stands for several slots."""

SQUARE, PITCH, COLUMNS = 10, 12, 16
"""Size of a square, distance of squares, and squares in a row."""


@dataclass(frozen=True, slots=True)
class SlotSymbol:
    """What slots of some states have in common: its name, what it means, and its form as an SVG path.

    The form tells kinds apart without colours. It starts at the upper left corner of the square.
    """

    name: str
    meaning: str
    form: str


SLOT_KINDS = {
    kind.name: kind
    for kind in (
        SlotSymbol("busy", "a job runs", "h10v10h-10z"),
        SlotSymbol("claimed", "kept for an account, no job runs", "h10v10h-10zm3 3v4h4v-4z"),
        SlotSymbol("suspended", "the job is suspended", "h4v10h-4zm6 0h4v10h-4z"),
        SlotSymbol("leaving", "the job retires, or has to leave", "h10l-5 10z"),
        SlotSymbol("idle", "takes a job", "h10v10h-10zm1.5 1.5v7h7v-7z"),
        SlotSymbol("divided", "partitionable, all cores are in dynamic slots", "m3 3h4v4h-4z"),
        SlotSymbol("owner", "its policy takes no job", "m0 3.5h10v3h-10z"),
        SlotSymbol(
            "drained", "the node drains", "h2.5l2.5 3.5 2.5-3.5h2.5l-3.7 5 3.7 5h-2.5l-2.5-3.5-2.5 3.5h-2.5l3.7-5z"
        ),
    )
}
"""All kinds, in the order in which a node shows them."""


def kind_of_slot(state: str, activity: str, *, divided: bool = False) -> str:
    """Return the kind of a slot with a state and an activity in HTCondor's terms."""
    if state == "Claimed":
        return {"Busy": "busy", "Suspended": "suspended", "Retiring": "leaving"}.get(activity, "claimed")
    if state == "Unclaimed" and divided:
        return "divided"
    return {"Unclaimed": "idle", "Preempting": "leaving", "Drained": "drained"}.get(state, "owner")


@dataclass(frozen=True, slots=True)
class NodeSquares:
    """A node of the map: its slots by kind, the paths of their squares, and the slots that a square stands for."""

    node: Any
    draining: bool
    counts: Counter[str]
    paths: Sequence[tuple[str, str]]
    height: int
    slots_of_square: int

    @property
    def text(self) -> str:
        """The counts for people who do not see the squares."""
        return kinds_text(self.counts)


def kinds_text(counts: Counter[str]) -> str:
    """Return the numbers of slots by kind as one line."""
    return ", ".join(f"{counts[kind]} {kind}" for kind in SLOT_KINDS if counts[kind])


def squares_of(found: Any) -> NodeSquares:
    """Return the squares of a node."""
    counts = counts_of(found)
    each = -(-counts.total() // MOST_SQUARES)
    paths, place = [], 0
    for kind, form in ((kind, SLOT_KINDS[kind].form) for kind in SLOT_KINDS if counts[kind]):
        places = range(place, place + -(-counts[kind] // each))
        place = places.stop
        path = "".join(f"M{at % COLUMNS * PITCH} {at // COLUMNS * PITCH}{form}" for at in places)
        paths.append((kind, path))
    height = -(-place // COLUMNS) * PITCH
    return NodeSquares(found.node, found.draining, counts, paths, height, each)


def counts_of(found: Any) -> Counter[str]:
    """Return the numbers of slots of a node by kind."""
    counts = Counter[str]()
    for each in found.slots:
        counts[kind_of_slot(each.state, each.activity, divided=each.divided)] += each.slots
    return counts


async def collect_slots(visit: Visit) -> Shown:
    """Return one page of the nodes at the site and with slots of the kind that the address names."""
    site, kind, page = visit.query("site"), visit.choice("kind", SLOT_KINDS), visit.query("page") or "1"
    if not page.isdecimal() or not 0 < int(page) < 1_000_000:
        raise PageError(HTTPStatus.BAD_REQUEST, f"there is no page {page[:20]}")
    found = (await visit.calls("NodeService/CountSlots", node_service_pb2.CountSlotsRequest(site=site))).nodes
    totals = Counter[str]()
    of_sites: dict[str, Counter[str]] = {}
    wanted = []
    for each in found:
        counts = counts_of(each)
        totals.update(counts)
        of_sites.setdefault(each.node.site, Counter()).update(counts)
        if not kind or counts[kind]:
            wanted.append(each)
    start = (int(page) - 1) * NODES_OF_PAGE
    shown = map(squares_of, wanted[start : start + NODES_OF_PAGE])
    return {
        "site": site,
        "kind": kind,
        "page": int(page),
        "pages": max(1, -(-len(wanted) // NODES_OF_PAGE)),
        "kinds": SLOT_KINDS.values(),
        "totals": totals,
        "nodes": len(wanted),
        "sites": [
            (name, kinds_text(of_sites[name]), list(nodes))
            for name, nodes in groupby(shown, lambda each: each.node.site)
        ],
        "width": COLUMNS * PITCH,
    }


SLOTS = PageView("/slots", "Slots", ("NodeService/CountSlots",), "slots.html", collect_slots)
