"""Trials of throttled places: a slot there is matched only where a trial is due, and then with a single job.

A trial is claimed in the database together with its job, so that several servers try a place once. Its attempt is
marked: what servers hand out there that have not heard of the throttle yet proves nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from pilotage.resource_tree import QueueId
from pilotage_server.core.health import Place, places_of
from pilotage_server.core.pilots import SlotInfo
from pilotage_server.core.throttles import Throttle, trial_ends
from pilotage_server.operations.match_slots import Asking
from pilotage_server.operations.slot_offers import Offers
from pilotage_server.operations.work import Match
from pilotage_server.operations.world import World
from pilotage_server.storage import throttles as stored
from pilotage_server.storage.attempts import mark_trials
from pilotage_server.storage.engine import Unit


@dataclass(frozen=True, slots=True)
class Admitted:
    """What of a pilot's offers may be matched; `trials` = the throttled places that its one slot is a trial of."""

    offers: Offers
    trials: tuple[Place, ...] = ()


def closed_at(world: World, queue: QueueId, node: str = "") -> list[Throttle]:
    """Return the throttles of the places that a slot of the queue is at, the narrowest first; "" = on any node."""
    with world.lock:
        return [world.throttles[place] for place in places_of(queue, node) if place in world.throttles]


def not_throttled(world: World, slots: Iterable[SlotInfo]) -> Iterator[SlotInfo]:
    """Yield the slots that get more than single jobs."""
    with world.lock:
        closed = world.throttles
    return (info for info in slots if not any(place in closed for place in places_of(info.queue, info.node)))


def admitted(unit: Unit, world: World, pilot: Asking, offers: Offers) -> Admitted | None:
    """Return what of the offers may be matched now; None = nothing, for a place that they are at is throttled."""
    throttles = closed_at(world, pilot.credential.queue, pilot.node)
    if not throttles:
        return Admitted(offers)
    slot = next((slot for slot in offers.slots if slot.occupied is None), None)
    if slot is None:
        return None
    trials = claim_trials(unit, world, throttles)
    return Admitted(replace(offers, slots=(slot._replace(ahead=0, max_jobs=1),)), trials) if trials else None


def claim_trials(unit: Unit, world: World, throttles: Sequence[Throttle]) -> tuple[Place, ...]:
    """Claim the trials of all these places for one job, and return the places; none = some place has none now."""
    if not all(_is_due(unit, each) for each in throttles):
        return ()
    claimed = tuple(each.place for each in throttles if _is_claimed(unit, world, each))
    if len(claimed) < len(throttles):
        _give_back(unit, claimed)
        return ()
    return claimed


def settle_trial(unit: Unit, trial: Admitted, matches: Sequence[Match]) -> None:
    """Note which attempt is the trial; where there was no job for the slot, let another have it."""
    if matches:
        mark_trials(unit.session, [(match.job_id, match.attempt) for match in matches])
    else:
        _give_back(unit, trial.trials)


def _give_back(unit: Unit, claimed: Iterable[Place]) -> None:
    for place in claimed:
        stored.give_back_trial(unit.session, place, unit.now)


def _is_due(unit: Unit, each: Throttle) -> bool:
    return each.next_trial is not None and each.next_trial <= unit.now


def _is_claimed(unit: Unit, world: World, each: Throttle) -> bool:
    until = trial_ends(each, world.rules.health, unit.now)
    return stored.claim_trial(unit.session, each.place, until, unit.now)
