"""Probes of open circuit breakers: a slot at such a location gets a single job, and only when a probe is due.

A probe is claimed in the database together with its job, so that several servers probe a location once. Its attempt is
marked: jobs from servers that do not know of the open breaker yet prove nothing. On the wire and in the database an
open breaker is a *throttle* and a probe is a *trial*.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from pilotage.resources.tree import QueueId
from pilotage_server.core.health.black_holes import Location, locations_of
from pilotage_server.core.health.throttles import Throttle, trial_deadline
from pilotage_server.core.pilots.pilots import SlotInfo
from pilotage_server.operations.matching.offers import Offers, RequestingPilot
from pilotage_server.operations.matching.work import Match
from pilotage_server.operations.server_state import ServerState
from pilotage_server.storage import health as stored
from pilotage_server.storage.attempts import mark_trials
from pilotage_server.storage.database.transaction import Transaction


@dataclass(frozen=True, slots=True)
class AdmittedOffers:
    """What of a pilot's offers may be matched; `trials` = the locations of which its one slot is a probe."""

    offers: Offers
    trials: tuple[Location, ...] = ()


def throttles_at(state: ServerState, queue: QueueId, node: str = "") -> list[Throttle]:
    """Return the open breakers at a slot of the queue, the narrowest location first; "" = on any node."""
    with state.lock:
        return [state.throttles[each] for each in locations_of(queue, node) if each in state.throttles]


def not_throttled(state: ServerState, slots: Iterable[SlotInfo]) -> Iterator[SlotInfo]:
    """Yield the slots at locations without an open breaker."""
    with state.lock:
        throttles = state.throttles
    return (info for info in slots if throttles.keys().isdisjoint(locations_of(info.queue, info.node)))


def admitted_offers(
    transaction: Transaction, state: ServerState, pilot: RequestingPilot, offers: Offers
) -> AdmittedOffers | None:
    """Return what of the offers may be matched now; None = nothing, because of an open breaker."""
    throttles = throttles_at(state, pilot.credential.queue, pilot.node)
    if not throttles:
        return AdmittedOffers(offers)
    slot = next((slot for slot in offers.slots if slot.occupied is None), None)
    if slot is None:
        return None
    trials = claim_trials(transaction, state, throttles)
    return AdmittedOffers(replace(offers, slots=(slot._replace(ahead=0, max_jobs=1),)), trials) if trials else None


def claim_trials(transaction: Transaction, state: ServerState, throttles: Sequence[Throttle]) -> tuple[Location, ...]:
    """Claim the probes of all these locations for one job; none = some location has none due now."""
    if not all(each.next_trial is not None and each.next_trial <= transaction.now for each in throttles):
        return ()
    claimed = tuple(each.location for each in throttles if _is_claimed(transaction, state, each))
    if len(claimed) < len(throttles):
        _give_back(transaction, claimed)
        return ()
    return claimed


def settle_trial(transaction: Transaction, trial: AdmittedOffers, matches: Sequence[Match]) -> None:
    """Mark the attempt as the probe; without a job, release the probe for another slot."""
    if matches:
        mark_trials(transaction.session, [(match.job_id, match.attempt) for match in matches])
    else:
        _give_back(transaction, trial.trials)


def _give_back(transaction: Transaction, claimed: Iterable[Location]) -> None:
    for location in claimed:
        stored.give_back_trial(transaction.session, location, transaction.now)


def _is_claimed(transaction: Transaction, state: ServerState, each: Throttle) -> bool:
    until = trial_deadline(each, state.rules.health, transaction.now)
    return stored.claim_trial(transaction.session, each.location, until, transaction.now)
