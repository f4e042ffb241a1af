"""What operators set on nodes from afar, and how the nodes' pilots hear of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from pilotage.classad_evaluation import bounded
from pilotage.classads import InvalidClassAdError
from pilotage.errors import InvalidInputError, NotFoundError, StateConflictError, Violation
from pilotage_server.core.identity import Identity
from pilotage_server.core.node_json import settable_attributes
from pilotage_server.core.node_settings import NodeId, NodeSettings, not_settable
from pilotage_server.operations.world import World
from pilotage_server.storage import node_settings as stored
from pilotage_server.storage.engine import Unit
from pilotage_server.storage.pilots import NodePilot, load_node_pilots


def set_node_attributes(
    unit: Unit,
    world: World,
    identity: Identity,
    nodes: Sequence[NodeId],
    change: tuple[Mapping[str, str], Sequence[str]],
    agent: str = "",
) -> tuple[NodeSettings, ...]:
    """Set and unset attributes of all these nodes, and return what is set on them now; their pilots are told.

    `agent` = in whose turn that is; "" = in none.

    Raises
    ------
    InvalidInputError
        An expression is none, or the policy of a node does not let an attribute be set.
    NotFoundError
        No pilot is on one of the nodes, and nothing was ever set on it.
    StateConflictError
        Somebody else is changing one of them.
    """
    new, unset = change
    _check(nodes, new, unset)
    pilots = load_node_pilots(unit.session, nodes)
    before = stored.load_node_settings(unit.session, nodes)
    _check_nodes(nodes, pilots, before, new)
    old = (before.get(node, NodeSettings(node)) for node in nodes)
    changed = [settings.changed(new, unset, identity.owner, unit.now, agent) for settings in old]
    if not stored.store_node_settings(unit.session, changed):
        raise StateConflictError("somebody else is changing one of these nodes; try again")
    for pilot in pilots:
        unit.after_commit(partial(world.call_pilot, pilot.stamp))
    return tuple(changed)


def list_node_attributes(unit: Unit, nodes: Sequence[NodeId] = ()) -> tuple[NodeSettings, ...]:
    """Return what is set on these nodes (none = on all that have something set), by site and name."""
    found = stored.load_node_settings(unit.session, nodes or None)
    return tuple(settings for settings in found.values() if settings.settings)


def _check(nodes: Sequence[NodeId], new: Mapping[str, str], unset: Sequence[str]) -> None:
    violations = [] if nodes else [Violation("nodes", "there is no node to change")]
    if not new and not unset:
        violations.append(Violation("set", "there is nothing to set or unset"))
    if len(set(nodes)) < len(nodes):
        violations.append(Violation("nodes", "a node is there twice"))
    for name, expression in new.items():
        try:
            bounded(expression)
        except InvalidClassAdError as error:
            violations += (Violation(f"set.{name}", violation.why) for violation in error.violations)
    if violations:
        raise InvalidInputError(*violations)


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
