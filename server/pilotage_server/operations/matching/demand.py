"""GetDemand: the waiting work and the supply of queues and sets of queues, for directors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from pilotage.resources.eligibility import active_bans, next_downtime
from pilotage.resources.tree import MAX_WALL_TIME, QueueId
from pilotage.values.demand import Demand, DemandAnswer, EmptyReturns, IdleSlots, QueueSupply
from pilotage_server.core.identity import UNBOUND, AgentBounds
from pilotage_server.core.matching.demand import (
    EMPTY_RETURN_WINDOW,
    EmptyPilot,
    LimitRooms,
    demand_of,
    empty_returns,
    idle_slots,
    longest_job_s,
    quota_rooms,
    without_banned,
)
from pilotage_server.operations.accounting.limits import running_counts
from pilotage_server.operations.matching.trials import not_throttled, throttles_at
from pilotage_server.operations.server_state import ServerState
from pilotage_server.storage.database.transaction import Transaction
from pilotage_server.storage.pilots import (
    PilotCounts,
    count_pilots,
    load_empty_pilots,
    load_proven,
    load_set_pilots,
    load_slots,
)


def get_demand(
    transaction: Transaction,
    state: ServerState,
    queues: Sequence[QueueId],
    bounds: AgentBounds = UNBOUND,
    queue_set: Sequence[str] = (),
) -> DemandAnswer:
    """Return the waiting work, of the VOs in the bounds, that the queues could take now, and their supplies.

    `queue_set` = the patterns of a set of queues whose own supply is returned too; none = there is no set.
    """
    banned = frozenset(queue for queue in queues if _is_closed(state, queue, transaction.now))
    open_queues = without_banned(queues, banned)
    left_s = {
        index: left
        for index, queue in open_queues.items()
        if (effective := state.tree.effective(queue, None)) is not None
        and (left := longest_job_s(effective, state.bans, state.rules.end_margin, transaction.now)) is not None
    }
    counts = count_pilots(transaction.session)
    idle = idle_slots(not_throttled(state, load_slots(transaction.session)))
    running = running_counts(transaction, state, open_queues.values())
    empty = _empty_returns(transaction, queues)
    set_supply = _set_supply(transaction, queue_set)
    # Read after the slots: a job must not count as waiting when its slot no longer counts as idle.
    with state.lock:
        waiting = [each for each in state.waiting.waiting() if bounds.has_vo(each.task_queue.account.vo)]
        quotas = quota_rooms(state.shares.round(transaction.now), state.waiting.accounts(), open_queues)
    rooms = LimitRooms(open_queues, state.limits, running, quotas)
    demands: list[Demand] = []
    for each in waiting:
        demand = demand_of(each, open_queues, state.queue_access, left_s)
        bounded = None if demand is None else rooms.bounded(demand, each.task_queue)
        if bounded is not None:
            demands.append(bounded)
    return DemandAnswer(
        tuple(demands),
        tuple(
            replace(
                _supply(state, queue, counts.get(queue, PilotCounts()), idle.get(queue, ()), transaction.now),
                banned=queue in banned,
                empty_returns=empty.get(queue),
            )
            for queue in queues
        ),
        set_supply,
        rooms.counting,
    )


def _is_closed(state: ServerState, queue: QueueId, now: datetime) -> bool:
    """Return whether the queue gets no pilots: it is banned, or their lives would reach into its next downtime."""
    if active_bans(state.bans, queue, now):
        return True
    coming, effective = next_downtime(state.bans, queue, now), state.tree.effective(queue, None)
    if coming is None or coming.downtime is None or effective is None:
        return False
    life_s = effective.stated_amount(MAX_WALL_TIME)
    return life_s is not None and float(life_s) > (coming.downtime - now).total_seconds()


def _set_supply(transaction: Transaction, queue_set: Sequence[str]) -> QueueSupply:
    if not queue_set:
        return QueueSupply(known=True)
    pilots = load_set_pilots(transaction.session, queue_set, transaction.now - EMPTY_RETURN_WINDOW)
    returns = empty_returns(pilots.empty, pilots.proven, transaction.now)
    return QueueSupply(known=True, pilots_waiting=pilots.on_their_way, empty_returns=returns)


def _empty_returns(transaction: Transaction, queues: Sequence[QueueId]) -> dict[QueueId, EmptyReturns | None]:
    found = load_empty_pilots(transaction.session, transaction.now - EMPTY_RETURN_WINDOW, queues)
    return {
        queue: empty_returns(pilots, _proven(transaction, queue, pilots), transaction.now)
        for queue, pilots in found.items()
    }


def _proven(transaction: Transaction, queue: QueueId, pilots: Sequence[EmptyPilot]) -> datetime | None:
    # A pilot that was registered before all of them clears none of them.
    return load_proven(transaction.session, queue, min(pilot.registered for pilot in pilots))


def _supply(
    state: ServerState, queue: QueueId, pilots: PilotCounts, idle: tuple[IdleSlots, ...], now: datetime
) -> QueueSupply:
    effective = state.tree.effective(queue, None)
    throttles = throttles_at(state, queue)
    held = [each for each in throttles if each.is_held(now)]
    return QueueSupply(
        known=effective is not None,
        pilots_waiting=pilots.arriving,
        pilots_running=pilots.alive,
        idle=idle,
        parameters=effective.parameters() if effective is not None else {},
        throttled=next(map(str, held or throttles), ""),
        held=bool(held),
    )
