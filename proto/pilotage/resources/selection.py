"""The eligible part of the tree: sites, their computing elements, and the queues of these."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Literal, overload

from pilotage.errors import InvalidInputError, Violation
from pilotage.resources.eligibility import Eligible, eligibility, parameter_refusals
from pilotage.resources.inheritance import EffectiveCE, EffectiveQueue, effective_ces
from pilotage.resources.requirements import Requirements, read_requirements
from pilotage.resources.tree import ResourceTree
from pilotage.text import fold

EligibleQueues = dict[str, dict[str, list[str]]]
"""{SITE: {CE: [QUEUE…]}}, in the order of the tree, without empty parts."""

EligibleCEs = dict[str, list[str]]
"""{SITE: [CE…]}, in the order of the tree, without empty parts."""

_NOTHING: Mapping[str, object] = MappingProxyType({})


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


@overload
def get_eligible_nodes(
    tree: ResourceTree,
    vo: str | None,
    level: Literal[NodeType.QUEUE] = NodeType.QUEUE,
    ce_select: Mapping[str, object] = ...,
    queue_select: Mapping[str, object] = ...,
) -> EligibleQueues: ...


@overload
def get_eligible_nodes(
    tree: ResourceTree,
    vo: str | None,
    level: Literal[NodeType.CE],
    ce_select: Mapping[str, object] = ...,
    queue_select: Mapping[str, object] = ...,
) -> EligibleCEs: ...


@overload
def get_eligible_nodes(
    tree: ResourceTree,
    vo: str | None,
    level: Literal[NodeType.SITE],
    ce_select: Mapping[str, object] = ...,
    queue_select: Mapping[str, object] = ...,
) -> list[str]: ...


@overload
def get_eligible_nodes(
    tree: ResourceTree,
    vo: str | None,
    level: NodeType,
    ce_select: Mapping[str, object] = ...,
    queue_select: Mapping[str, object] = ...,
) -> EligibleNodes: ...


def get_eligible_nodes(
    tree: ResourceTree,
    vo: str | None,
    level: NodeType = NodeType.QUEUE,
    ce_select: Mapping[str, object] = _NOTHING,
    queue_select: Mapping[str, object] = _NOTHING,
) -> EligibleNodes:
    """Return the eligible part of the tree, from the sites down to `level`; the selection is the same for each level.

    `ce_select` is compared with the effective values of a computing element, `queue_select` with those of a queue,
    both as a Requirements section. A computing element or site is included if one of its queues is. `vo` None = the
    operators' view, without access lists.

    Raises
    ------
    InvalidRequirementsError
        A selection is invalid.

    Notes
    -----
    RFC #7: `Resources( vo = vo ).getEligibleNodes( 'Queue', ceSelectDict, queueSelectDict )`.
    """
    of_ce = read_requirements(ce_select, vo or "", tree.declarations)
    of_queue = read_requirements(queue_select, vo or "", tree.declarations)
    found: EligibleQueues = {}
    for ce in effective_ces(tree, vo):
        queues = _eligible_queues(ce, of_ce, of_queue)
        if queues:
            found.setdefault(ce.site, {})[ce.name] = [queue.id.queue for queue in queues]
    return down_to(level, found)


def _eligible_queues(ce: EffectiveCE, of_ce: Requirements, of_queue: Requirements) -> tuple[EffectiveQueue, ...]:
    if any(parameter_refusals(of_ce.items, ce.values)):
        return ()
    return tuple(queue for queue in ce.queues if isinstance(eligibility(of_queue, queue), Eligible))
