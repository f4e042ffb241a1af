"""The eligible part of the tree: sites, their computing elements, and the queues of these."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, overload

from pilotage.resources.eligibility import Eligible, eligibility, parameter_refusals
from pilotage.resources.inheritance import EffectiveCE, EffectiveQueue, effective_ces
from pilotage.resources.node_types import EligibleCEs, EligibleNodes, EligibleQueues, NodeType, down_to
from pilotage.resources.requirements import Requirements, read_requirements
from pilotage.resources.tree import ResourceTree

_NOTHING: Mapping[str, object] = MappingProxyType({})


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
