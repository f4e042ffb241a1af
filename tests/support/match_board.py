"""Waiting jobs and shares on a board, and rounds of matching over them in which every claim succeeds."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from pilotage.classads.library import AdValue
from pilotage.classads.text import name_text
from pilotage.job_description import Value
from pilotage.resources.requirements import JobNeeds
from pilotage.resources.tree import QueueId
from pilotage.values.accounts import Account
from pilotage.values.offers import OccupiedSlot, SlotOffer, VacateOrder
from pilotage_server.core.accounting.fair_share import FairShare
from pilotage_server.core.accounting.limits import LimitRound
from pilotage_server.core.matching.general_matcher import (
    MatchLimits,
    MatchRound,
    MatchScope,
    NeedsJobAds,
    OpenSlots,
    Reservation,
    SingleJob,
    SlotEvaluators,
)
from pilotage_server.core.matching.preemption import Occupant, PreemptionRound, PreemptionRules, VacateOrders
from pilotage_server.core.matching.slot_policy import EvaluationTime, MatchPolicyEvaluator, SlotPolicies
from pilotage_server.core.queueing.index import TaskQueueIndex
from pilotage_server.core.queueing.job_ads import traits_ad
from pilotage_server.core.queueing.task_queue import TaskQueue, Traits
from pilotage_server.core.queueing.waiting_jobs import QueueHead
from pilotage_server.core.rules import RunningLimit, Sharing
from support.grid import a_slot
from support.virtual_clock import START

NO_MARGIN = timedelta(0)
QUEUE = QueueId("CERN", "ce01", "long")


class Board:
    """A board; `now` is when its rounds are made."""

    def __init__(self, sharing: Sharing | None = None) -> None:
        self.index = TaskQueueIndex()
        self.jobs: dict[int, list[QueueHead]] = {}
        self.queues: dict[int, TaskQueue] = {}
        self.shares = FairShare(sharing or Sharing())
        self.policies = SlotPolicies()
        self.orders = VacateOrders()
        self.now: datetime = START
        self._own: dict[int, Mapping[str, AdValue]] = {}
        self._last_job = 0

    def queue(
        self,
        owner: str = "alice",
        group: str = "users",
        wall_time_s: float | None = None,
        traits: Mapping[str, Any] | None = None,
        attributes: Mapping[str, Value] | None = None,
        **needs: Any,
    ) -> int:
        """Add a task queue and return its id; `traits` are other fields of its traits."""
        number = len(self.queues) + 1
        told = tuple(sorted((name.lower(), json.dumps(value)) for name, value in (attributes or {}).items()))
        plain = Traits(Account("lhcb", group, owner), "", JobNeeds(**needs), wall_time_s, told)
        self.queues[number] = TaskQueue(number, replace(plain, **(traits or {})))
        self.index.add(self.queues[number])
        self.jobs[number] = []
        return number

    def job(self, queue: int, priority: int = 0, **own: AdValue) -> int:
        """Add a waiting job and return its id; `own` are attributes that its task queue does not tell."""
        self._last_job += 1
        head = QueueHead(priority, self._last_job)
        self.jobs[queue].append(head)
        self.jobs[queue].sort(key=lambda each: each.order)
        self.index.add_jobs(queue, head)
        self._own[head.job_id] = own
        return self._last_job

    def waiting(self, owner: str = "alice", **fields: Any) -> int:
        """Add a job in a task queue of its own and return its id."""
        return self.job(self.queue(owner, **fields))

    def round(self, *slots: SlotOffer, limits: dict[RunningLimit, int] | None = None) -> list[tuple[Reservation, int]]:
        """Match and return the choices with the job that each got."""
        return self._match(slots, self.openings(limits))

    def openings(self, limits: dict[RunningLimit, int] | None = None, users: Mapping[str, Account] = {}) -> OpenSlots:
        """Return what the slots of a round have in common; `users` are charged for what is in slots, by slot."""
        shares = self.shares.round(self.now)

        def judge(slot: SlotOffer) -> MatchPolicyEvaluator:
            policy = self.policies.policy(slot, QUEUE)
            assert policy is not None
            user = (users or {}).get(slot.name)
            return self.policies.evaluator(
                policy, EvaluationTime(self.now, None if user is None else shares.user_priority(user))
            )

        return OpenSlots(
            MatchScope(self.index, lambda _: True),
            SlotEvaluators(judge, self.policies.views),
            MatchLimits(LimitRound(limits or {}), shares, NO_MARGIN),
        )

    def given(self, *slots: SlotOffer, limits: dict[RunningLimit, int] | None = None) -> list[int]:
        """Match and return the jobs in the order in which they were given."""
        return [job for _, job in self.round(*slots, limits=limits)]

    def places(self, *slots: SlotOffer) -> dict[int, str]:
        """Match and return the slot of each job that got one."""
        return {job: choice.slot for choice, job in self.round(*slots)}

    def vacates(
        self, *slots: SlotOffer, users: Mapping[str, str] | None = None, stamp: str = "p", **rules: Any
    ) -> list[VacateOrder]:
        """Match, then return which occupied slots are to vacate; `users` own what is in them, bob where not said."""
        occupied = [slot for slot in slots if slot.occupied is not None]
        accounts = {slot.name: Account("lhcb", "users", (users or {}).get(slot.name, "bob")) for slot in occupied}
        openings = self.openings(users=accounts)
        self._match([slot for slot in slots if slot.occupied is None], openings)
        occupants = {slot.name: (_occupant(stamp, slot), accounts[slot.name]) for slot in occupied}
        round_ = PreemptionRound(occupied, openings, PreemptionRules(self.now, occupants, self.orders, **rules))
        found: list[VacateOrder] = []
        while (vacate := round_.next_vacate()) is not None:
            if isinstance(vacate, NeedsJobAds):
                self._bring(openings, vacate.task_queue, self.jobs[vacate.task_queue.id])
            else:
                found.append(vacate)
        return found

    def _match(self, slots: Iterable[SlotOffer], openings: OpenSlots) -> list[tuple[Reservation, int]]:
        left = {queue: list(heads) for queue, heads in self.jobs.items()}
        round_ = MatchRound(slots, openings)
        made: list[tuple[Reservation, int]] = []
        while (choice := round_.next_reservation()) is not None:
            if isinstance(choice, NeedsJobAds):
                self._bring(openings, choice.task_queue, left[choice.task_queue.id])
                continue
            heads = left[choice.task_queue.id]
            place = 0 if choice.job_id is None else [head.job_id for head in heads].index(choice.job_id)
            made.append((choice, heads.pop(place).job_id))
            round_.confirm(choice, heads[0] if heads else None)
        return made

    def _bring(self, openings: OpenSlots, task_queue: TaskQueue, heads: Iterable[QueueHead]) -> None:
        common = traits_ad(task_queue.traits)
        ads = [SingleJob(head.job_id, {**common, **self._own[head.job_id]}) for head in heads]
        openings.ranked_jobs.add_single_jobs(task_queue, ads)


def _occupant(stamp: str, slot: SlotOffer) -> Occupant:
    assert slot.occupied is not None
    return Occupant(stamp, slot.occupied.job_id, slot.occupied.attempt)


def a_slot_with(name: str = "slot1", claim: Account | None = None, **ad: Any) -> SlotOffer:
    """Return a slot that asks for work, with an ad of these expressions."""
    text = "[" + "; ".join(f"{name_text(attribute)} = {expression}" for attribute, expression in ad.items()) + "]"
    return a_slot(name, ad_changes=text, claim=claim)


def an_occupied_slot(
    name: str = "slot1", job_id: int = 1000, rank: float = 0.0, *, ordered: bool = False, **ad: Any
) -> SlotOffer:
    """Return a slot that a job is in, with an ad of these expressions."""
    return a_slot_with(name, **ad)._replace(occupied=OccupiedSlot(job_id, 1, rank, ordered))
