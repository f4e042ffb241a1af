"""Orders occupied slots to vacate for better jobs."""

from __future__ import annotations

from collections.abc import Sequence

from pilotage.values.accounts import Account
from pilotage.values.offers import SlotOffer, VacateOrder
from pilotage_server.core.accounting.limits import LimitRound
from pilotage_server.core.matching.job_views import SingleJobs
from pilotage_server.core.matching.preemption import Occupant, PreemptionRules, preemption_order
from pilotage_server.core.matching.slot_match import MatchRequest
from pilotage_server.operations.accounting.limits import running_counts
from pilotage_server.operations.matching.bind import load_heads
from pilotage_server.operations.matching.offers import Offers, RequestingPilot
from pilotage_server.operations.server_state import ServerState
from pilotage_server.storage.attempts import load_attempts
from pilotage_server.storage.database.transaction import Transaction


def vacate_orders(
    transaction: Transaction, state: ServerState, pilot: RequestingPilot, offers: Offers
) -> tuple[VacateOrder, ...]:
    """Return the orders to vacate occupied slots that better jobs want; the free slots have been matched."""
    occupants = _occupants(transaction, pilot, [slot for slot in offers.slots if slot.occupied is not None])
    if not occupants:
        return ()
    credential = pilot.credential
    rules = PreemptionRules(occupants, state.orders, state.rules.preemption_requirements, state.is_offered)
    limits = LimitRound(running_counts(transaction, state, [credential.queue]))
    with state.lock:
        slots = preemption_order(offers.slots, rules)
    single_jobs = SingleJobs()
    request = MatchRequest(
        credential.queue, credential.vos, slots, limits, single_jobs, transaction.now, offers.policies
    )
    orders: list[VacateOrder] = []
    while True:
        with state.lock:  # held for decisions, never during a database access
            found = state.matcher.vacates(request, state.queue_access, rules)
        orders += found.orders
        if found.rest is None:
            return tuple(orders)
        heads, request = found.rest
        load_heads(transaction, state, [heads], single_jobs)


def _occupants(
    transaction: Transaction, pilot: RequestingPilot, occupied: Sequence[SlotOffer]
) -> dict[str, tuple[Occupant, Account]]:
    """Return the attempts in the slots and their charged accounts, by slot; attempts of other pilots are ignored."""
    keys = {slot.name: (slot.occupied.job_id, slot.occupied.attempt) for slot in occupied if slot.occupied is not None}
    attempts = load_attempts(transaction.session, keys.values()) if keys else {}
    stamp = pilot.credential.stamp
    return {
        name: (Occupant(stamp, *key), attempts[key].account)
        for name, key in keys.items()
        if key in attempts and attempts[key].pilot_stamp == stamp and attempts[key].ended is None
    }
