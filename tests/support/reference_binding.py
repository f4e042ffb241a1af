"""Binds jobs to the slots of one pilot by the general matcher and the transitions of jobs, one job after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from pilotage.values.offers import SlotOffer
from pilotage_server.core.attempts.leases import AttemptRecord
from pilotage_server.core.jobs.record import JobRecord
from pilotage_server.core.jobs.states import JobCause
from pilotage_server.core.matching.general_matcher import (
    JobWithAd,
    MatchLimits,
    MatchRound,
    MatchScope,
    NeedsJobAds,
    OpenSlots,
    RoundChoice,
)
from pilotage_server.core.matching.slot_policy import EvaluationTime
from pilotage_server.core.queueing.task_queue import TaskQueue
from pilotage_server.operations.accounting.limits import limits_at_present
from pilotage_server.operations.attempts.transitions import apply_transition
from pilotage_server.operations.matching.general_match import RequestingPilot, pilot_access
from pilotage_server.operations.matching.offers import Offers, head_ads, policies_at
from pilotage_server.operations.server_state import ServerState
from pilotage_server.storage import leases
from pilotage_server.storage.attempts import insert_attempts
from pilotage_server.storage.database.transaction import Transaction
from pilotage_server.storage.task_queues import read_heads

HEADS_AT_ONCE = 20
"""How many jobs of a task queue are evaluated one by one in a round, where that is needed."""


@dataclass(frozen=True, slots=True)
class GeneralClaim:
    """A reservation that got a job, with the job as it is now."""

    reservation: RoundChoice
    job: JobRecord

    @property
    def attempt(self) -> int:
        """The attempt that the match has begun."""
        return self.job.attempt


def match_generally(transaction: Transaction, state: ServerState, pilot: RequestingPilot, offers: Offers) -> None:
    """Bind waiting jobs to the slots."""
    open_slots = _open_slots(transaction, state, pilot, offers)
    claims = _claim(transaction, state, pilot, offers.slots, open_slots)
    insert_attempts(transaction.session, [_attempt(transaction, each) for each in claims])


def _open_slots(transaction: Transaction, state: ServerState, pilot: RequestingPilot, offers: Offers) -> OpenSlots:
    limits = limits_at_present(transaction, state, [pilot.credential.queue], len(offers.slots))
    scope = MatchScope(state.waiting, pilot_access(state, pilot.credential, pilot.isolation).admits)
    with state.lock:
        shares = state.shares.round(transaction.now)
        evaluators = policies_at(state, pilot.credential.queue, offers, {}, EvaluationTime(transaction.now))
        return OpenSlots(scope, evaluators, MatchLimits(limits, shares, state.rules.end_margin))


def _claim(
    transaction: Transaction,
    state: ServerState,
    pilot: RequestingPilot,
    free: Sequence[SlotOffer],
    open_slots: OpenSlots,
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
            case RoundChoice():
                job = _lock(transaction, reservation)
                if job is None:
                    round_.discard(reservation)
                    state.request_recount(reservation.task_queue.id)
                else:
                    claims.append(GeneralClaim(reservation, _bind(transaction, state, pilot, reservation, job)))
                    _next_head(transaction, state, round_, reservation)


def _load_job_ads(transaction: Transaction, open_slots: OpenSlots, task_queue: TaskQueue) -> None:
    heads = head_ads(transaction, task_queue.id, HEADS_AT_ONCE)
    open_slots.ranked_jobs.add_single_jobs(task_queue, [JobWithAd(each.head.job_id, each.ad) for each in heads])


def _lock(transaction: Transaction, reservation: RoundChoice) -> JobRecord | None:
    if reservation.job_id is None:
        return leases.lock_first_waiting(transaction.session, reservation.task_queue.id)
    return leases.lock_waiting(transaction.session, reservation.task_queue.id, reservation.job_id)


def _next_head(transaction: Transaction, state: ServerState, round_: MatchRound, reservation: RoundChoice) -> None:
    head = read_heads(transaction.session, [reservation.task_queue.id]).get(reservation.task_queue.id)
    round_.confirm(reservation, head)
    transaction.after_commit(partial(state.refresh_head, reservation.task_queue.id, head))


def _bind(
    transaction: Transaction, state: ServerState, pilot: RequestingPilot, reservation: RoundChoice, job: JobRecord
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
