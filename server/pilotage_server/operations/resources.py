"""Queues with what they offer and what they hold, and the selection of nodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from pilotage import eligible_nodes
from pilotage.bans import active_bans
from pilotage.effective import EffectiveQueue
from pilotage.eligible_nodes import NodeType
from pilotage.errors import InvalidInputError, Violation
from pilotage.folding import fold
from pilotage.job_description import Value
from pilotage.job_fit import ban_refusal
from pilotage.resource_tree import QueueId
from pilotage_server.core.identity import Identity
from pilotage_server.core.waiting import Waiting
from pilotage_server.operations.pool_views import visible_vo
from pilotage_server.operations.world import World
from pilotage_server.storage.engine import Unit
from pilotage_server.storage.pilots import PilotCounts, count_pilots
from pilotage_server.storage.running import running_by_queue

EligibleNodes = Mapping[str, Mapping[str, tuple[str, ...]]]
"""Queues by CE by site, in the order of the tree; nothing is empty above the level that was asked for."""


@dataclass(frozen=True, slots=True)
class QueueView:
    """A queue with its effective values and where they come from, and the counts of what it holds.

    `banned` says why it is banned, "" = it is not. `waiting` counts the jobs that could go there, bans apart,
    `running` those that hold a lease there, `pilots` those that live.
    """

    id: QueueId
    parameters: Mapping[str, Value]
    origins: Mapping[str, str]
    enabled: bool
    banned: str
    pools: int
    waiting: int
    running: int
    pilots: int


@dataclass(frozen=True, slots=True)
class NodeQuery:
    """Which nodes are wanted: for `vo` ("" = the caller's own), down to `level`, offering what is selected."""

    vo: str = ""
    level: str = NodeType.QUEUE
    ce_select: Mapping[str, Value] = field(default_factory=dict)
    queue_select: Mapping[str, Value] = field(default_factory=dict)


def list_queues(unit: Unit, world: World, identity: Identity, vo: str = "", site: str = "") -> tuple[QueueView, ...]:
    """Return the queues as `vo` sees them, in the order of the tree; those without access for it are left out.

    A user sees his own VO's view and counts; "" shows an operator the queues without any VO's overlay.

    Raises
    ------
    PermissionDeniedError
        When a user asks for the view of another VO than his own.
    """
    shown = visible_vo(identity, vo)
    queues = [
        queue
        for queue in world.tree.as_seen_by(shown).values()
        if queue.admits() and (not site or fold(queue.id.site) == fold(site))
    ]
    with world.lock:
        waiting = world.waiting.waiting()
    seen = [wait for wait in waiting if shown is None or fold(wait.task_queue.account.vo) == fold(shown)]
    counts = _Counts(shown, running_by_queue(unit.session), count_pilots(unit.session), seen)
    return tuple(_view(unit, world, queue, counts) for queue in queues)


@dataclass(frozen=True, slots=True)
class _Counts:
    vo: str | None
    running: Mapping[QueueId, int]
    pilots: Mapping[QueueId, PilotCounts]
    waiting: Iterable[Waiting]


def _view(unit: Unit, world: World, queue: EffectiveQueue, counts: _Counts) -> QueueView:
    values = queue.values.values()
    bans = active_bans(world.bans, queue.id, unit.now)
    reach = world.reach
    vos = () if counts.vo is None else (counts.vo,)
    return QueueView(
        id=queue.id,
        parameters={value.name: value.value for value in values},
        origins={value.name: " and ".join(map(str, value.origins)) for value in values},
        enabled=queue.is_enabled(),
        banned="; ".join(ban_refusal(ban).why for ban in bans),
        pools=len(world.mappings.pools(queue.id, vos)),
        waiting=sum(wait.count for wait in counts.waiting if reach.can_go(wait.task_queue, queue.id)),
        running=counts.running.get(queue.id, 0),
        pilots=counts.pilots.get(queue.id, PilotCounts()).alive,
    )


def get_eligible_nodes(unit: Unit, world: World, identity: Identity, query: NodeQuery) -> EligibleNodes:
    """Return the tree of what fits and is not banned, cut at the level asked for.

    At level CE no queues are told, at level Site no CEs; a node is there when a queue in it is.

    Raises
    ------
    InvalidInputError
        For an unknown level or a selection without a meaning.
    PermissionDeniedError
        When a user asks for another VO than his own.
    """
    level = _level(query.level)
    vo = visible_vo(identity, query.vo or identity.vo)
    fitting = eligible_nodes.get_eligible_nodes(
        world.tree.tree, vo, ce_select=query.ce_select, queue_select=query.queue_select
    )
    found: dict[str, dict[str, tuple[str, ...]]] = {}
    for site, ces in fitting.items():
        for ce, queues in ces.items():
            free = tuple(queue for queue in queues if not active_bans(world.bans, QueueId(site, ce, queue), unit.now))
            if free:
                found.setdefault(site, {})[ce] = free
    return _cut(found, level)


def _level(name: str) -> NodeType:
    for level in NodeType:
        if fold(name) == fold(level):
            return level
    levels = ", ".join(NodeType)
    raise InvalidInputError(Violation("level", f"{name!r} is not a level of the tree: {levels}"))


def _cut(nodes: Mapping[str, Mapping[str, tuple[str, ...]]], level: NodeType) -> EligibleNodes:
    match level:
        case NodeType.SITE:
            return {site: {} for site in nodes}
        case NodeType.CE:
            return {site: dict.fromkeys(ces, ()) for site, ces in nodes.items()}
        case NodeType.QUEUE:
            return nodes
