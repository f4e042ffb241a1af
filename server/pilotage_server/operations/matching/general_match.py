"""Binds jobs to the slots of one pilot with the general matcher, and orders occupied slots to vacate.

It serves what `bind_jobs` does not support.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from pilotage.values.accounts import Account
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
    """The pilot of a request, and its node's name."""

    credential: PilotCredential
    node: str


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
    unit: Transaction, world: ServerState, pilot: RequestingPilot, offers: Offers, budget: ResponseBudget | None = None
) -> SlotMatches:
    """Bind waiting jobs to the free slots, and find the occupied ones that better jobs want.

    `budget` is the response budget that is left; None = that of a new response.
    """
    occupants = _occupants(unit, pilot, offers.slots)
    open_slots = _open_slots(unit, world, pilot, offers, {name: user for name, (_, user) in occupants.items()})
    free = [slot for slot in offers.slots if slot.occupied is None]
    claimed = _claim(unit, world, pilot, free, open_slots, budget or ResponseBudget.of(offers.slots))
    insert_attempts(unit.session, [_attempt(unit, each) for each in claimed])
    rules = PreemptionRules(
        unit.now,
        occupants,
        world.orders,
        world.rules.preemption_requirements,
        lambda task_queue_id: world.is_offered(task_queue_id, pilot.credential.stamp),
    )
    return SlotMatches(tuple(claimed), _vacates(unit, world, offers.slots, open_slots, rules))


def pilot_access(world: ServerState, credential: PilotCredential) -> PilotAccess:
    """Return the access check of a pilot."""
    return PilotAccess(world.queue_access, credential.queue, credential.vos)


def _occupants(
    unit: Transaction, pilot: RequestingPilot, slots: Sequence[SlotOffer]
) -> dict[str, tuple[Occupant, Account]]:
    """Return the attempts in the slots and their charged accounts, by slot; attempts of other pilots are ignored."""
    keys = {slot.name: (slot.occupied.job_id, slot.occupied.attempt) for slot in slots if slot.occupied is not None}
    attempts = load_attempts(unit.session, keys.values()) if keys else {}
    stamp = pilot.credential.stamp
    return {
        name: (Occupant(stamp, *key), attempts[key].account)
        for name, key in keys.items()
        if key in attempts and attempts[key].pilot_stamp == stamp and attempts[key].ended is None
    }


def _open_slots(
    unit: Transaction, world: ServerState, pilot: RequestingPilot, offers: Offers, users: dict[str, Account]
) -> OpenSlots:
    limits = limits_at_present(unit, world, [pilot.credential.queue], len(offers.slots))
    scope = MatchScope(world.waiting, pilot_access(world, pilot.credential).admits)
    with world.lock:
        shares = world.shares.round(unit.now)
        times = {name: EvaluationTime(unit.now, shares.user_priority(user)) for name, user in users.items()}
        evaluators = policies_at(world, pilot.credential.queue, offers, times, EvaluationTime(unit.now))
        return OpenSlots(scope, evaluators, MatchLimits(limits, shares, world.rules.end_margin))


def _claim(
    unit: Transaction,
    world: ServerState,
    pilot: RequestingPilot,
    free: Sequence[SlotOffer],
    open_slots: OpenSlots,
    budget: ResponseBudget,
) -> list[GeneralClaim]:
    claims: list[GeneralClaim] = []
    with world.lock:
        round_ = MatchRound(free, open_slots)
    while True:
        with world.lock:  # held for decisions, never during a database access
            reservation = round_.next_reservation()
        match reservation:
            case None:
                return claims
            case NeedsJobAds(task_queue):
                _load_job_ads(unit, open_slots, task_queue)
            case Reservation():
                job = _lock(unit, reservation)
                if job is None:
                    round_.discard(reservation)
                    world.request_recount(reservation.task_queue.id)
                elif not budget.reserve(world.descriptions.sizes(unit, [job.template_id])[job.template_id]):
                    return claims
                else:
                    claims.append(GeneralClaim(reservation, _bind(unit, world, pilot, reservation, job)))
                    _next_head(unit, world, round_, reservation)


def _vacates(
    unit: Transaction, world: ServerState, slots: Sequence[SlotOffer], open_slots: OpenSlots, rules: PreemptionRules
) -> tuple[VacateOrder, ...]:
    found: list[VacateOrder] = []
    with world.lock:
        round_ = PreemptionRound(slots, open_slots, rules)
    while True:
        with world.lock:
            vacate = round_.next_vacate()
        match vacate:
            case None:
                return tuple(found)
            case NeedsJobAds(task_queue):
                _load_job_ads(unit, open_slots, task_queue)
            case VacateOrder():
                found.append(vacate)


def _load_job_ads(unit: Transaction, open_slots: OpenSlots, task_queue: TaskQueue) -> None:
    heads = head_ads(unit, task_queue.id, HEADS_AT_ONCE)
    open_slots.applicants.add_single_jobs(task_queue, [SingleJob(head.job_id, head.ad) for head in heads])


def _lock(unit: Transaction, reservation: Reservation) -> JobRecord | None:
    if reservation.job_id is None:
        return leases.lock_first_waiting(unit.session, reservation.task_queue.id)
    return leases.lock_waiting(unit.session, reservation.task_queue.id, reservation.job_id)


def _next_head(unit: Transaction, world: ServerState, round_: MatchRound, reservation: Reservation) -> None:
    head = read_heads(unit.session, [reservation.task_queue.id]).get(reservation.task_queue.id)
    round_.confirm(reservation, head)
    unit.after_commit(partial(world.refresh_head, reservation.task_queue.id, head))


def _bind(
    unit: Transaction, world: ServerState, pilot: RequestingPilot, reservation: Reservation, job: JobRecord
) -> JobRecord:
    credential = pilot.credential
    unit.after_commit(partial(world.start_charge, reservation.task_queue.account, reservation.weight, unit.now))
    return apply_transition(
        unit,
        world,
        job,
        JobCause.MATCHED,
        reason="",
        actor=f"pilot:{credential.stamp}",
        attempt=job.attempt + 1,
        lease_until=unit.now + (job.lease or world.rules.lease),
        pilot_stamp=credential.stamp,
        queue=credential.queue,
        node=pilot.node,
        slot=reservation.slot,
    )


def _attempt(unit: Transaction, claimed: GeneralClaim) -> AttemptRecord:
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
        weight=claimed.reservation.weight,
        account=claimed.reservation.task_queue.account,
        matched=unit.now,
        metered=unit.now,
    )
