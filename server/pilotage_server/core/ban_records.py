"""Bans as the server keeps them, and the finding of what they name in the tree.

Rules
-----
A node has one ban at a time: a new one takes the place of the old. A ban names a node that the tree has, in the
tree's spelling; a name that it does not have is refused with the nearest that it has.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime
from difflib import get_close_matches

from pilotage.bans import Ban
from pilotage.errors import InvalidInputError, Violation
from pilotage.folding import fold
from pilotage.resource_tree import QueueId


@dataclass(frozen=True, slots=True)
class BanRecord:
    """A ban that is stored: with its id, who ordered it, and since when it holds."""

    id: int
    ban: Ban
    by: str
    since: datetime


@dataclass(frozen=True, slots=True)
class Node:
    """A site, a computing element or a queue; None = all below the level above."""

    site: str
    ce: str | None = None
    queue: str | None = None


def find_node(queues: Iterable[QueueId], wanted: Node) -> Node:
    """Return the node that `wanted` names, in the spelling of the tree that has `queues`.

    Raises
    ------
    InvalidInputError
        When a level's name is missing or the tree does not have it; the text names the nearest that it has.
    """
    if wanted.queue is not None and wanted.ce is None:
        raise InvalidInputError(Violation("ce", "a queue is named together with its computing element"))
    below = tuple(queues)
    site = _find("site", wanted.site, {queue.site for queue in below}, "the tree")
    if wanted.ce is None:
        return Node(site)
    below = tuple(queue for queue in below if queue.site == site)
    ce = _find("ce", wanted.ce, {queue.ce for queue in below}, f"site {site}")
    if wanted.queue is None:
        return Node(site, ce)
    names = {queue.queue for queue in below if queue.ce == ce}
    return Node(site, ce, _find("queue", wanted.queue, names, f"{site}/{ce}"))


def _find(level: str, wanted: str, names: Collection[str], place: str) -> str:
    spelled = {fold(name): name for name in sorted(names)}
    found = wanted if wanted in names else spelled.get(fold(wanted))
    if found is None:
        near = get_close_matches(fold(wanted), spelled, n=1)
        hint = f"; the nearest name there is {spelled[near[0]]}" if near else ""
        raise InvalidInputError(Violation(level, f"{place} has no {level} {wanted!r}{hint}"))
    return found
