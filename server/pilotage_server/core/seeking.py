"""What one slot may take of what waits: its class, then the policies of both sides, each asked when it matters.

Rules
-----
A seeker goes through what its class may take in the order in which it goes, and asks of each task queue what sets
cannot tell: the exact times, the door, limits, START and the jobs' own expressions. What is refused is set aside with
all that look the same to who refused it, so that each kind is asked once. Nothing is taken here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from typing import NamedTuple

from pilotage_server.core.account_turns import Candidate, Found
from pilotage_server.core.accounting import Account
from pilotage_server.core.amounts import Amounts
from pilotage_server.core.job_kinds import Seen
from pilotage_server.core.job_views import JobNow
from pilotage_server.core.limits import LimitRound
from pilotage_server.core.place_sets import EVERYWHERE, set_of
from pilotage_server.core.share_settings import ShareSettings
from pilotage_server.core.slot_classes import SlotClass
from pilotage_server.core.slot_policies import SlotJudge, SlotPolicy
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


class Seat(NamedTuple):
    """A task queue whose first job goes to the slot, and the account whose turn it is."""

    line: Line
    candidate: Candidate


class Part(NamedTuple):
    """What a job gets of a slot, and the weighted cores that it is charged for."""

    amounts: Amounts
    weight: float


class Scene(NamedTuple):
    """What the slots of a request have in common; `priority` tells an account's user priority."""

    seen: Seen
    settings: ShareSettings
    limits: LimitRound
    end_margin: timedelta
    first_among: Callable[[int, set[object]], Found | None]
    priority: Callable[[Account], float]


class Seeker:
    """One slot, or several that are alike, on the way through what waits.

    `policy` None = the slot has no ad; `ask` makes its judge, for jobs may have expressions all the same.
    """

    __slots__ = (
        "_accepted",
        "_aside",
        "_ask",
        "_class",
        "_judge",
        "_kind",
        "_limits",
        "_needed",
        "_policy",
        "_scene",
        "_slot",
        "_started",
        "_suited",
        "_tiers",
        "_whole",
    )

    def __init__(
        self,
        scene: Scene,
        slot: SlotOffer,
        slot_class: SlotClass,
        policy: SlotPolicy | None,
        ask: Callable[[], SlotJudge],
    ) -> None:
        self._scene = scene
        self._slot = slot
        self._kind = slot.kind
        self._class = slot_class
        self._policy = policy
        self._ask = ask
        self._judge: SlotJudge | None = None
        self._aside = 0
        self._accepted = 0
        self._started = 0
        self._suited = 0
        self._limits = scene.limits or None
        self._needed = min(1 + slot.ahead, MOST_OF_A_LINE)
        self._whole: Part | None = None
        self._tiers = [(places, set[object]()) for places in self._in_order_of_liking()]

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
        for tier, barren in self._tiers:
            while (found := self._scene.first_among(self._class.places & tier & ~self._aside, barren)) is not None:
                candidate, turn = found
                line = self._scene.seen.waiting.at(turn[3])
                verdict = self._may_take(line)
                if isinstance(verdict, Undecided):
                    return verdict
                if not verdict:
                    self._aside |= 1 << line.place
                elif len(line.heads) < min(self._needed, line.count):
                    return HeadUnknown(line, self._needed)
                else:
                    return Seat(line, candidate)
        return None

    def _may_take(self, line: Line) -> bool | Undecided:
        """Whether jobs of the task queue may go here now."""
        if self._accepted >> line.place & 1:
            return self._limits is None or self._limits.reached(line.task_queue.traits) is None
        if not self._is_open(line):
            return False
        verdict = self._undecided(line) or (self._starts(line) and self._suits(line))
        if verdict is True:
            self._accepted |= 1 << line.place
        return verdict

    def _is_open(self, line: Line) -> bool:
        is_unsure = self._class.unsure >> line.place & 1
        if is_unsure and not fits(line.task_queue, self._slot, self._scene.end_margin):
            return False
        if self._limits is not None and self._limits.reached(line.task_queue.traits) is not None:
            return False
        return self._class.admits(line)

    def _undecided(self, line: Line) -> Undecided | None:
        if self._scene.settings.barring(line.account.group_id) is not None:
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
            self._aside |= kind.places
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
            self._aside |= alike
        return is_suited

    def _in_order_of_liking(self) -> Iterator[int]:
        """Yield what may go here as the slot likes it: jobs of who holds it first, and among them by its RANK."""
        by_rank = self._by_rank()
        if self._slot.claim is not None:
            own = set_of(self._scene.seen.waiting.places_of_owner(self._slot.claim))
            yield from (own & places for places in by_rank)
        yield from by_rank

    def _by_rank(self) -> list[int]:
        if self._policy is None or not self._policy.rank:
            return [EVERYWHERE]
        ranks: dict[float, int] = {}
        for kind in self._scene.seen.by(self._asked().ranks_by).all():
            if kind.places & self._class.places:
                rank = self._asked().rank(self._now(kind.example))
                ranks[rank] = ranks.get(rank, 0) | kind.places
        return [ranks[rank] for rank in sorted(ranks, reverse=True)]

    def _part(self, amounts: Amounts) -> Part:
        return Part(amounts, float(amounts.cpus) if self._policy is None else self._policy.weight(amounts))

    def _asked(self) -> SlotJudge:
        if self._judge is None:
            self._judge = self._ask()
        return self._judge

    def _now(self, task_queue: TaskQueue) -> JobNow:
        view = self._scene.seen.views.view(task_queue)
        return JobNow(view, task_queue.traits, partial(self._scene.priority, task_queue.account))
