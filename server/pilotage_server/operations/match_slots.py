"""Binds waiting jobs to the slots of one pilot, choice by choice, and tells which occupied ones better jobs want.

This is the plain way, for all that the quick one (`bind_jobs`) does not decide.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from pilotage_server.core.accounting import Account
from pilotage_server.core.identity import PilotCredential
from pilotage_server.core.job_record import JobRecord
from pilotage_server.core.jobs import JobCause
from pilotage_server.core.leases import AttemptRecord
from pilotage_server.core.matching import Choice, MatchRound
from pilotage_server.core.openings import Bounds, HeadsWanted, Openings, SingleJob
from pilotage_server.core.preemption import Occupant, PreemptionRound, PreemptionRules, Vacate
from pilotage_server.core.reach import Door
from pilotage_server.core.slot_policies import Moment
from pilotage_server.core.slots import SlotOffer
from pilotage_server.core.task_queues import TaskQueue
from pilotage_server.core.waiting_order import Candidates
from pilotage_server.operations.answer_room import AnswerRoom
from pilotage_server.operations.head_ads import head_ads
from pilotage_server.operations.job_steps import step
from pilotage_server.operations.running_counts import limits_at_present
from pilotage_server.operations.slot_offers import Offers, policies_at
from pilotage_server.operations.world import World
from pilotage_server.storage import claims
from pilotage_server.storage.attempts import insert_attempts, load_attempts
from pilotage_server.storage.engine import Unit
from pilotage_server.storage.first_waiting import read_heads

HEADS_AT_ONCE = 20
"""So many jobs of a task queue are asked by themselves in one round, where that is needed."""


@dataclass(frozen=True, slots=True)
class Asking:
    """The pilot that asks, and its node's name."""

    credential: PilotCredential
    node: str


@dataclass(frozen=True, slots=True)
class Claimed:
    """A choice that succeeded, with the job as it is now."""

    choice: Choice
    job: JobRecord

    @property
    def attempt(self) -> int:
        """The attempt that the match has begun."""
        return self.job.attempt


@dataclass(frozen=True, slots=True)
class Matched:
    """What a round gave: jobs, with slots in order, and the occupied slots that are to vacate."""

    claimed: tuple[Claimed, ...] = ()
    vacates: tuple[Vacate, ...] = ()


def match_slots(unit: Unit, world: World, pilot: Asking, offers: Offers, room: AnswerRoom | None = None) -> Matched:
    """Bind waiting jobs to the free slots, and look who would be better off in the occupied ones.

    No more is bound than the answer has room for; None = as much as any answer has.
    """
    occupants = _occupants(unit, pilot, offers.slots)
    openings = _openings(unit, world, pilot, offers, {name: user for name, (_, user) in occupants.items()})
    free = [slot for slot in offers.slots if slot.occupied is None]
    claimed = _claim(unit, world, pilot, free, openings, room or AnswerRoom.of(offers.slots))
    insert_attempts(unit.session, [_attempt(unit, each) for each in claimed])
    rules = PreemptionRules(
        unit.now,
        occupants,
        world.orders,
        world.rules.preemption_requirements,
        lambda task_queue_id: world.is_offered(task_queue_id, pilot.credential.stamp),
    )
    return Matched(tuple(claimed), _vacates(unit, world, offers.slots, openings, rules))


def door(world: World, credential: PilotCredential) -> Door:
    """Return the way of a pilot to the waiting jobs."""
    return Door(world.reach, credential.queue, credential.vos)


def _occupants(unit: Unit, pilot: Asking, slots: Sequence[SlotOffer]) -> dict[str, tuple[Occupant, Account]]:
    """Return the attempts in the slots and who is charged for them, by slot; only what is the pilot's is believed."""
    keys = {slot.name: (slot.occupied.job_id, slot.occupied.attempt) for slot in slots if slot.occupied is not None}
    attempts = load_attempts(unit.session, keys.values()) if keys else {}
    stamp = pilot.credential.stamp
    return {
        name: (Occupant(stamp, *key), attempts[key].account)
        for name, key in keys.items()
        if key in attempts and attempts[key].pilot_stamp == stamp and attempts[key].ended is None
    }


def _openings(unit: Unit, world: World, pilot: Asking, offers: Offers, users: dict[str, Account]) -> Openings:
    limits = limits_at_present(unit, world, [pilot.credential.queue], len(offers.slots))
    candidates = Candidates(world.waiting, door(world, pilot.credential).can_go)
    with world.lock:
        shares = world.shares.round(unit.now)
        moments = {name: Moment(unit.now, shares.user_priority(user)) for name, user in users.items()}
        policies = policies_at(world, pilot.credential.queue, offers, moments, Moment(unit.now))
        return Openings(candidates, policies, Bounds(limits, shares, world.rules.end_margin))


def _claim(
    unit: Unit, world: World, pilot: Asking, free: Sequence[SlotOffer], openings: Openings, room: AnswerRoom
) -> list[Claimed]:
    made: list[Claimed] = []
    with world.lock:
        round_ = MatchRound(free, openings)
    while True:
        with world.lock:  # held while deciding, never while the database is asked
            choice = round_.next_choice()
        match choice:
            case None:
                return made
            case HeadsWanted(task_queue):
                _bring_heads(unit, openings, task_queue)
            case Choice():
                job = _lock(unit, choice)
                if job is None:
                    round_.missed(choice)
                    world.doubt(choice.task_queue.id)
                elif not room.takes(world.descriptions.sizes(unit, [job.template_id])[job.template_id]):
                    return made
                else:
                    made.append(Claimed(choice, _bind(unit, world, pilot, choice, job)))
                    _next_head(unit, world, round_, choice)


def _vacates(
    unit: Unit, world: World, slots: Sequence[SlotOffer], openings: Openings, rules: PreemptionRules
) -> tuple[Vacate, ...]:
    found: list[Vacate] = []
    with world.lock:
        round_ = PreemptionRound(slots, openings, rules)
    while True:
        with world.lock:
            vacate = round_.next_vacate()
        match vacate:
            case None:
                return tuple(found)
            case HeadsWanted(task_queue):
                _bring_heads(unit, openings, task_queue)
            case Vacate():
                found.append(vacate)


def _bring_heads(unit: Unit, openings: Openings, task_queue: TaskQueue) -> None:
    heads = head_ads(unit, task_queue.id, HEADS_AT_ONCE)
    openings.applicants.bring(task_queue, [SingleJob(head.job_id, head.ad) for head in heads])


def _lock(unit: Unit, choice: Choice) -> JobRecord | None:
    if choice.job_id is None:
        return claims.lock_first_waiting(unit.session, choice.task_queue.id)
    return claims.lock_waiting(unit.session, choice.task_queue.id, choice.job_id)


def _next_head(unit: Unit, world: World, round_: MatchRound, choice: Choice) -> None:
    head = read_heads(unit.session, [choice.task_queue.id]).get(choice.task_queue.id)
    round_.claimed(choice, head)
    unit.after_commit(partial(world.renew_head, choice.task_queue.id, head))


def _bind(unit: Unit, world: World, pilot: Asking, choice: Choice, job: JobRecord) -> JobRecord:
    credential = pilot.credential
    unit.after_commit(partial(world.run_started, choice.task_queue.account, choice.weight, unit.now))
    return step(
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
        slot=choice.slot,
    )


def _attempt(unit: Unit, claimed: Claimed) -> AttemptRecord:
    job = claimed.job
    assert job.queue is not None, "a job that was just matched has a queue"
    return AttemptRecord(
        job_id=job.id,
        attempt=job.attempt,
        pilot_stamp=job.pilot_stamp,
        queue=job.queue,
        node=job.node,
        slot=job.slot,
        cpus=claimed.choice.amounts.cpus,
        weight=claimed.choice.weight,
        account=claimed.choice.task_queue.account,
        matched=unit.now,
        metered=unit.now,
    )
