"""Matching over waiting jobs and shares in memory: by the general matcher alone, and by both to compare them."""

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
from pilotage_server.core.matching.matcher import Matcher, MatchRequest, NeedsGeneralMatcher, NeedsHeads
from pilotage_server.core.matching.preemption import Occupant, PreemptionRound, PreemptionRules, VacateOrders
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
from support.virtual_clock import START

NO_MARGIN = timedelta(0)
END_MARGIN = timedelta(seconds=30)
QUEUE = QueueId("CERN", "ce01", "long")


class MatchBench:
    """Task queues, shares and policies that slots are matched against by the general matcher, at the time `now`."""

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
        """Match slots; return each reservation with its job."""
        return self._match(slots, self.open_slots(limits))

    def open_slots(self, limits: dict[RunningLimit, int] | None = None, users: Mapping[str, Account] = {}) -> OpenSlots:
        """Return the open slots of a round; `users` are the accounts of occupied slots, by slot."""
        shares = self.shares.round(self.now)

        def evaluator(slot: SlotOffer) -> MatchPolicyEvaluator:
            policy = self.policies.policy(slot, QUEUE)
            assert policy is not None
            user = (users or {}).get(slot.name)
            return self.policies.evaluator(
                policy, EvaluationTime(self.now, None if user is None else shares.user_priority(user))
            )

        return OpenSlots(
            MatchScope(self.index, lambda _: True),
            SlotEvaluators(evaluator, self.policies.views),
            MatchLimits(LimitRound(limits or {}), shares, NO_MARGIN),
        )

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
        open_slots = self.open_slots(users=accounts)
        self._match([slot for slot in slots if slot.occupied is None], open_slots)
        occupants = {slot.name: (_occupant(stamp, slot), accounts[slot.name]) for slot in occupied}
        round_ = PreemptionRound(occupied, open_slots, PreemptionRules(self.now, occupants, self.orders, **rules))
        found: list[VacateOrder] = []
        while (vacate := round_.next_vacate()) is not None:
            if isinstance(vacate, NeedsJobAds):
                self._add_job_ads(open_slots, vacate.task_queue, self.jobs[vacate.task_queue.id])
            else:
                found.append(vacate)
        return found

    def _match(self, slots: Iterable[SlotOffer], open_slots: OpenSlots) -> list[tuple[Reservation, int]]:
        left = {queue: list(heads) for queue, heads in self.jobs.items()}
        round_ = MatchRound(slots, open_slots)
        made: list[tuple[Reservation, int]] = []
        while (choice := round_.next_reservation()) is not None:
            if isinstance(choice, NeedsJobAds):
                self._add_job_ads(open_slots, choice.task_queue, left[choice.task_queue.id])
                continue
            heads = left[choice.task_queue.id]
            index = 0 if choice.job_id is None else [head.job_id for head in heads].index(choice.job_id)
            made.append((choice, heads.pop(index).job_id))
            round_.confirm(choice, heads[0] if heads else None)
        return made

    def _add_job_ads(self, open_slots: OpenSlots, task_queue: TaskQueue, heads: Iterable[QueueHead]) -> None:
        common = traits_ad(task_queue.traits)
        ads = [SingleJob(head.job_id, {**common, **self._own[head.job_id]}) for head in heads]
        open_slots.ranked_jobs.add_single_jobs(task_queue, ads)


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
    """The memory of a server and the jobs of its database; `matched` are the ids of matched jobs."""

    sharing: Sharing
    tree: ActiveTree
    limits: dict[RunningLimit, int] = field(default_factory=dict)
    mappings: PoolMappings = field(default_factory=PoolMappings)
    index: TaskQueueIndex = field(default_factory=TaskQueueIndex)
    jobs: dict[int, list[QueueHead]] = field(default_factory=dict)
    matched: list[int] = field(default_factory=list)
    declined: int = 0

    def __post_init__(self) -> None:
        self.shares = FairShare(self.sharing)
        self.policies = SlotPolicies()
        self.matcher = Matcher(self.index, self.shares, self.policies, END_MARGIN)
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

    def match_generally(
        self, queue: QueueId, vos: tuple[str, ...], slots: Sequence[SlotOffer], now: datetime
    ) -> list[MatchedJob]:
        """Match the slots by the general matcher."""
        isolation = slots[0].isolation if slots else Isolation.NONE
        for task_queue_id in self.index.headless():
            heads = self.jobs[task_queue_id]
            self.index.refresh_head(task_queue_id, heads[0] if heads else None)
        open_slots = OpenSlots(
            MatchScope(self.index, PilotAccess(self.reach, queue, vos, isolation).admits),
            SlotEvaluators(lambda slot: self._evaluator(slot, queue, now), self.policies.views),
            MatchLimits(LimitRound(self.limits), self.shares.round(now), END_MARGIN),
        )
        round_ = MatchRound(slots, open_slots)
        served: list[MatchedJob] = []
        reserved: list[tuple[Reservation, int]] = []
        while (choice := round_.next_reservation()) is not None:
            if isinstance(choice, NeedsJobAds):
                common = traits_ad(choice.task_queue.traits)
                singles = [SingleJob(head.job_id, common) for head in self.jobs[choice.task_queue.id]]
                open_slots.ranked_jobs.add_single_jobs(choice.task_queue, singles)
                continue
            heads = self.jobs[choice.task_queue.id]
            job_id = heads[0].job_id if choice.job_id is None else choice.job_id
            heads[:] = [head for head in heads if head.job_id != job_id]
            served.append(_served(choice, job_id))
            reserved.append((choice, job_id))
            round_.confirm(choice, heads[0] if heads else None)
        for choice, job_id in reserved:
            task_queue = choice.task_queue
            self.shares.start_run(task_queue.account, choice.weight, now)
            self.index.remove_job(task_queue.id, job_id)
            heads = self.jobs[task_queue.id]
            self.index.refresh_head(task_queue.id, heads[0] if heads else None)
        self._count(served, [choice.task_queue for choice, _ in reserved])
        return served

    def match_quickly(
        self, queue: QueueId, vos: tuple[str, ...], slots: Sequence[SlotOffer], now: datetime
    ) -> list[MatchedJob]:
        """Match the slots by the matcher, and what it declines by the general matcher."""
        served: list[MatchedJob] = []
        for ask, choices in self.chosen(queue, vos, slots, now):
            served += self._claim(choices)
            self._count(served[-len(choices) :] if choices else [], [choice.task_queue for choice in choices])
            if ask is not None:
                self.declined += 1
                served += self.match_generally(queue, vos, ask.slots, now)
        return served

    def chosen(
        self, queue: QueueId, vos: tuple[str, ...], slots: Sequence[SlotOffer], now: datetime
    ) -> Iterable[tuple[MatchRequest | None, list[Reservation]]]:
        """Yield the reservations of the matcher, with the request that it declined."""
        ask: MatchRequest | None = self.match_request(queue, vos, slots, now)
        choices: list[Reservation] = []
        while ask is not None:
            chosen = self.matcher.choose(ask, self.reach)
            self.matcher.check()
            choices += chosen.reservations
            match chosen.rest:
                case NeedsHeads(wanted, ask):
                    for task_queue_id, most in wanted.items():
                        self.matcher.refresh_heads(task_queue_id, self.jobs[task_queue_id][:most], most)
                case NeedsGeneralMatcher(_, rest):
                    return [(rest, choices)]
                case None:
                    ask = None
        return [(None, choices)]

    def match_request(
        self, queue: QueueId, vos: tuple[str, ...], slots: Sequence[SlotOffer], now: datetime
    ) -> MatchRequest:
        """Return the match request of a pilot."""
        policies = {slot.name: self.policies.policy(slot, queue) for slot in slots if slot.has_ad}
        known = {name: policy for name, policy in policies.items() if policy is not None}
        return MatchRequest(queue, vos, tuple(slots), LimitRound(self.limits), now, known)

    def _claim(self, choices: Sequence[Reservation]) -> list[MatchedJob]:
        served: dict[int, MatchedJob] = {}
        for task_queue_id in dict.fromkeys(choice.task_queue.id for choice in choices):
            mine = [
                (position, choice) for position, choice in enumerate(choices) if choice.task_queue.id == task_queue_id
            ]
            heads = self.jobs[task_queue_id]
            job_ids = [head.job_id for head in heads[: len(mine)]]
            del heads[: len(mine)]
            for (position, choice), job_id in zip(mine, job_ids, strict=True):
                served[position] = _served(choice, job_id)
            self.matcher.confirm([choice for _, choice in mine], job_ids)
            self.matcher.commit(task_queue_id, job_ids)
        self.matcher.check()
        return [served[position] for position in sorted(served)]

    def _count(self, served: Iterable[MatchedJob], task_queues: Iterable[TaskQueue]) -> None:
        self.matched += (each.job_id for each in served)
        for task_queue in task_queues:
            for limit in self.limits:
                self.limits[limit] += counts_for(limit, task_queue.traits)

    def _evaluator(self, slot: SlotOffer, queue: QueueId, now: datetime) -> MatchPolicyEvaluator:
        policy = self.policies.policy(slot, queue)
        assert policy is not None
        return self.policies.evaluator(policy, EvaluationTime(now))


def _served(choice: Reservation, job_id: int) -> MatchedJob:
    return MatchedJob(choice.slot, job_id, choice.amounts, choice.weight)
