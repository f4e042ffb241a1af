"""GetDemand: what a site director needs to know to send the right number of pilots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from pilotage.bans import active_bans
from pilotage.resource_tree import QueueId
from pilotage_server.core.demand import Demand, IdleSlots, QueueSupply, demands, idle_slots, without_banned
from pilotage_server.core.empty_returns import LATELY, EmptyPilot, EmptyReturns, empty_returns
from pilotage_server.operations.trials import closed_at, not_throttled
from pilotage_server.operations.world import World
from pilotage_server.storage.empty_pilots import load_empty_pilots, load_proven
from pilotage_server.storage.engine import Unit
from pilotage_server.storage.pilots import PilotCounts, count_pilots
from pilotage_server.storage.slots import load_slots


@dataclass(frozen=True, slots=True)
class DemandAnswer:
    """The demand, each job counted once, and what there is at each of the queues, in the order asked."""

    demands: tuple[Demand, ...]
    supplies: tuple[QueueSupply, ...]


def get_demand(unit: Unit, world: World, queues: Sequence[QueueId]) -> DemandAnswer:
    """Return the waiting work that the queues could take now, and their supplies."""
    banned = frozenset(queue for queue in queues if active_bans(world.bans, queue, unit.now))
    open_queues = without_banned(queues, banned)
    counts = count_pilots(unit.session)
    idle = idle_slots(not_throttled(world, load_slots(unit.session)))
    empty = _empty_returns(unit, queues)
    # After the slots: a job that a slot has just got is not to wait still where the slot is idle no more.
    with world.lock:
        waiting = world.waiting.waiting()
    return DemandAnswer(
        demands(waiting, open_queues, world.reach),
        tuple(
            replace(
                _supply(world, queue, counts.get(queue, PilotCounts()), idle.get(queue, ()), unit.now),
                banned=queue in banned,
                empty_returns=empty.get(queue),
            )
            for queue in queues
        ),
    )


def _empty_returns(unit: Unit, queues: Sequence[QueueId]) -> dict[QueueId, EmptyReturns | None]:
    found = load_empty_pilots(unit.session, unit.now - LATELY, queues)
    return {queue: empty_returns(pilots, _proven(unit, queue, pilots), unit.now) for queue, pilots in found.items()}


def _proven(unit: Unit, queue: QueueId, pilots: Sequence[EmptyPilot]) -> datetime | None:
    # One that was registered before them all says nothing against any.
    return load_proven(unit.session, queue, min(pilot.registered for pilot in pilots))


def _supply(
    world: World, queue: QueueId, pilots: PilotCounts, idle: tuple[IdleSlots, ...], now: datetime
) -> QueueSupply:
    effective = world.tree.effective(queue, None)
    throttles = closed_at(world, queue)
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
