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
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple, assert_never

from pilotage_server.core.account_turns import AccountTurns
from pilotage_server.core.contest import Seat
from pilotage_server.core.fair_share import FairShare
from pilotage_server.core.job_kinds import Seen
from pilotage_server.core.limits import LimitRound
from pilotage_server.core.matching import MOST_CHOICES, Choice
from pilotage_server.core.reach import Reach
from pilotage_server.core.seeking import Ask, HeadUnknown, Part, Scene, Seeker, Undecided
from pilotage_server.core.slot_classes import SlotClasses
from pilotage_server.core.slot_policies import SlotPolicies
from pilotage_server.core.slots import SlotOffer
from pilotage_server.core.waiting import Head, WaitingIndex

__all__ = ["HEADS_AT_ONCE", "Ask", "Chosen", "Declined", "HeadsUnknown", "MatchBoard"]

HEADS_AT_ONCE = 64
"""So many jobs of a task queue are asked for at first."""


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
        self._turns = AccountTurns(waiting)
        self._scene = Scene(Seen(waiting, policies.views), shares, policies, self._turns, end_margin)
        self.bound_in_all = 0
        self.missed_in_all = 0

    def choose(self, ask: Ask, reach: Reach) -> Chosen:
        """Choose jobs for the slots and take them; bans apart, which who asks has looked at."""
        self._turns.agree(self._shares.standings(ask.now))
        given: list[Choice] = []
        try:
            rest = self._choose(ask, reach, given)
        except BaseException:
            self._settle(ask.now)
            self.put_back(given, ask.now)
            raise
        self._settle(ask.now)
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
        left, limits = deque(ask.slots), ask.limits or None
        seeker: Seeker | None = None
        while left and len(given) < MOST_CHOICES:
            slot = left[0]
            if seeker is None or not seeker.serves(slot):
                seeker = Seeker(self._scene, ask, slot, self._classes.of(slot, ask.queue, ask.vos, reach))
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
                self._take(slot, found, part, limits, given)
                left.popleft()
                remainder = slot.without(part.amounts) if slot.partitionable else None
                if remainder is not None:
                    left.appendleft(remainder)
        return None

    def _take(self, slot: SlotOffer, seat: Seat, part: Part, limits: LimitRound | None, given: list[Choice]) -> None:
        """Take the job for the slot, and those of its task queue that come with it."""
        line, task_queue = seat.line, seat.line.task_queue
        ahead = min(slot.ahead, MOST_CHOICES - len(given) - 1)
        while True:
            head = self._waiting.take(line)
            self._turns.give(seat.candidate, part.weight)
            given.append(Choice(slot.name, task_queue, part.amounts, part.weight, None, head))
            if limits is not None:
                limits.given(task_queue.traits)
            if not ahead or not line.heads or (limits is not None and limits.reached(task_queue.traits) is not None):
                return
            ahead -= 1

    def _settle(self, now: datetime) -> None:
        """Charge the accounts for what they were given."""
        for account, cores, runs in self._turns.settle():
            self._shares.charge(account, cores, runs, now)

    def _relieve(self, choices: Iterable[Choice], now: datetime) -> None:
        for choice in choices:
            self._shares.ended(choice.task_queue.account, choice.weight, now)


def _left_of(ask: Ask, slots: Iterable[SlotOffer]) -> Ask:
    return ask._replace(slots=tuple(slots))


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
