"""Orders occupied slots to vacate for better jobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pilotage.values.accounts import Account
from pilotage.values.isolation import Isolation
from pilotage.values.offers import SlotOffer, VacateOrder
from pilotage_server.core.identity import PilotCredential
from pilotage_server.core.matching.general_matcher import (
    JobWithAd,
    MatchLimits,
    MatchScope,
    NeedsJobAds,
    OpenSlots,
)
from pilotage_server.core.matching.preemption import Occupant, PreemptionRound, PreemptionRules
from pilotage_server.core.matching.slot_policy import EvaluationTime
from pilotage_server.core.queueing.reach import PilotAccess
from pilotage_server.core.queueing.task_queue import TaskQueue
from pilotage_server.operations.accounting.limits import limits_at_present
from pilotage_server.operations.matching.offers import Offers, head_ads, policies_at
from pilotage_server.operations.queueing.counting import load_missing_heads
from pilotage_server.operations.server_state import ServerState
from pilotage_server.storage.attempts import load_attempts
from pilotage_server.storage.database.transaction import Transaction

HEADS_AT_ONCE = 20
"""How many jobs of a task queue are evaluated one by one in a round, where that is needed."""


@dataclass(frozen=True, slots=True)
class RequestingPilot:
    """The pilot of a request, its node's name and its isolation."""

    credential: PilotCredential
    node: str
    isolation: Isolation = Isolation.NONE


def vacate_orders(
    transaction: Transaction, state: ServerState, pilot: RequestingPilot, offers: Offers
) -> tuple[VacateOrder, ...]:
    """Return the orders to vacate occupied slots that better jobs want; free slots have got theirs."""
    occupants = _occupants(transaction, pilot, offers.slots)
    if not occupants:
        return ()
    load_missing_heads(transaction, state)
    users = {name: user for name, (_, user) in occupants.items()}
    rules = PreemptionRules(
        transaction.now,
        occupants,
        state.orders,
        state.rules.preemption_requirements,
        lambda task_queue_id: state.is_offered(task_queue_id, pilot.credential.stamp),
    )
    occupied = [slot for slot in offers.slots if slot.occupied is not None]
    return _vacates(transaction, state, occupied, _open_slots(transaction, state, pilot, offers, users), rules)


def pilot_access(state: ServerState, credential: PilotCredential, isolation: Isolation) -> PilotAccess:
    """Return the access check of a pilot."""
    return PilotAccess(state.queue_access, credential.queue, credential.vos, isolation)


def _occupants(
    transaction: Transaction, pilot: RequestingPilot, slots: Sequence[SlotOffer]
) -> dict[str, tuple[Occupant, Account]]:
    """Return the attempts in the slots and their charged accounts, by slot; attempts of other pilots are ignored."""
    keys = {slot.name: (slot.occupied.job_id, slot.occupied.attempt) for slot in slots if slot.occupied is not None}
    attempts = load_attempts(transaction.session, keys.values()) if keys else {}
    stamp = pilot.credential.stamp
    return {
        name: (Occupant(stamp, *key), attempts[key].account)
        for name, key in keys.items()
        if key in attempts and attempts[key].pilot_stamp == stamp and attempts[key].ended is None
    }


def _open_slots(
    transaction: Transaction, state: ServerState, pilot: RequestingPilot, offers: Offers, users: dict[str, Account]
) -> OpenSlots:
    limits = limits_at_present(transaction, state, [pilot.credential.queue], len(offers.slots))
    scope = MatchScope(state.waiting, pilot_access(state, pilot.credential, pilot.isolation).admits)
    with state.lock:
        shares = state.shares.round(transaction.now)
        times = {name: EvaluationTime(transaction.now, shares.user_priority(user)) for name, user in users.items()}
        evaluators = policies_at(state, pilot.credential.queue, offers, times, EvaluationTime(transaction.now))
        return OpenSlots(scope, evaluators, MatchLimits(limits, shares, state.rules.end_margin))


def _vacates(
    transaction: Transaction,
    state: ServerState,
    slots: Sequence[SlotOffer],
    open_slots: OpenSlots,
    rules: PreemptionRules,
) -> tuple[VacateOrder, ...]:
    found: list[VacateOrder] = []
    with state.lock:
        round_ = PreemptionRound(slots, open_slots, rules)
    while True:
        with state.lock:
            vacate = round_.next_vacate()
        match vacate:
            case None:
                return tuple(found)
            case NeedsJobAds(task_queue):
                _load_job_ads(transaction, open_slots, task_queue)
            case VacateOrder():
                found.append(vacate)


def _load_job_ads(transaction: Transaction, open_slots: OpenSlots, task_queue: TaskQueue) -> None:
    heads = head_ads(transaction, task_queue.id, HEADS_AT_ONCE)
    open_slots.ranked_jobs.add_single_jobs(task_queue, [JobWithAd(each.head.job_id, each.ad) for each in heads])
