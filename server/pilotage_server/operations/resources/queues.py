"""The listing of queues with their values and counts, and the selection of eligible nodes of the tree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from pilotage.job_description import Value
from pilotage.resources import selection
from pilotage.resources.eligibility import active_bans, ban_refusal, next_downtime
from pilotage.resources.inheritance import EffectiveQueue
from pilotage.resources.node_types import NodeType, node_type
from pilotage.resources.tree import QueueId
from pilotage.text import fold
from pilotage_server.core.health.black_holes import locations_of
from pilotage_server.core.identity import Identity
from pilotage_server.core.queueing.waiting_jobs import WaitingTaskQueue
from pilotage_server.operations.resources.pools import visible_vo
from pilotage_server.operations.resources.supply import pilot_problems
from pilotage_server.operations.server_state import ServerState
from pilotage_server.storage.database.transaction import Transaction
from pilotage_server.storage.leases import LeasedJobs, leased_by_queue
from pilotage_server.storage.pilots import PilotCounts, count_pilots

EligibleNodes = Mapping[str, Mapping[str, tuple[str, ...]]]
"""Queues by CE by site, in the order of the tree; nothing is empty above the level of the query."""


@dataclass(frozen=True, slots=True)
class QueueView:
    """A queue with its effective values, their origins, and its counts.

    `banned` = the reason of its ban, "" = none. `waiting` counts the jobs that could go there, apart from bans,
    `matched` those that were sent there and have not started, `running` those that have, `pilots` those that are alive.
    `pilot_problem` = why no pilot is there to take jobs, "" = some are, or no reason is known. `health` = the throttles
    of the queue and its site. `downtime` = the next one, unless the queue is closed for it already.
    """

    id: QueueId
    parameters: Mapping[str, Value]
    origins: Mapping[str, str]
    enabled: bool
    banned: str
    pools: int
    waiting: int
    matched: int
    running: int
    pilots: int
    pilot_problem: str
    health: str = ""
    downtime: str = ""


@dataclass(frozen=True, slots=True)
class NodeQuery:
    """A query of nodes: for `vo` ("" = the caller's own), down to `level`, with the selected values."""

    vo: str = ""
    level: str = NodeType.QUEUE
    ce_select: Mapping[str, Value] = field(default_factory=dict)
    queue_select: Mapping[str, Value] = field(default_factory=dict)


def list_queues(
    transaction: Transaction, state: ServerState, identity: Identity, vo: str = "", site: str = ""
) -> tuple[QueueView, ...]:
    """Return the queues as `vo` sees them, in the order of the tree, without those that it may not use.

    A user sees the view and the counts of the user's VO; "" shows an operator the queues without overlays. An agent
    sees the queues that it is bound to.

    Raises
    ------
    PermissionDeniedError
        When a user asks for the view of another VO.
    """
    shown = visible_vo(identity, vo)
    queues = [
        queue
        for queue in state.tree.view_for(shown).values()
        if queue.admits() and identity.bounds.has_queue(queue.id) and (not site or fold(queue.id.site) == fold(site))
    ]
    with state.lock:
        waiting = state.waiting.waiting()
    seen = [wait for wait in waiting if shown is None or fold(wait.task_queue.account.vo) == fold(shown)]
    facts = _Facts(
        leased_by_queue(transaction.session, shown),
        count_pilots(transaction.session),
        pilot_problems(transaction, {queue.id: queue for queue in queues if queue.is_enabled()}),
        seen,
    )
    return tuple(_view(transaction, state, queue, shown, facts) for queue in queues)


@dataclass(frozen=True, slots=True)
class _Facts:
    """What is known of all queues; `waiting` are the task queues that the caller sees."""

    leased: Mapping[QueueId, LeasedJobs]
    pilots: Mapping[QueueId, PilotCounts]
    problems: Mapping[QueueId, str]
    waiting: Sequence[WaitingTaskQueue]


def _view(
    transaction: Transaction,
    state: ServerState,
    queue: EffectiveQueue,
    vo: str | None,
    facts: _Facts,
) -> QueueView:
    leased = facts.leased.get(queue.id, LeasedJobs())
    values = queue.values.values()
    bans = active_bans(state.bans, queue.id, transaction.now)
    coming = next_downtime(state.bans, queue.id, transaction.now) if not bans else None
    with state.lock:
        throttles = [state.throttles[each] for each in locations_of(queue.id, "") if each in state.throttles]
    access = state.queue_access
    vos = () if vo is None else (vo,)
    return QueueView(
        id=queue.id,
        parameters={value.name: value.value for value in values},
        origins={value.name: " and ".join(map(str, value.origins)) for value in values},
        enabled=queue.is_enabled(),
        banned="; ".join(ban_refusal(ban).why for ban in bans),
        pools=len(state.mappings.pools(queue.id, vos)),
        waiting=sum(wait.count for wait in facts.waiting if access.admits(wait.task_queue, queue.id)),
        matched=leased.matched,
        running=leased.running,
        pilots=facts.pilots.get(queue.id, PilotCounts()).alive,
        pilot_problem=facts.problems.get(queue.id, ""),
        health="; ".join(map(str, throttles)),
        downtime=""
        if coming is None
        else f"a downtime of {coming} begins at {_time(coming.downtime)}: {coming.reason}",
    )


def _time(time: datetime | None) -> str:
    return time.isoformat(timespec="seconds") if time else ""


def get_eligible_nodes(
    transaction: Transaction, state: ServerState, identity: Identity, query: NodeQuery
) -> EligibleNodes:
    """Return the eligible nodes that are not banned, down to the level of the query.

    Level CE shows no queues, level Site no CEs; a node is included when it has an eligible queue.

    Raises
    ------
    InvalidInputError
        For an unknown level or an invalid selection.
    PermissionDeniedError
        When a user asks for another VO.
    """
    level = node_type(query.level)
    vo = visible_vo(identity, query.vo or identity.vo)
    fitting = selection.get_eligible_nodes(
        state.tree.tree, vo, ce_select=query.ce_select, queue_select=query.queue_select
    )
    found: dict[str, dict[str, tuple[str, ...]]] = {}
    for site, ces in fitting.items():
        for ce, queues in ces.items():
            free = tuple(
                queue for queue in queues if not active_bans(state.bans, QueueId(site, ce, queue), transaction.now)
            )
            if free:
                found.setdefault(site, {})[ce] = free
    return _cut(found, level)


def _cut(nodes: Mapping[str, Mapping[str, tuple[str, ...]]], level: NodeType) -> EligibleNodes:
    match level:
        case NodeType.SITE:
            return {site: {} for site in nodes}
        case NodeType.CE:
            return {site: dict.fromkeys(ces, ()) for site, ces in nodes.items()}
        case NodeType.QUEUE:
            return nodes
