"""The part of the tree that a selection leaves: sites, their computing elements, and the queues of these."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Literal, overload

from pilotage.effective import EffectiveCE, EffectiveQueue, effective_ces
from pilotage.eligibility import Eligible, eligibility, parameters_refused
from pilotage.requirements import Requirements, read_requirements
from pilotage.resource_tree import ResourceTree

EligibleQueues = dict[str, dict[str, list[str]]]
"""{SITE: {CE: [QUEUE…]}}, in the order of the tree, nothing empty."""

EligibleCEs = dict[str, list[str]]
"""{SITE: [CE…]}, in the order of the tree, nothing empty."""

_NOTHING: Mapping[str, object] = MappingProxyType({})


class NodeType(StrEnum):
    """Down to where a selection is told."""

    SITE = "Site"
    CE = "CE"
    QUEUE = "Queue"


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


def get_eligible_nodes(
    tree: ResourceTree,
    vo: str | None,
    level: NodeType = NodeType.QUEUE,
    ce_select: Mapping[str, object] = _NOTHING,
    queue_select: Mapping[str, object] = _NOTHING,
) -> EligibleQueues | EligibleCEs | list[str]:
    """Return the tree of what fits, from the sites down to `level`, which cuts it there and selects nothing.

    `ce_select` is compared with what holds for a computing element (its own values and those it inherits),
    `queue_select` with what holds for a queue, as a Requirements section is. A computing element or site is
    in the tree when one of its queues is. `vo` None = the operator's view, to which all queues exist.

    Raises
    ------
    InvalidRequirementsError
        When a selection has no meaning.

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
    match level:
        case NodeType.QUEUE:
            return found
        case NodeType.CE:
            return {site: list(ces) for site, ces in found.items()}
        case NodeType.SITE:
            return list(found)


def _eligible_queues(ce: EffectiveCE, of_ce: Requirements, of_queue: Requirements) -> tuple[EffectiveQueue, ...]:
    if any(parameters_refused(of_ce.items, ce.values)):
        return ()
    return tuple(queue for queue in ce.queues if isinstance(eligibility(of_queue, queue), Eligible))
