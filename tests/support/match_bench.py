"""Matching over waiting jobs and shares in memory: by the matcher alone, and compared with the reference matcher."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from pilotage.classads.library import AdValue
from pilotage.classads.text import name_text
from pilotage.job_description import Value
from pilotage.resources.requirements import JobNeeds
from pilotage.resources.tree import QueueId
from pilotage.values.accounts import Account
from pilotage.values.amounts import Amounts
from pilotage.values.isolation import Isolation
from pilotage.values.offers import OccupiedSlot, SlotOffer, VacateOrder
from pilotage_server.core.accounting.fair_share import FairShare
from pilotage_server.core.accounting.limits import LimitRound, counts_for
from pilotage_server.core.matching.job_views import SINGLE_JOBS_AT_ONCE, SingleJobs
from pilotage_server.core.matching.matcher import RANK_EFFORT, Matcher, NeedsHeads, Reservation
from pilotage_server.core.matching.preemption import Occupant, PreemptionRules, VacateOrders, preemption_order
from pilotage_server.core.matching.slot_match import MatchRequest
from pilotage_server.core.matching.slot_policy import EvaluationTime, MatchPolicyEvaluator, SlotPolicies
from pilotage_server.core.queueing.index import TaskQueueIndex
from pilotage_server.core.queueing.job_ads import traits_ad
from pilotage_server.core.queueing.reach import PilotAccess, QueueAccess
from pilotage_server.core.queueing.task_queue import TaskQueue, Traits
from pilotage_server.core.queueing.waiting_jobs import QueueHead
from pilotage_server.core.resources.mappings import PoolMapping, PoolMappings
from pilotage_server.core.resources.tree import ActiveTree
from pilotage_server.core.rules import RunningLimit, Sharing
from support.grid import a_slot
from support.reference_matcher import (
    JobWithAd,
    MatchLimits,
    MatchRound,
    MatchScope,
    NeedsJobAds,
    OpenSlots,
    ReferencePreemption,
    RoundChoice,
    SlotEvaluators,
)
from support.trees import a_tree
from support.virtual_clock import START

NO_MARGIN = timedelta(0)
END_MARGIN = timedelta(seconds=30)
QUEUE = QueueId("CERN", "ce01", "long")
SITES: Mapping[str, Any] = {QUEUE.site: {"ces": {QUEUE.ce: {"queues": {QUEUE.queue: {}}}}}}


class MatchBench:
    """Task queues, shares and policies that slots are matched against at the time `now`."""

    def __init__(self, sharing: Sharing | None = None) -> None:
        self.index = TaskQueueIndex()
        self.jobs: dict[int, list[QueueHead]] = {}
        self.queues: dict[int, TaskQueue] = {}
        self.shares = FairShare(sharing or Sharing())
        self.policies = SlotPolicies()
        self.orders = VacateOrders()
        self.now: datetime = START
        self.matcher = Matcher(self.index, self.shares, self.policies, NO_MARGIN)
        self._access = QueueAccess(ActiveTree(1, a_tree(sites=SITES)), PoolMappings())
        self._own: dict[int, Mapping[str, AdValue]] = {}
        self._last_job = 0

    def queue(
        self,
        owner: str = "alice",
        group: str = "users",
        traits: Mapping[str, Any] | None = None,
        attributes: Mapping[str, Value] | None = None,
        **needs: Any,
    ) -> int:
        """Add a task queue and return its id; `traits` are other fields of its traits."""
        number = len(self.queues) + 1
        values = tuple(sorted((name.lower(), json.dumps(value)) for name, value in (attributes or {}).items()))
        base = Traits(Account("lhcb", group, owner), "", JobNeeds(**needs), values)
        self.queues[number] = TaskQueue(number, replace(base, **(traits or {})))
        self.index.add(self.queues[number])
        self.jobs[number] = []
        return number

    def job(self, queue: int, priority: int = 0, **own: AdValue) -> int:
        """Add a waiting job and return its id; `own` are attributes that its task queue lacks."""
        self._last_job += 1
        head = QueueHead(priority, self._last_job)
        self.jobs[queue].append(head)
        self.jobs[queue].sort(key=lambda each: each.order)
        self.index.add_jobs(queue, head)
        self._own[head.job_id] = own
        return self._last_job

    def waiting(self, owner: str = "alice", **fields: Any) -> int:
        """Add a job in a new task queue and return its id."""
        return self.job(self.queue(owner, **fields))

    def round(self, *slots: SlotOffer, limits: dict[RunningLimit, int] | None = None) -> list[tuple[Reservation, int]]:
        """Match slots; return each reservation with its job. The jobs wait on."""
        reservations = self._match(slots, limits)
        self.matcher.unreserve(reservations, self.now)
        return [(reservation, reservation.head.job_id) for reservation in reservations]

    def matched_jobs(self, *slots: SlotOffer, limits: dict[RunningLimit, int] | None = None) -> list[int]:
        """Match slots; return the matched jobs in order."""
        return [job for _, job in self.round(*slots, limits=limits)]

    def places(self, *slots: SlotOffer) -> dict[int, str]:
        """Match slots; return the slot of each matched job."""
        return {job: choice.slot for choice, job in self.round(*slots)}

    def vacates(
        self, *slots: SlotOffer, users: Mapping[str, str] | None = None, stamp: str = "p", **rules: Any
    ) -> list[VacateOrder]:
        """Match free slots, then return the orders to vacate occupied ones; `users` own their jobs, by default bob."""
        occupied = [slot for slot in slots if slot.occupied is not None]
        accounts = {slot.name: Account("lhcb", "users", (users or {}).get(slot.name, "bob")) for slot in occupied}
        occupants = {slot.name: (_occupant(stamp, slot), accounts[slot.name]) for slot in occupied}
        given_rules = PreemptionRules(occupants, self.orders, **rules)
        reservations = self._match([slot for slot in slots if slot.occupied is None])
        request = self._request(preemption_order(occupied, given_rules))
        found: list[VacateOrder] = []
        while True:
            vacates = self.matcher.vacates(request, self._access, given_rules)
            found += vacates.orders
            if vacates.rest is None:
                self.matcher.unreserve(reservations, self.now)
                return found
            request = self._after_reading(vacates.rest)

    def _match(self, slots: Iterable[SlotOffer], limits: dict[RunningLimit, int] | None = None) -> list[Reservation]:
        request = self._request(slots, limits)
        reservations: list[Reservation] = []
        while True:
            chosen = self.matcher.choose(request, self._access)
            reservations += chosen.reservations
            if chosen.rest is None:
                return reservations
            request = self._after_reading(chosen.rest) if isinstance(chosen.rest, NeedsHeads) else chosen.rest

    def _request(self, slots: Iterable[SlotOffer], limits: dict[RunningLimit, int] | None = None) -> MatchRequest:
        offered = tuple(slots)
        policies = {slot.name: policy for slot in offered if (policy := self.policies.policy(slot, QUEUE)) is not None}
        return MatchRequest(QUEUE, (), offered, LimitRound(limits or {}), SingleJobs(), self.now, policies)

    def _after_reading(self, needs: NeedsHeads) -> MatchRequest:
        """Return the request to go on with, after the jobs that it needs were read."""
        (task_queue_id, most, with_ads), request = needs
        first = self.jobs[task_queue_id][:most]
        self.matcher.refresh_heads(task_queue_id, first, most)
        if with_ads:
            common = traits_ad(self.queues[task_queue_id].traits)
            request.single_jobs.add(task_queue_id, {job: {**common, **self._own[job]} for _, job in first}, most)
        return request


def _occupant(stamp: str, slot: SlotOffer) -> Occupant:
    assert slot.occupied is not None
    return Occupant(stamp, slot.occupied.job_id, slot.occupied.attempt)


def a_slot_with(name: str = "slot1", claim: Account | None = None, **ad: Any) -> SlotOffer:
    """Return the offer of a free slot with an ad of these expressions."""
    text = "[" + "; ".join(f"{name_text(attribute)} = {expression}" for attribute, expression in ad.items()) + "]"
    return a_slot(name, ad_changes=text, claim=claim)


def an_occupied_slot(
    name: str = "slot1", job_id: int = 1000, rank: float = 0.0, *, ordered: bool = False, **ad: Any
) -> SlotOffer:
    """Return the offer of an occupied slot with an ad of these expressions."""
    return a_slot_with(name, **ad)._replace(occupied=OccupiedSlot(job_id, 1, rank, ordered))


class MatchedJob(NamedTuple):
    """A job that a slot has got, with its allocation."""

    slot: str
    job_id: int
    amounts: Amounts
    weight: float


@dataclass
class MatcherComparison:
    """The memory of a server and the jobs of its database; `rests` counts how often the matcher has taken a rest."""

    sharing: Sharing
    tree: ActiveTree
    limits: dict[RunningLimit, int] = field(default_factory=dict)
    most_singles: int = SINGLE_JOBS_AT_ONCE
    mappings: PoolMappings = field(default_factory=PoolMappings)
    index: TaskQueueIndex = field(default_factory=TaskQueueIndex)
    jobs: dict[int, list[QueueHead]] = field(default_factory=dict)
    rank_effort: int = RANK_EFFORT
    rests: int = 0

    def __post_init__(self) -> None:
        self.shares = FairShare(self.sharing)
        self.policies = SlotPolicies()
        self.orders = VacateOrders()
        self.matcher = Matcher(self.index, self.shares, self.policies, END_MARGIN, self.rank_effort)
        self.reach = QueueAccess(self.tree, self.mappings)

    def activate_tree(self, tree: ActiveTree) -> None:
        """Make another tree the active one."""
        self.tree = tree
        self.reach = QueueAccess(tree, self.mappings)

    def map_pool(self, pool_id: str, queues: Iterable[QueueId], now: datetime) -> None:
        """Map a pool to other queues."""
        self.mappings.put([PoolMapping(pool_id, "lhcb", self.tree.order.queue_set(queues), now, 1)])

    def add(self, task_queue: TaskQueue) -> None:
        self.jobs[task_queue.id] = []
        self.index.add(task_queue)

    def add_jobs(self, task_queue_id: int, heads: Sequence[QueueHead]) -> None:
        """Add the jobs of one submission, all of one priority."""
        self.jobs[task_queue_id] = sorted((*self.jobs[task_queue_id], *heads), key=lambda head: head.order)
        self.index.add_jobs(task_queue_id, heads[0], len(heads))

    def remove_job(self, task_queue_id: int, number: int) -> None:
        """Remove a waiting job, chosen by `number`."""
        heads = self.jobs[task_queue_id]
        if heads:
            self.index.remove_job(task_queue_id, heads.pop(number % len(heads)).job_id)

    def match_by_reference(
        self, queue: QueueId, vos: tuple[str, ...], slots: Sequence[SlotOffer], now: datetime
    ) -> list[MatchedJob]:
        """Match the slots by the reference matcher."""
        isolation = slots[0].isolation if slots else Isolation.NONE
        open_slots = self._open_slots(queue, vos, isolation, now)
        round_ = MatchRound(slots, open_slots)
        served: list[tuple[TaskQueue, MatchedJob]] = []
        while (choice := round_.next_reservation()) is not None:
            if isinstance(choice, NeedsJobAds):
                self._add_job_ads(open_slots, choice.task_queue)
                continue
            task_queue = choice.task_queue
            job_id = self.jobs[task_queue.id][0].job_id if choice.job_id is None else choice.job_id
            self._remove(task_queue.id, [job_id])
            served.append((task_queue, _served(choice, job_id)))
            left = self.jobs[task_queue.id]
            round_.confirm(choice, job_id, left[0] if left else None)
        for task_queue, job in served:
            self.shares.start_run(task_queue.account, job.weight, now)
            self.remove_matched(task_queue, job)
        return [job for _, job in served]

    def vacates_by_reference(
        self, queue: QueueId, vos: tuple[str, ...], slots: Sequence[SlotOffer], users: Sequence[Account], now: datetime
    ) -> list[VacateOrder]:
        """Return the orders to vacate occupied slots, which jobs of these users occupy, by the reference matcher."""
        rules = self._preemption_rules(slots, users)
        open_slots = self._open_slots(queue, vos, slots[0].isolation, now, rules)
        round_ = ReferencePreemption(slots, open_slots, rules, now)
        found: list[VacateOrder] = []
        while (vacate := round_.next_vacate()) is not None:
            if isinstance(vacate, NeedsJobAds):
                self._add_job_ads(open_slots, vacate.task_queue)
            else:
                found.append(vacate)
        return found

    def vacates(
        self, queue: QueueId, vos: tuple[str, ...], slots: Sequence[SlotOffer], users: Sequence[Account], now: datetime
    ) -> list[VacateOrder]:
        """Return the orders to vacate occupied slots, which jobs of these users occupy, by the matcher."""
        rules = self._preemption_rules(slots, users)
        request = self.match_request(queue, vos, preemption_order(slots, rules), now)
        found: list[VacateOrder] = []
        while True:
            vacates = self.matcher.vacates(request, self.reach, rules)
            self.matcher.check()
            found += vacates.orders
            if vacates.rest is None:
                return found
            request = self._after_reading(vacates.rest)

    def match(
        self, queue: QueueId, vos: tuple[str, ...], slots: Sequence[SlotOffer], now: datetime
    ) -> list[MatchedJob | None]:
        """Match the slots by the matcher."""
        return self.claim(self.chosen(queue, vos, slots, now), now)

    def chosen(
        self, queue: QueueId, vos: tuple[str, ...], slots: Sequence[SlotOffer], now: datetime
    ) -> list[Reservation]:
        """Return the reservations of the matcher."""
        request = self.match_request(queue, vos, slots, now)
        choices: list[Reservation] = []
        while True:
            chosen = self.matcher.choose(request, self.reach)
            self.matcher.check()
            choices += chosen.reservations
            if chosen.rest is None:
                return choices
            if isinstance(chosen.rest, NeedsHeads):
                request = self._after_reading(chosen.rest)
            else:
                request = chosen.rest
                self.rests += 1

    def match_request(
        self, queue: QueueId, vos: tuple[str, ...], slots: Sequence[SlotOffer], now: datetime
    ) -> MatchRequest:
        """Return the match request of a pilot."""
        policies = {slot.name: self.policies.policy(slot, queue) for slot in slots if slot.has_ad}
        known = {name: policy for name, policy in policies.items() if policy is not None}
        return MatchRequest(
            queue, vos, tuple(slots), LimitRound(self.limits), SingleJobs(self.most_singles), now, known
        )

    def claim(self, choices: Sequence[Reservation], now: datetime) -> list[MatchedJob | None]:
        """Claim the jobs of reservations, in order, as the database does; None = a certain job waits no longer."""
        served: dict[int, MatchedJob] = {}
        for task_queue_id in dict.fromkeys(choice.task_queue.id for choice in choices):
            mine = [(index, choice) for index, choice in enumerate(choices) if choice.task_queue.id == task_queue_id]
            waiting = [head.job_id for head in self.jobs[task_queue_id]]
            certain = {choice.job_id for _, choice in mine}
            firsts = iter([job_id for job_id in waiting if job_id not in certain])
            given = {
                index: next(firsts) if choice.job_id is None else choice.job_id
                for index, choice in mine
                if choice.job_id is None or choice.job_id in waiting
            }
            served |= {index: _served(choices[index], job_id) for index, job_id in given.items()}
            job_ids = list(given.values())
            self._remove(task_queue_id, job_ids)
            if given:
                self.matcher.confirm([choices[index] for index in given], job_ids)
                self.matcher.commit([choices[index] for index in given], job_ids)
        self.matcher.unreserve([choice for index, choice in enumerate(choices) if index not in served], now)
        self.matcher.check()
        for index in served:
            self._count(choices[index].task_queue)
        return [served.get(index) for index in range(len(choices))]

    def remove_matched(self, task_queue: TaskQueue, job: MatchedJob) -> None:
        """Apply that a job was matched elsewhere."""
        self._remove(task_queue.id, [job.job_id])
        self.index.remove_job(task_queue.id, job.job_id)
        self._count(task_queue)

    def _remove(self, task_queue_id: int, job_ids: Sequence[int]) -> None:
        self.jobs[task_queue_id] = [head for head in self.jobs[task_queue_id] if head.job_id not in job_ids]

    def _count(self, task_queue: TaskQueue) -> None:
        """Count a job that has got a lease."""
        for limit in self.limits:
            self.limits[limit] += counts_for(limit, task_queue.traits)

    def _ad(self, task_queue_id: int, head: QueueHead) -> Mapping[str, AdValue]:
        """Return the ad of a job; jobs differ in the attributes that the traits of their task queue do not hold."""
        waiting = self.index.get(task_queue_id)
        assert waiting is not None
        traits = waiting.task_queue.traits
        return {**traits_ad(traits), "ProcId": head.job_id, **dict.fromkeys(traits.escaped, head.job_id % 3)}

    def _after_reading(self, needs: NeedsHeads) -> MatchRequest:
        """Return the request to go on with, after the jobs that it needs were read."""
        (task_queue_id, most, with_ads), request = needs
        first = self.jobs[task_queue_id][:most]
        self.matcher.refresh_heads(task_queue_id, first, most)
        if with_ads:
            ads = {head.job_id: self._ad(task_queue_id, head) for head in first}
            request.single_jobs.add(task_queue_id, ads, most)
        return request

    def _add_job_ads(self, open_slots: OpenSlots, task_queue: TaskQueue) -> None:
        jobs = [JobWithAd(head.job_id, self._ad(task_queue.id, head)) for head in self.jobs[task_queue.id]]
        open_slots.ranked_jobs.add_single_jobs(task_queue, jobs)

    def _preemption_rules(self, slots: Sequence[SlotOffer], users: Sequence[Account]) -> PreemptionRules:
        occupants = {slot.name: (_occupant("p", slot), user) for slot, user in zip(slots, users, strict=True)}
        return PreemptionRules(occupants, self.orders)

    def _open_slots(
        self,
        queue: QueueId,
        vos: tuple[str, ...],
        isolation: Isolation,
        now: datetime,
        rules: PreemptionRules | None = None,
    ) -> OpenSlots:
        """Return the open slots of a round, with all first jobs known."""
        for task_queue_id, heads in self.jobs.items():
            self.index.refresh_heads(task_queue_id, heads, is_all=True)
        shares = self.shares.round(now)

        def evaluator(slot: SlotOffer) -> MatchPolicyEvaluator:
            policy = self.policies.policy(slot, queue)
            assert policy is not None
            priority = None if rules is None else shares.user_priority(rules.occupants[slot.name][1])
            return self.policies.evaluator(policy, EvaluationTime(now, priority))

        return OpenSlots(
            MatchScope(self.index, PilotAccess(self.reach, queue, vos, isolation).admits),
            SlotEvaluators(evaluator, self.policies.views),
            MatchLimits(LimitRound(self.limits), shares, END_MARGIN),
            self.most_singles,
        )


def _served(choice: Reservation | RoundChoice, job_id: int) -> MatchedJob:
    return MatchedJob(choice.slot, job_id, choice.amounts, choice.weight)
