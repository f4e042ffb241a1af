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

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import NamedTuple, assert_never

from pilotage.resource_tree import QueueId
from pilotage_server.core.account_turns import AccountTurns
from pilotage_server.core.accounting import Account
from pilotage_server.core.fair_share import FairShare
from pilotage_server.core.job_kinds import Seen
from pilotage_server.core.limits import LimitRound
from pilotage_server.core.matching import MOST_CHOICES, Choice
from pilotage_server.core.reach import Reach
from pilotage_server.core.seeking import HeadUnknown, Part, Scene, Seat, Seeker, Undecided
from pilotage_server.core.slot_classes import SlotClasses
from pilotage_server.core.slot_policies import Moment, SlotJudge, SlotPolicies, SlotPolicy
from pilotage_server.core.slots import SlotOffer
from pilotage_server.core.task_queues import TaskQueue
from pilotage_server.core.waiting import Head, WaitingIndex

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
    vos: tuple[str, ...]
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
    """The choice over what waits, the shares and the policies of one server's memory.

    `bound_in_all` and `missed_in_all` count what choices have come to since the board was made.
    """

    def __init__(self, waiting: WaitingIndex, shares: FairShare, policies: SlotPolicies, end_margin: timedelta) -> None:
        self._classes = SlotClasses(waiting, end_margin)
        self._waiting = waiting
        self._shares = shares
        self._policies = policies
        self._end_margin = end_margin
        self._turns = AccountTurns(waiting)
        self._seen = Seen(waiting, policies.views)
        self.bound_in_all = 0
        self.missed_in_all = 0

    def choose(self, ask: Ask, reach: Reach) -> Chosen:
        """Choose jobs for the slots and take them; bans apart, which who asks has looked at."""
        self._turns.agree(self._shares.standings(ask.now))
        given: list[Choice] = []
        try:
            rest = self._choose(ask, reach, given)
        except BaseException:
            self._charge(given, ask.now)
            self.put_back(given, ask.now)
            raise
        self._charge(given, ask.now)
        return Chosen(tuple(given), rest)

    def heads(self, task_queue_id: int, heads: Sequence[Head], asked: int) -> None:
        """Take in the first waiting jobs of a task queue, in order, as the database has them.

        Fewer than `asked` = there are no more. Jobs that are chosen and not bound yet may be among them.
        """
        self._waiting.learn_heads(task_queue_id, heads, is_all=len(heads) < asked)

    def claimed(self, choices: Sequence[Choice], job_ids: Sequence[int]) -> None:
        """Take note of the jobs that the database has given for choices of one task queue.

        They may be others than the heads that were chosen: somebody was quicker. Should the transaction fail, they are
        `released` before the choices are put back.
        """
        for task_queue_id, heads in _by_task_queue(choices).items():
            self._waiting.claimed(task_queue_id, heads, job_ids)

    def bound(self, task_queue_id: int, job_ids: Sequence[int]) -> None:
        """Take note that these jobs of a task queue have been bound; to be told after the commit."""
        self.bound_in_all += len(job_ids)
        self._waiting.settled(task_queue_id, job_ids)

    def released(self, task_queue_id: int, job_ids: Sequence[int]) -> None:
        """Take note that these jobs of a task queue have been claimed in vain: the transaction failed."""
        self._waiting.settled(task_queue_id, job_ids)

    def missed(self, choices: Sequence[Choice], now: datetime) -> None:
        """Take note that nothing waits any more in the task queues of these choices, and relieve their accounts."""
        self.missed_in_all += len(choices)
        self._relieve(choices, now)
        for task_queue_id, heads in _by_task_queue(choices).items():
            self._waiting.ended(task_queue_id, heads)

    def put_back(self, choices: Sequence[Choice], now: datetime) -> None:
        """Let wait again what was chosen, and relieve the accounts: the transaction failed."""
        self._relieve(choices, now)
        for task_queue_id, heads in _by_task_queue(choices).items():
            self._waiting.put_back(task_queue_id, heads)

    def check(self) -> None:
        """Assert what must always be so."""
        self._waiting.check()
        self._turns.check()

    def _choose(self, ask: Ask, reach: Reach, given: list[Choice]) -> HeadsUnknown | Declined | None:
        """Choose for one slot after the other, and return what is left; `given` gets what was taken."""
        left = deque(ask.slots)
        scene = self._scene(ask)
        seeker: Seeker | None = None
        while left and len(given) < MOST_CHOICES:
            slot = left[0]
            if seeker is None or not seeker.serves(slot):
                seeker = self._seeker(scene, ask, reach, slot)
            found = seeker.find()
            if found is None:
                left.popleft()
            elif not isinstance(found, Seat):
                return _rest(found, _left_of(ask, left))
            elif found.line.task_queue.traits.rank and len(left) > 1:
                reason = f"jobs of task queue {found.line.task_queue.id} rank slots"
                return Declined(reason, _left_of(ask, left))
            else:
                part = seeker.gives(found.line)
                self._take(ask, slot, found, part, given)
                left.popleft()
                remainder = slot.without(part.amounts) if slot.partitionable else None
                if remainder is not None:
                    left.appendleft(remainder)
        return None

    def _scene(self, ask: Ask) -> Scene:
        return Scene(
            self._seen,
            self._shares.settings,
            ask.limits,
            self._end_margin,
            self._turns.first_among,
            lambda account: self._shares.user_priority(account, ask.now),
        )

    def _seeker(self, scene: Scene, ask: Ask, reach: Reach, slot: SlotOffer) -> Seeker:
        policy = ask.policies.get(slot.name)
        resized = None if policy is None else policy.resized(slot.free)
        slot_class = self._classes.of(slot, ask.queue, ask.vos, reach)
        return Seeker(scene, slot, slot_class, resized, lambda: self._judge(ask, slot, resized))

    def _judge(self, ask: Ask, slot: SlotOffer, policy: SlotPolicy | None) -> SlotJudge:
        told = policy or self._policies.policy(slot, ask.queue)
        assert told is not None, "a slot without an ad lacks no part of it"
        return self._policies.ask(told, Moment(ask.now))

    def _take(self, ask: Ask, slot: SlotOffer, seat: Seat, part: Part, given: list[Choice]) -> None:
        """Take the job for the slot, and those of its task queue that come with it."""
        line, task_queue = seat.line, seat.line.task_queue
        ahead = min(slot.ahead, MOST_CHOICES - len(given) - 1)
        while True:
            head = self._waiting.take(line)
            self._turns.give(seat.candidate, part.weight)
            given.append(Choice(slot.name, task_queue, part.amounts, part.weight, None, head))
            if ask.limits:
                ask.limits.given(task_queue.traits)
            if not ahead or not line.heads or (ask.limits and ask.limits.reached(task_queue.traits) is not None):
                return
            ahead -= 1

    def _charge(self, choices: Iterable[Choice], now: datetime) -> None:
        for account, cores, runs in _charges(choices):
            self._shares.charge(account, cores, runs, now)

    def _relieve(self, choices: Iterable[Choice], now: datetime) -> None:
        for choice in choices:
            self._shares.ended(choice.task_queue.account, choice.weight, now)


def _left_of(ask: Ask, slots: Iterable[SlotOffer]) -> Ask:
    return replace(ask, slots=tuple(slots))


def _charges(choices: Iterable[Choice]) -> Iterator[tuple[Account, float, int]]:
    """Yield who is charged for the choices, with how many weighted cores for how many runs."""
    charges: dict[int, tuple[TaskQueue, float, int]] = {}
    for choice in choices:
        task_queue, cores, runs = charges.get(choice.task_queue.id, (choice.task_queue, 0.0, 0))
        charges[task_queue.id] = (task_queue, cores + choice.weight, runs + 1)
    return ((task_queue.account, cores, runs) for task_queue, cores, runs in charges.values())


def _rest(found: HeadUnknown | Undecided, ask: Ask) -> HeadsUnknown | Declined:
    match found:
        case HeadUnknown(line, needed):
            most = max(HEADS_AT_ONCE, needed) + len(line.under_way)
            return HeadsUnknown({line.task_queue.id: most}, ask)
        case Undecided(reason):
            return Declined(reason, ask)
        case _:
            assert_never(found)


def _by_task_queue(choices: Iterable[Choice]) -> dict[int, list[Head]]:
    heads: dict[int, list[Head]] = defaultdict(list)
    for choice in choices:
        if choice.head is not None:
            heads[choice.task_queue.id].append(choice.head)
    return heads
