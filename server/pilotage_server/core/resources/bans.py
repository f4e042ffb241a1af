"""Stored bans, and the look-up of nodes of the tree by name.

Rules
-----
A node has one ban at a time; a new one replaces it. A ban uses the tree's spelling of the node's name. An unknown name
is rejected with the nearest known one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime

from pilotage.errors import InvalidInputError, Violation
from pilotage.resources.eligibility import Ban
from pilotage.resources.tree import QueueId
from pilotage.text import did_you_mean, fold


@dataclass(frozen=True, slots=True)
class BanRecord:
    """A stored ban: its id, the operator, and since when it holds."""

    id: int
    ban: Ban
    by: str
    since: datetime


@dataclass(frozen=True, slots=True)
class TreeNode:
    """A site, a computing element or a queue; None = all below the level above."""

    site: str
    ce: str | None = None
    queue: str | None = None

    def __str__(self) -> str:
        """Return SITE, SITE/CE or SITE/CE/QUEUE."""
        return "/".join(name for name in (self.site, self.ce, self.queue) if name)


def find_node(queues: Iterable[QueueId], wanted: TreeNode) -> TreeNode:
    """Return the node that `wanted` names, in the spelling of the tree with these queues.

    Raises
    ------
    InvalidInputError
        When the name of a level is missing or unknown; the message has the nearest known name.
    """
    if wanted.queue is not None and wanted.ce is None:
        raise InvalidInputError(Violation("ce", "a queue is named together with its computing element"))
    below = tuple(queues)
    site = _find("site", wanted.site, {queue.site for queue in below}, "the tree")
    if wanted.ce is None:
        return TreeNode(site)
    below = tuple(queue for queue in below if queue.site == site)
    ce = _find("ce", wanted.ce, {queue.ce for queue in below}, f"site {site}")
    if wanted.queue is None:
        return TreeNode(site, ce)
    names = {queue.queue for queue in below if queue.ce == ce}
    return TreeNode(site, ce, _find("queue", wanted.queue, names, f"{site}/{ce}"))


def _find(level: str, wanted: str, names: Collection[str], parent: str) -> str:
    spelled = {fold(name): name for name in sorted(names)}
    found = wanted if wanted in names else spelled.get(fold(wanted))
    if found is None:
        why = f"{parent} has no {level} {wanted!r}{did_you_mean(wanted, names)}"
        raise InvalidInputError(Violation(level, why))
    return found
