"""Binds jobs to the slots of one pilot with the general matcher, and orders occupied slots to vacate.

It serves what `bind_jobs` does not support.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from pilotage.values.accounts import Account
from pilotage.values.isolation import Isolation
from pilotage.values.offers import SlotOffer, VacateOrder
from pilotage_server.core.attempts.leases import AttemptRecord
from pilotage_server.core.identity import PilotCredential
from pilotage_server.core.jobs.record import JobRecord
from pilotage_server.core.jobs.states import JobCause
from pilotage_server.core.matching.general_matcher import (
    MatchLimits,
    MatchRound,
    MatchScope,
    NeedsJobAds,
    OpenSlots,
    Reservation,
    SingleJob,
)
from pilotage_server.core.matching.preemption import Occupant, PreemptionRound, PreemptionRules
from pilotage_server.core.matching.slot_policy import EvaluationTime
from pilotage_server.core.queueing.reach import PilotAccess
from pilotage_server.core.queueing.task_queue import TaskQueue
from pilotage_server.operations.accounting.limits import limits_at_present
from pilotage_server.operations.attempts.transitions import apply_transition
from pilotage_server.operations.matching.offers import Offers, ResponseBudget, head_ads, policies_at
from pilotage_server.operations.server_state import ServerState
from pilotage_server.storage import leases
from pilotage_server.storage.attempts import insert_attempts, load_attempts
from pilotage_server.storage.database.transaction import Transaction
from pilotage_server.storage.task_queues import read_heads

HEADS_AT_ONCE = 20
"""How many jobs of a task queue are evaluated one by one in a round, where that is needed."""


@dataclass(frozen=True, slots=True)
class RequestingPilot:
    """The pilot of a request, its node's name and its isolation."""

    credential: PilotCredential
    node: str
    isolation: Isolation = Isolation.NONE


@dataclass(frozen=True, slots=True)
class GeneralClaim:
    """A reservation that got a job, with the job as it is now."""

    reservation: Reservation
    job: JobRecord

    @property
    def attempt(self) -> int:
        """The attempt that the match has begun."""
        return self.job.attempt


@dataclass(frozen=True, slots=True)
class SlotMatches:
    """The result of a round: jobs in the order of slots, and the occupied slots that are to vacate."""

    claims: tuple[GeneralClaim, ...] = ()
    vacates: tuple[VacateOrder, ...] = ()


def match_slots(
    transaction: Transaction,
    state: ServerState,
    pilot: RequestingPilot,
    offers: Offers,
    budget: ResponseBudget | None = None,
) -> SlotMatches:
    """Bind waiting jobs to the free slots, and find the occupied ones that better jobs want.

    `budget` is the response budget that is left; None = that of a new response.
    """
    occupants = _occupants(transaction, pilot, offers.slots)
    open_slots = _open_slots(transaction, state, pilot, offers, {name: user for name, (_, user) in occupants.items()})
    free = [slot for slot in offers.slots if slot.occupied is None]
    claimed = _claim(transaction, state, pilot, free, open_slots, budget or ResponseBudget.of(offers.slots))
    insert_attempts(transaction.session, [_attempt(transaction, each) for each in claimed])
    rules = PreemptionRules(
        transaction.now,
        occupants,
        state.orders,
        state.rules.preemption_requirements,
        lambda task_queue_id: state.is_offered(task_queue_id, pilot.credential.stamp),
    )
    return SlotMatches(tuple(claimed), _vacates(transaction, state, offers.slots, open_slots, rules))


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


def _claim(
    transaction: Transaction,
    state: ServerState,
    pilot: RequestingPilot,
    free: Sequence[SlotOffer],
    open_slots: OpenSlots,
    budget: ResponseBudget,
) -> list[GeneralClaim]:
    claims: list[GeneralClaim] = []
    with state.lock:
        round_ = MatchRound(free, open_slots)
    while True:
        with state.lock:  # held for decisions, never during a database access
            reservation = round_.next_reservation()
        match reservation:
            case None:
                return claims
            case NeedsJobAds(task_queue):
                _load_job_ads(transaction, open_slots, task_queue)
            case Reservation():
                job = _lock(transaction, reservation)
                if job is None:
                    round_.discard(reservation)
                    state.request_recount(reservation.task_queue.id)
                elif not budget.reserve(state.descriptions.sizes(transaction, [job.template_id])[job.template_id]):
                    return claims
                else:
                    claims.append(GeneralClaim(reservation, _bind(transaction, state, pilot, reservation, job)))
                    _next_head(transaction, state, round_, reservation)


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
    open_slots.ranked_jobs.add_single_jobs(task_queue, [SingleJob(head.job_id, head.ad) for head in heads])


def _lock(transaction: Transaction, reservation: Reservation) -> JobRecord | None:
    if reservation.job_id is None:
        return leases.lock_first_waiting(transaction.session, reservation.task_queue.id)
    return leases.lock_waiting(transaction.session, reservation.task_queue.id, reservation.job_id)


def _next_head(transaction: Transaction, state: ServerState, round_: MatchRound, reservation: Reservation) -> None:
    head = read_heads(transaction.session, [reservation.task_queue.id]).get(reservation.task_queue.id)
    round_.confirm(reservation, head)
    transaction.after_commit(partial(state.refresh_head, reservation.task_queue.id, head))


def _bind(
    transaction: Transaction, state: ServerState, pilot: RequestingPilot, reservation: Reservation, job: JobRecord
) -> JobRecord:
    credential = pilot.credential
    transaction.after_commit(
        partial(state.start_charge, reservation.task_queue.account, reservation.weight, transaction.now)
    )
    return apply_transition(
        transaction,
        state,
        job,
        JobCause.MATCHED,
        reason="",
        actor=f"pilot:{credential.stamp}",
        attempt=job.next_attempt,
        lease_until=transaction.now + (job.lease or state.rules.lease),
        pilot_stamp=credential.stamp,
        queue=credential.queue,
        node=pilot.node,
        slot=reservation.slot,
    )


def _attempt(transaction: Transaction, claimed: GeneralClaim) -> AttemptRecord:
    job = claimed.job
    assert job.queue is not None, "a job that was just matched has a queue"
    return AttemptRecord(
        job_id=job.id,
        attempt=job.attempt,
        pilot_stamp=job.pilot_stamp,
        queue=job.queue,
        node=job.node,
        slot=job.slot,
        cpus=claimed.reservation.amounts.cpus,
        gpus=claimed.reservation.amounts.gpus,
        weight=claimed.reservation.weight,
        account=claimed.reservation.task_queue.account,
        matched=transaction.now,
        metered=transaction.now,
    )
