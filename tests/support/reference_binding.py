"""Binds jobs to slots by the reference matcher and the transitions of jobs, one job after the other."""

from __future__ import annotations

from functools import partial

from pilotage.values.offers import SlotOffer
from pilotage_server.core.attempts.leases import AttemptRecord
from pilotage_server.core.jobs.record import JobRecord
from pilotage_server.core.jobs.states import JobCause
from pilotage_server.core.matching.slot_policy import EvaluationTime, MatchPolicyEvaluator
from pilotage_server.core.queueing.reach import PilotAccess
from pilotage_server.operations.accounting.limits import limits_at_present
from pilotage_server.operations.attempts.transitions import apply_transition
from pilotage_server.operations.matching.offers import Offers, RequestingPilot
from pilotage_server.operations.server_state import ServerState
from pilotage_server.storage.attempts import insert_attempts
from pilotage_server.storage.database.transaction import Transaction
from pilotage_server.storage.jobs import load_jobs
from pilotage_server.storage.task_queues import lock_first_waiting, read_first_waiting
from support.reference_matcher import MatchLimits, MatchRound, MatchScope, OpenSlots, RoundChoice, SlotEvaluators


def bind_one_by_one(transaction: Transaction, state: ServerState, pilot: RequestingPilot, offers: Offers) -> None:
    """Bind waiting jobs to the slots of a pilot; jobs that have to be evaluated one by one are not supported."""
    round_ = MatchRound(offers.slots, _open_slots(transaction, state, pilot, offers))
    while (choice := round_.next_reservation()) is not None:
        assert isinstance(choice, RoundChoice)
        task_queue_id = choice.task_queue.id
        [locked] = lock_first_waiting(transaction.session, {task_queue_id: 1})[task_queue_id]
        job = load_jobs(transaction.session, [locked.id])[locked.id]
        _bind(transaction, state, pilot, choice, job)
        heads = read_first_waiting(transaction.session, {task_queue_id: 1}).get(task_queue_id, [])
        round_.confirm(choice, locked.id, heads[0] if heads else None)
        transaction.after_commit(partial(state.waiting.refresh_heads, task_queue_id, heads, is_all=not heads))


def _open_slots(transaction: Transaction, state: ServerState, pilot: RequestingPilot, offers: Offers) -> OpenSlots:
    queue, time = pilot.credential.queue, EvaluationTime(transaction.now)

    def evaluator(slot: SlotOffer) -> MatchPolicyEvaluator:
        policy = state.policies.policy(slot, queue)
        assert policy is not None
        return state.policies.evaluator(policy, time)

    limits = limits_at_present(transaction, state, [queue], len(offers.slots))
    scope = MatchScope(
        state.waiting, PilotAccess(state.queue_access, queue, pilot.credential.vos, pilot.isolation).admits
    )
    bounds = MatchLimits(limits, state.shares.round(transaction.now), state.rules.end_margin)
    return OpenSlots(scope, SlotEvaluators(evaluator, state.policies.views), bounds)


def _bind(
    transaction: Transaction, state: ServerState, pilot: RequestingPilot, choice: RoundChoice, waiting: JobRecord
) -> None:
    """Bind one job by its transition, charge its account and store the attempt."""
    credential, account = pilot.credential, choice.task_queue.account
    transaction.after_commit(partial(state.start_charge, account, choice.weight, transaction.now))
    job = apply_transition(
        transaction,
        state,
        waiting,
        JobCause.MATCHED,
        reason="",
        actor=f"pilot:{credential.stamp}",
        attempt=waiting.next_attempt,
        lease_until=transaction.now + (waiting.lease or state.rules.lease),
        pilot_stamp=credential.stamp,
        queue=credential.queue,
        node=pilot.node,
        slot=choice.slot,
    )
    attempt = AttemptRecord(
        job_id=job.id,
        attempt=job.attempt,
        pilot_stamp=credential.stamp,
        queue=credential.queue,
        node=job.node,
        slot=job.slot,
        cpus=choice.amounts.cpus,
        gpus=choice.amounts.gpus,
        weight=choice.weight,
        account=account,
        matched=transaction.now,
        metered=transaction.now,
    )
    insert_attempts(transaction.session, [attempt])
