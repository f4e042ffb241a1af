"""Types of nodes: sites, computing elements and queues; and a part of the tree down to one type."""

from __future__ import annotations

from enum import StrEnum

from pilotage.errors import InvalidInputError, Violation
from pilotage.text import fold

EligibleQueues = dict[str, dict[str, list[str]]]
"""{SITE: {CE: [QUEUE…]}}, in the order of the tree, without empty parts."""

EligibleCEs = dict[str, list[str]]
"""{SITE: [CE…]}, in the order of the tree, without empty parts."""


class NodeType(StrEnum):
    """The lowest level of a selection's result."""

    SITE = "Site"
    CE = "CE"
    QUEUE = "Queue"


EligibleNodes = EligibleQueues | EligibleCEs | list[str]
"""The eligible part of the tree down to any level."""


def node_type(name: str) -> NodeType:
    """Return the level with this name, in any letter case; raises InvalidInputError."""
    for level in NodeType:
        if fold(str(name)) == fold(level):
            return level
    raise InvalidInputError(Violation("level", f"{name!r} is not a level of the tree: {', '.join(NodeType)}"))


def down_to(level: NodeType, queues: EligibleQueues) -> EligibleNodes:
    """Return the nodes from the sites down to `level`."""
    match level:
        case NodeType.QUEUE:
            return queues
        case NodeType.CE:
            return {site: list(ces) for site, ces in queues.items()}
        case NodeType.SITE:
            return list(queues)
