"""The quick choice: which waiting jobs go to the free slots of many requests, taken at once and given back if need be.

Rules
-----
What the board chooses is what `matching.MatchRound` would choose for the same state. A choice is taken at once out of
what waits, and its account is charged, so that the next request sees it, whoever serves that. Each choice comes to
exactly one end: `bound` when the transaction that claimed jobs for it has committed, `missed` when the database had
none, `put_back` when the transaction failed. The board knows of each task queue who is first and perhaps a few that
follow; where the order depends on more, it asks for heads. What it cannot decide it declines, to be decided the plain
way. Who calls holds the lock of the memory that the board is over, and never while the database is asked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import NamedTuple

from pilotage.resource_tree import QueueId
from pilotage_server.core.fair_share import FairShare
from pilotage_server.core.limits import LimitRound
from pilotage_server.core.matching import MOST_CHOICES, Choice, MatchRound
from pilotage_server.core.openings import Bounds, HeadsWanted, Openings, Policies
from pilotage_server.core.reach import Door, Reach
from pilotage_server.core.slot_policies import Moment, SlotJudge, SlotPolicies, SlotPolicy
from pilotage_server.core.slots import SlotOffer
from pilotage_server.core.waiting import Head, WaitingIndex
from pilotage_server.core.waiting_order import Candidates

HEADS_AT_ONCE = 64
"""So many jobs of a task queue are asked for at first."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One request for jobs, or what is left of it.

    `queue` and `vos` are those of the pilot's credential (no VOs = all). `slots` are free, in the order to be served.
    `policies` holds the policy of each slot that has an ad, by slot; none of them is faulty. `limits` are those of the
    queue; what is chosen is counted there.
    """

    queue: QueueId
    vos: Iterable[str]
    slots: tuple[SlotOffer, ...]
    limits: LimitRound
    now: datetime
    policies: Mapping[str, SlotPolicy] = field(default_factory=dict)


class HeadsUnknown(NamedTuple):
    """The order depends on heads that are not known: bring them (`MatchBoard.heads`), then go on with `ask`.

    `wanted` says how many to read, by task queue.
    """

    wanted: Mapping[int, int]
    ask: Ask


class Declined(NamedTuple):
    """`ask` has to be decided the plain way, and why, in words for people."""

    reason: str
    ask: Ask


class Chosen(NamedTuple):
    """What was chosen, in the order of the slots; `rest` None = all slots were served as far as jobs fit them."""

    choices: tuple[Choice, ...]
    rest: HeadsUnknown | Declined | None = None


class MatchBoard:
    """The choice over what waits, the shares and the policies of one server's memory."""

    def __init__(self, waiting: WaitingIndex, shares: FairShare, policies: SlotPolicies, end_margin: timedelta) -> None:
        self._waiting = waiting
        self._shares = shares
        self._policies = policies
        self._end_margin = end_margin

    def choose(self, ask: Ask, reach: Reach) -> Chosen:
        """Choose jobs for the slots and take them; bans apart, which who asks has looked at."""
        choices: list[Choice] = []
        left = list(ask.slots)
        while left and len(choices) < MOST_CHOICES:
            found = self._next(ask, reach, left)
            if isinstance(found, Mapping):
                return Chosen(tuple(choices), HeadsUnknown(found, replace(ask, slots=tuple(left))))
            if isinstance(found, str):
                return Chosen(tuple(choices), Declined(found, replace(ask, slots=tuple(left))))
            slot = left.pop(0)
            if found is None:
                continue
            choices.append(found)
            self._take(ask, found)
            if slot.partitionable and slot.max_jobs != 1:
                left.insert(0, replace(slot, free=slot.free - found.amounts, max_jobs=max(0, slot.max_jobs - 1)))
        return Chosen(tuple(choices))

    def heads(self, task_queue_id: int, heads: Sequence[Head], asked: int) -> None:
        """Take in the first waiting jobs of a task queue, in order, as the database has them.

        Fewer than `asked` = there are no more. Jobs that are chosen and not bound yet may be among them.
        """
        self._waiting.renew_head(task_queue_id, heads[0] if heads else None)

    def bound(self, choices: Sequence[Choice], job_ids: Sequence[int]) -> None:
        """Take note of which jobs choices of one task queue have become; to be told after the commit.

        The database may have given other jobs than the heads that were chosen: others were quicker.
        """

    def missed(self, choices: Sequence[Choice], now: datetime) -> None:
        """Take note that nothing waits any more in the task queues of these choices, and relieve their accounts."""
        for choice in choices:
            self._shares.ended(choice.task_queue.account, choice.weight, now)

    def put_back(self, choices: Sequence[Choice], now: datetime) -> None:
        """Let wait again what was chosen, and relieve the accounts: the transaction failed."""
        for choice in choices:
            self._shares.ended(choice.task_queue.account, choice.weight, now)
            if choice.head is not None:
                self._waiting.enqueued(choice.task_queue.id, choice.head)

    def _next(self, ask: Ask, reach: Reach, left: list[SlotOffer]) -> Choice | Mapping[int, int] | str | None:
        headless = self._waiting.headless()
        if headless:
            return dict.fromkeys(headless, HEADS_AT_ONCE)
        shares = self._shares.round(ask.now)
        openings = Openings(
            Candidates(self._waiting, Door(reach, ask.queue, ask.vos).can_go),
            Policies(lambda slot: self._judge(ask, slot), self._policies.views),
            Bounds(ask.limits, shares, self._end_margin),
        )
        found = MatchRound(left[:1], openings).next_choice()
        if isinstance(found, HeadsWanted):
            return f"jobs of task queue {found.task_queue.id} have to be asked one by one"
        if found is not None and found.task_queue.traits.rank and len(left) > 1:
            return f"jobs of task queue {found.task_queue.id} rank slots"
        return None if found is None else found._replace(head=self._waiting.head(found.task_queue.id))

    def _judge(self, ask: Ask, slot: SlotOffer) -> SlotJudge:
        policy = ask.policies.get(slot.name) or self._policies.policy(slot, ask.queue)
        assert policy is not None, "a slot without an ad has a policy"
        return self._policies.ask(policy.resized(slot.free), Moment(ask.now))

    def _take(self, ask: Ask, choice: Choice) -> None:
        assert choice.head is not None, "it was just looked up"
        ask.limits.given(choice.task_queue.traits)
        self._shares.started(choice.task_queue.account, choice.weight, ask.now)
        self._waiting.dequeued(choice.task_queue.id, choice.head.job_id)
