"""Nodes: attributes that operators set, listings of slots, and GetNodeUse for the drain controller."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from pilotage.classads.evaluation import compile_bounded
from pilotage.classads.library import InvalidClassAdError
from pilotage.classads.text import ad_text
from pilotage.errors import InvalidInputError, NotFoundError, PermissionDeniedError, StateConflictError, Violation
from pilotage.resources.eligibility import active_bans
from pilotage.resources.tree import QueueId
from pilotage_server.core.audit import AuditKind, cut, line_difference
from pilotage_server.core.identity import UNBOUND, AgentBounds, Identity, check_queues
from pilotage_server.core.pilots.node_use import ActiveSettings, FarmUse, NodeUseQuery, node_uses, waiting_by_cpus
from pilotage_server.core.pilots.nodes import NodeId, NodeSettings, not_settable, settable_attributes
from pilotage_server.core.pilots.pilots import SlotInfo
from pilotage_server.core.pilots.slot_counts import NodeSlotCounts, count_by_node
from pilotage_server.core.pilots.slot_listing import satisfies, slot_ads
from pilotage_server.operations.audit import record_change
from pilotage_server.operations.server_state import ServerState
from pilotage_server.storage import pilots as stored
from pilotage_server.storage.database.transaction import Transaction
from pilotage_server.storage.leadership import active_agents
from pilotage_server.storage.pilots import (
    NodePilot,
    change_pilots,
    load_node_pilots,
    load_node_settings,
    load_slots,
    load_slots_of_pilots,
)


def set_node_attributes(
    transaction: Transaction,
    state: ServerState,
    identity: Identity,
    nodes: Sequence[NodeId],
    change: tuple[Mapping[str, str], Sequence[str]],
    agent: str = "",
) -> tuple[NodeSettings, ...]:
    """Set and unset attributes of all these nodes, notify their pilots, and return the new settings.

    `change` = the expressions to set by name, and the names to unset. `agent` = the leading agent that does it; "" =
    none.

    Raises
    ------
    InvalidInputError
        An expression is invalid, or the policy of a node does not allow the attribute.
    NotFoundError
        A node has no pilot, and nothing was ever set on it.
    PermissionDeniedError
        The caller is bound to other queues than those of the nodes' pilots.
    StateConflictError
        Another call is changing one of the nodes.
    """
    new, unset = change
    _check(nodes, new, unset)
    pilots = load_node_pilots(transaction.session, nodes)
    _check_bounds(identity, nodes, pilots)
    before = stored.load_node_settings(transaction.session, nodes)
    _check_nodes(nodes, pilots, before, new)
    old = (before.get(node, NodeSettings(node)) for node in nodes)
    changed = [settings.changed(new, unset, identity.owner, transaction.now, agent) for settings in old]
    if not stored.store_node_settings(transaction.session, changed):
        raise StateConflictError("another call is changing one of these nodes; try again")
    for pilot in pilots:
        transaction.after_commit(partial(state.publish_command, pilot.stamp))
    difference = line_difference(_described(before.values()), _described(changed))
    subject = ", ".join(map(str, nodes))
    record_change(transaction, identity, AuditKind.NODE, cut(subject), difference=difference, agent=agent)
    return tuple(changed)


def _described(found: Iterable[NodeSettings]) -> Iterator[str]:
    for settings in found:
        for name, expression in settings.expressions.items():
            yield f"{settings.node}: {name} = {expression}"


def request_reports(transaction: Transaction, state: ServerState, node: NodeId) -> tuple[str, ...]:
    """Make the pilots on a node report their slots at once; returns their stamps.

    Raises
    ------
    NotFoundError
        The node has no live pilot.
    """
    stamps = tuple(pilot.stamp for pilot in load_node_pilots(transaction.session, [node]))
    if not stamps:
        raise NotFoundError("live pilot on node", str(node))
    change_pilots(transaction.session, stamps, {"report_requested": transaction.now})
    for stamp in stamps:
        transaction.after_commit(partial(state.publish_command, stamp))
    return stamps


def list_node_attributes(transaction: Transaction, nodes: Sequence[NodeId] = ()) -> tuple[NodeSettings, ...]:
    """Return the settings of these nodes (none = of all that have any), by site and name."""
    found = stored.load_node_settings(transaction.session, nodes or None)
    return tuple(settings for settings in found.values() if settings.settings)


def _check(nodes: Sequence[NodeId], new: Mapping[str, str], unset: Sequence[str]) -> None:
    violations = [] if nodes else [Violation("nodes", "there is no node to change")]
    if not new and not unset:
        violations.append(Violation("set", "there is nothing to set or unset"))
    if len(set(nodes)) < len(nodes):
        violations.append(Violation("nodes", "a node occurs twice"))
    for name, expression in new.items():
        try:
            compile_bounded(expression)
        except InvalidClassAdError as error:
            violations += (Violation(f"set.{name}", violation.why) for violation in error.violations)
    if violations:
        raise InvalidInputError(*violations)


def _check_bounds(identity: Identity, nodes: Sequence[NodeId], pilots: Iterable[NodePilot]) -> None:
    """Refuse nodes of other queues; an agent that is bound may not change nodes without live pilots either."""
    if not identity.bounds.queues:
        return
    queues: dict[NodeId, list[QueueId]] = {}
    for pilot in pilots:
        queues.setdefault(pilot.node, []).append(pilot.queue)
    check_queues(identity, (queue for each in queues.values() for queue in each))
    unknown = next((node for node in nodes if node not in queues), None)
    if unknown is not None:
        raise PermissionDeniedError(f"{unknown} has no pilot of a queue that the token of {identity.owner} is bound to")


def _check_nodes(
    nodes: Sequence[NodeId],
    pilots: Iterable[NodePilot],
    before: Mapping[NodeId, NodeSettings],
    new: Mapping[str, str],
) -> None:
    settable: dict[NodeId, set[str]] = {}
    for pilot in pilots:
        settable.setdefault(pilot.node, set()).update(settable_attributes(pilot.node_json))
    for node in nodes:
        if node not in settable and (new or node not in before):
            raise NotFoundError("live pilot on node", str(node))
    violations = [
        Violation(f"set.{name}", f"the policy of {node} does not let it be set (SETTABLE_ATTRS_ADMINISTRATOR)")
        for node in nodes
        for name in not_settable(new, settable.get(node, ()))
    ]
    if violations:
        raise InvalidInputError(*violations)


@dataclass(frozen=True, slots=True)
class ListedSlot:
    """A slot and the text of its complete ad, "" = not requested."""

    info: SlotInfo
    ad: str = ""


def list_slots(
    transaction: Transaction,
    queue: QueueId | None = None,
    constraint: str = "",
    *,
    node: NodeId | None = None,
    ads_wanted: bool = False,
) -> tuple[ListedSlot, ...]:
    """Return the slots of live pilots of a queue and on a node (None = of all), by node and name.

    With a constraint, only those whose ads satisfy it; raises InvalidInputError for an invalid constraint.
    """
    found = load_slots(transaction.session, queue, node)
    if not constraint and not ads_wanted:
        return tuple(ListedSlot(info) for info in found)
    try:
        wanted = compile_bounded(constraint or "true")
    except InvalidClassAdError as error:
        raise InvalidInputError(*(Violation("constraint", each.why) for each in error.violations)) from error
    return tuple(
        ListedSlot(info, ad_text(ad.plain()) if ads_wanted else "")
        for info, ad in slot_ads(found, transaction.now)
        if satisfies(ad, wanted)
    )


def count_slots(transaction: Transaction, site: str = "") -> tuple[NodeSlotCounts, ...]:
    """Return the counts of slots of live pilots at a site ("" = at all), by node."""
    return count_by_node(load_slots_of_pilots(transaction.session, site))


def get_node_use(
    transaction: Transaction,
    state: ServerState,
    queues: Sequence[QueueId],
    attribute: str,
    bounds: AgentBounds = UNBOUND,
) -> FarmUse:
    """Return the nodes with live pilots of these queues (none = of all) in the bounds, and the demand for them.

    The cost grows with the number of slots and task queues, not with waiting jobs.
    """
    query = NodeUseQuery(attribute, frozenset(queues))
    slots = [info for info in load_slots(transaction.session) if bounds.has_queue(info.queue)]
    with state.lock:
        waiting = state.waiting.waiting()
    present = sorted({info.queue for info in slots if query.includes(info.queue)})
    open_queues = tuple(queue for queue in present if not active_bans(state.bans, queue, transaction.now))
    active = ActiveSettings(
        load_node_settings(transaction.session), active_agents(transaction.session, transaction.now)
    )
    return FarmUse(
        node_uses(slots, query, open_queues, active),
        open_queues,
        waiting_by_cpus(waiting, open_queues, state.queue_access),
    )
