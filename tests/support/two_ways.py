"""One world of waiting jobs twice: one is served the plain way, the other by the board; both have jobs to claim."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple

from pilotage.resource_tree import QueueId
from pilotage_server.core.amounts import Amounts
from pilotage_server.core.fair_share import FairShare
from pilotage_server.core.job_ads import traits_ad
from pilotage_server.core.limits import LimitRound, counts_for
from pilotage_server.core.match_board import Ask, Declined, HeadsUnknown, MatchBoard
from pilotage_server.core.matching import Choice, MatchRound
from pilotage_server.core.openings import Bounds, HeadsWanted, Openings, Policies, SingleJob
from pilotage_server.core.pool_mappings import PoolMapping, PoolMappings
from pilotage_server.core.reach import Door, Reach
from pilotage_server.core.rules import RunningLimit, Sharing
from pilotage_server.core.slot_policies import Moment, SlotJudge, SlotPolicies
from pilotage_server.core.slots import SlotOffer
from pilotage_server.core.task_queues import TaskQueue
from pilotage_server.core.tree_in_force import TreeInForce
from pilotage_server.core.waiting import Head, WaitingIndex
from pilotage_server.core.waiting_order import Candidates

END_MARGIN = timedelta(seconds=30)


class Served(NamedTuple):
    """What a slot got."""

    slot: str
    job_id: int
    amounts: Amounts
    weight: float


@dataclass
class World:
    """The memory of a server and the jobs of its database; `bound` are those that a match has claimed."""

    sharing: Sharing
    tree: TreeInForce
    limits: dict[RunningLimit, int] = field(default_factory=dict)
    mappings: PoolMappings = field(default_factory=PoolMappings)
    index: WaitingIndex = field(default_factory=WaitingIndex)
    jobs: dict[int, list[Head]] = field(default_factory=dict)
    bound: list[int] = field(default_factory=list)
    declined: int = 0

    def __post_init__(self) -> None:
        self.shares = FairShare(self.sharing)
        self.policies = SlotPolicies()
        self.board = MatchBoard(self.index, self.shares, self.policies, END_MARGIN)
        self.reach = Reach(self.tree, self.mappings)

    def bring_tree(self, tree: TreeInForce) -> None:
        """Let another tree be in force."""
        self.tree = tree
        self.reach = Reach(tree, self.mappings)

    def map_pool(self, pool_id: str, queues: Iterable[QueueId], now: datetime) -> None:
        """Let a pool go to other queues."""
        self.mappings.put([PoolMapping(pool_id, "lhcb", self.tree.order.of(queues), now, 1)])

    def add(self, task_queue: TaskQueue) -> None:
        """Add a task queue."""
        self.jobs[task_queue.id] = []
        self.index.take_in(task_queue)

    def come(self, task_queue_id: int, heads: Sequence[Head]) -> None:
        """Let jobs of one submission come, all of one priority."""
        self.jobs[task_queue_id] = sorted((*self.jobs[task_queue_id], *heads), key=lambda head: head.order)
        self.index.enqueued(task_queue_id, heads[0], len(heads))

    def go(self, task_queue_id: int, number: int) -> None:
        """Let a waiting job go."""
        heads = self.jobs[task_queue_id]
        if heads:
            self.index.dequeued(task_queue_id, heads.pop(number % len(heads)).job_id)

    def plainly(self, queue: QueueId, vos: tuple[str, ...], slots: Sequence[SlotOffer], now: datetime) -> list[Served]:
        """Serve the slots the plain way."""
        for task_queue_id in self.index.headless():
            heads = self.jobs[task_queue_id]
            self.index.renew_head(task_queue_id, heads[0] if heads else None)
        openings = Openings(
            Candidates(self.index, Door(self.reach, queue, vos).can_go),
            Policies(lambda slot: self._judge(slot, queue, now), self.policies.views),
            Bounds(LimitRound(self.limits), self.shares.round(now), END_MARGIN),
        )
        round_ = MatchRound(slots, openings)
        served: list[Served] = []
        told: list[tuple[Choice, int]] = []
        while (choice := round_.next_choice()) is not None:
            if isinstance(choice, HeadsWanted):
                common = traits_ad(choice.task_queue.traits)
                singles = [SingleJob(head.job_id, common) for head in self.jobs[choice.task_queue.id]]
                openings.applicants.bring(choice.task_queue, singles)
                continue
            heads = self.jobs[choice.task_queue.id]
            job_id = heads[0].job_id if choice.job_id is None else choice.job_id
            heads[:] = [head for head in heads if head.job_id != job_id]
            served.append(_served(choice, job_id))
            told.append((choice, job_id))
            round_.claimed(choice, heads[0] if heads else None)
        for choice, job_id in told:
            task_queue = choice.task_queue
            self.shares.started(task_queue.account, choice.weight, now)
            self.index.dequeued(task_queue.id, job_id)
            heads = self.jobs[task_queue.id]
            self.index.renew_head(task_queue.id, heads[0] if heads else None)
        self._count(served, [choice.task_queue for choice, _ in told])
        return served

    def quickly(self, queue: QueueId, vos: tuple[str, ...], slots: Sequence[SlotOffer], now: datetime) -> list[Served]:
        """Serve the slots by the board, and what that declines the plain way."""
        served: list[Served] = []
        for ask, choices in self.chosen(queue, vos, slots, now):
            served += self._claim(choices)
            self._count(served[-len(choices) :] if choices else [], [choice.task_queue for choice in choices])
            if ask is not None:
                self.declined += 1
                served += self.plainly(queue, vos, ask.slots, now)
        return served

    def chosen(
        self, queue: QueueId, vos: tuple[str, ...], slots: Sequence[SlotOffer], now: datetime
    ) -> Iterable[tuple[Ask | None, list[Choice]]]:
        """Return what the board chooses, with what it declined."""
        ask: Ask | None = self.ask(queue, vos, slots, now)
        choices: list[Choice] = []
        while ask is not None:
            chosen = self.board.choose(ask, self.reach)
            self.board.check()
            choices += chosen.choices
            match chosen.rest:
                case HeadsUnknown(wanted, ask):
                    for task_queue_id, most in wanted.items():
                        self.board.heads(task_queue_id, self.jobs[task_queue_id][:most], most)
                case Declined(_, rest):
                    return [(rest, choices)]
                case None:
                    ask = None
        return [(None, choices)]

    def ask(self, queue: QueueId, vos: tuple[str, ...], slots: Sequence[SlotOffer], now: datetime) -> Ask:
        """Return what a pilot asks of the board."""
        policies = {slot.name: self.policies.policy(slot, queue) for slot in slots if slot.has_ad}
        there = {name: policy for name, policy in policies.items() if policy is not None}
        return Ask(queue, vos, tuple(slots), LimitRound(self.limits), now, there)

    def _claim(self, choices: Sequence[Choice]) -> list[Served]:
        served: dict[int, Served] = {}
        for task_queue_id in dict.fromkeys(choice.task_queue.id for choice in choices):
            mine = [(place, each) for place, each in enumerate(choices) if each.task_queue.id == task_queue_id]
            heads = self.jobs[task_queue_id]
            given = [head.job_id for head in heads[: len(mine)]]
            del heads[: len(mine)]
            for (place, choice), job_id in zip(mine, given, strict=True):
                served[place] = _served(choice, job_id)
            self.board.claimed([choice for _, choice in mine], given)
            self.board.bound(task_queue_id, given)
        self.board.check()
        return [served[place] for place in sorted(served)]

    def _count(self, served: Iterable[Served], task_queues: Iterable[TaskQueue]) -> None:
        self.bound += (each.job_id for each in served)
        for task_queue in task_queues:
            for limit in self.limits:
                self.limits[limit] += counts_for(limit, task_queue.traits)

    def _judge(self, slot: SlotOffer, queue: QueueId, now: datetime) -> SlotJudge:
        policy = self.policies.policy(slot, queue)
        assert policy is not None
        return self.policies.ask(policy, Moment(now))


def _served(choice: Choice, job_id: int) -> Served:
    return Served(choice.slot, job_id, choice.amounts, choice.weight)
