"""What one slot may take of what waits: its class, then the policies of both sides, each asked when it matters.

Rules
-----
A seeker goes through what its class may take in the order in which it goes, and asks of each task queue what sets
cannot tell: the exact times, the door, limits, START and the jobs' own expressions. What is refused is set aside with
all that look the same to who refused it, so that each kind is asked once. Nothing is taken here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from datetime import datetime, timedelta
from functools import partial
from types import MappingProxyType
from typing import NamedTuple

from pilotage.resource_tree import QueueId
from pilotage_server.core.account_turns import AccountTurns
from pilotage_server.core.amounts import Amounts
from pilotage_server.core.contest import Contest, Seat
from pilotage_server.core.fair_share import FairShare
from pilotage_server.core.job_kinds import Liking, Seen
from pilotage_server.core.job_views import JobNow
from pilotage_server.core.limits import LimitRound
from pilotage_server.core.place_sets import EVERYWHERE, set_of
from pilotage_server.core.slot_classes import SlotClass
from pilotage_server.core.slot_policies import Moment, SlotJudge, SlotPolicies, SlotPolicy
from pilotage_server.core.slots import SlotOffer, fits
from pilotage_server.core.task_queues import TaskQueue
from pilotage_server.core.waiting_line import MOST_OF_A_LINE, Line


class HeadUnknown(NamedTuple):
    """The choice depends on the first jobs of a task queue, so many, and they are not known."""

    line: Line
    needed: int


class Undecided(NamedTuple):
    """It has to be decided the plain way, and why."""

    reason: str


class Part(NamedTuple):
    """What a job gets of a slot, and the weighted cores that it is charged for."""

    amounts: Amounts
    weight: float


class Ask(NamedTuple):
    """One request for jobs, or what is left of it.

    `queue` and `vos` are those of the pilot's credential (no VOs = all). `slots` are free, in the order to be served.
    `policies` holds the policy of each slot that has an ad, by slot; none of them is faulty. `limits` are those of the
    queue; what is chosen is counted there.
    """

    queue: QueueId
    vos: tuple[str, ...]
    slots: tuple[SlotOffer, ...]
    limits: LimitRound
    now: datetime
    policies: Mapping[str, SlotPolicy] = MappingProxyType({})


class Scene(NamedTuple):
    """What all requests to a board have in common."""

    seen: Seen
    shares: FairShare
    policies: SlotPolicies
    turns: AccountTurns
    end_margin: timedelta


class Seeker:
    """One slot, or several that are alike, on the way through what waits."""

    __slots__ = (
        "_accepted",
        "_ask",
        "_class",
        "_contest",
        "_is_plain",
        "_judge",
        "_kind",
        "_later",
        "_limits",
        "_needed",
        "_open",
        "_policy",
        "_scene",
        "_slot",
        "_started",
        "_suited",
        "_tier",
        "_whole",
    )

    def __init__(self, scene: Scene, ask: Ask, slot: SlotOffer, slot_class: SlotClass) -> None:
        policy = ask.policies.get(slot.name)
        self._scene = scene
        self._ask = ask
        self._slot = slot
        self._kind = slot.kind
        self._class = slot_class
        self._policy = None if policy is None else policy.resized(slot.free)
        self._judge: SlotJudge | None = None
        self._open = slot_class.places
        self._is_plain = scene.shares.settings.rules.group_accept_surplus and (policy is None or not policy.start)
        self._accepted = slot_class.sure if self._is_plain else 0
        self._started = 0
        self._suited = 0
        self._limits = ask.limits or None
        self._needed = min(1 + slot.ahead, MOST_OF_A_LINE)
        self._whole: Part | None = None
        self._later = self._in_order_of_liking()
        self._begin()

    def serves(self, slot: SlotOffer) -> bool:
        """Whether another slot finds the same: no ad of either is looked at, and it is alike."""
        return self._judge is None and self._policy is None and slot.kind == self._kind

    def gives(self, line: Line) -> Part:
        """Return what a job of the task queue gets of the slot."""
        if self._slot.partitionable:
            return self._part(line.amounts)
        if self._whole is None:
            self._whole = self._part(self._slot.free)
        return self._whole

    def find(self) -> Seat | HeadUnknown | Undecided | None:
        """Return the task queue whose first job goes here; None = none does."""
        while (seat := self._contest.first(self._open & self._tier)) is not None or self._later:
            if seat is None:
                self._begin()
                continue
            line = seat.line
            verdict = self._may_take(line)
            if verdict is True:
                known = len(line.heads)
                return seat if known >= self._needed or known >= line.count else HeadUnknown(line, self._needed)
            if isinstance(verdict, Undecided):
                return verdict
            self._open &= ~(1 << line.place)
        return None

    def _begin(self) -> None:
        """Go on with what the slot likes next."""
        self._tier = self._later.popleft() if self._later else 0
        self._contest = Contest(self._scene.seen.waiting, self._scene.turns.in_order())

    def _may_take(self, line: Line) -> bool | Undecided:
        """Whether jobs of the task queue may go here now."""
        if self._accepted >> line.place & 1:
            return self._limits is None or self._limits.reached(line.task_queue.traits) is None
        if not self._is_open(line):
            return False
        verdict = self._undecided(line) or (self._starts(line) and self._suits(line))
        if verdict is True:
            self._accept(line)
        return verdict

    def _accept(self, line: Line) -> None:
        """Remember that jobs of the task queue go here; for other slots of the class, if nothing was asked of this."""
        bit, traits = 1 << line.place, line.task_queue.traits
        self._accepted |= bit
        if self._is_plain and not (self._class.unsure & bit or traits.requirements_expression or traits.rank):
            self._class.sure |= bit

    def _is_open(self, line: Line) -> bool:
        is_unsure = self._class.unsure >> line.place & 1
        if is_unsure and not fits(line.task_queue, self._slot, self._scene.end_margin):
            return False
        if self._limits is not None and self._limits.reached(line.task_queue.traits) is not None:
            return False
        if self._class.admits(line):
            return True
        self._open &= self._class.places
        return False

    def _undecided(self, line: Line) -> Undecided | None:
        if self._scene.shares.settings.barring(line.account.group_id) is not None:
            return Undecided(f"a quota may bar jobs of {line.account}")
        traits = line.task_queue.traits
        has_expression = bool(traits.requirements_expression or traits.rank)
        is_asked = has_expression or (self._policy is not None and bool(self._policy.start))
        if is_asked and self._asked().asks_singly(self._scene.seen.views.view(line.task_queue)):
            return Undecided(f"jobs of task queue {line.task_queue.id} have to be asked one by one")
        return None

    def _starts(self, line: Line) -> bool:
        if self._policy is None or not self._policy.start or self._started >> line.place & 1:
            return True
        kind = self._scene.seen.by(self._asked().starts_by).of(line)
        is_started = self._asked().starts(self._now(kind.example))
        if is_started:
            self._started |= kind.places
        else:
            self._open &= ~kind.places
        return is_started

    def _suits(self, line: Line) -> bool:
        if not line.task_queue.traits.requirements_expression or self._suited >> line.place & 1:
            return True
        job = self._now(line.task_queue)
        alike = 0 if self._asked().sees_all(job) else self._scene.seen.by_requirements.of(line).places
        is_suited = self._asked().suits(job)
        if is_suited:
            self._suited |= alike
        else:
            self._open &= ~alike
        return is_suited

    def _in_order_of_liking(self) -> deque[int]:
        """Return what may go here as the slot likes it: jobs of who holds it first, and among them by its RANK."""
        by_rank = self._by_rank() if self._policy is not None and self._policy.rank else [EVERYWHERE]
        if self._slot.claim is None:
            return deque(by_rank)
        own = set_of(self._scene.seen.waiting.places_of_owner(self._slot.claim))
        return deque([*(own & places for places in by_rank), *by_rank])

    def _by_rank(self) -> list[int]:
        judge = self._asked()
        kinds = self._scene.seen.by(judge.ranks_by)
        return kinds.in_order(judge.rank_reaches, self._class.places, self._liking)

    def _liking(self, task_queue: TaskQueue) -> Liking:
        job = self._now(task_queue)
        return Liking(self._asked().rank(job), self._asked().rank_lasts(job))

    def _part(self, amounts: Amounts) -> Part:
        return Part(amounts, float(amounts.cpus) if self._policy is None else self._policy.weight(amounts))

    def _asked(self) -> SlotJudge:
        """Return the slot's judge; one without an ad has one too, for jobs may have expressions all the same."""
        if self._judge is None:
            policies = self._scene.policies
            policy = self._policy or policies.policy(self._slot, self._ask.queue)
            assert policy is not None, "a slot without an ad lacks no part of it"
            self._judge = policies.ask(policy, Moment(self._ask.now))
        return self._judge

    def _now(self, task_queue: TaskQueue) -> JobNow:
        view = self._scene.seen.views.view(task_queue)
        priority = partial(self._scene.shares.user_priority, task_queue.account, self._ask.now)
        return JobNow(view, task_queue.traits, priority)
