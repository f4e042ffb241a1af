"""Calls that wait for work: who is woken, and who is not."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Iterator, Sequence
from contextlib import ExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilotage.job_needs import JobNeeds
from pilotage.resource_tree import QueueId
from pilotage_server.core.accounting import Account
from pilotage_server.core.amounts import Amounts
from pilotage_server.core.identity import PilotCredential
from pilotage_server.core.slots import Occupied, SlotOffer
from pilotage_server.core.task_queues import TaskQueue, Traits
from pilotage_server.operations.chances import Chance
from pilotage_server.rpc.long_polls import LOOK_AT_ONCE, MOST_REMEMBERED, LongPolls
from pilotage_server.rpc.waiters import Waiter

QUEUE = QueueId("S", "ce", "q")
AT_ONCE_S = 0.0


def a_task_queue(id_: int = 1, cpus: int = 1) -> TaskQueue:
    needs = JobNeeds((), (), (), None, cpus, None, None, None)
    return TaskQueue(id_, Traits(Account("sky", "grp", "alice"), "", needs))


class ByCores:
    """Chances that hang on the cores alone; `asked` counts how often anybody was asked.

    Task queues: of those `gone` no jobs are left; of those `unclear` it fails to tell.
    """

    def __init__(self) -> None:
        self.asked = 0
        self.gone: set[int] = set()
        self.unclear: set[int] = set()

    def of(self, task_queue: TaskQueue, _credential: PilotCredential, slots: Sequence[SlotOffer]) -> Chance:
        self.asked += 1
        if task_queue.id in self.unclear:
            raise KeyError(task_queue.id)
        found = Chance.NONE
        for slot in slots:
            if slot.free.cpus >= (task_queue.needs.cpus or 1):
                found |= Chance.FREE_SLOT if slot.occupied is None else Chance.OCCUPIED_SLOT
        return found

    def at_best(self, task_queue: TaskQueue, credential: PilotCredential, slots: Sequence[SlotOffer]) -> Chance:
        return self.of(task_queue, credential, [slot._replace(free=Amounts(cpus=1000)) for slot in slots])

    def are_left(self, task_queue: TaskQueue) -> bool:
        return task_queue.id not in self.gone

    def alike(self, _credential: PilotCredential, slots: Sequence[SlotOffer]) -> Hashable:
        return tuple(slot.occupied is None for slot in slots)


class Waiting:
    """Calls that wait, each by its stamp."""

    def __init__(self) -> None:
        self.chances = ByCores()
        self.polls = LongPolls(self.chances)
        self._stack = ExitStack()

    def __enter__(self) -> Waiting:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def enter(self, stamp: str, cpus: int = 1, *, is_occupied: bool = False) -> Waiter:
        return self.enter_late(self.polls.moment, stamp, cpus, is_occupied=is_occupied)

    def enter_late(self, since: int, stamp: str, cpus: int = 1, *, is_occupied: bool = False) -> Waiter:
        offer = SlotOffer("slot1", Amounts(cpus=cpus), occupied=Occupied(1, 1) if is_occupied else None)
        return self._stack.enter_context(self.polls.waiting(PilotCredential(stamp, QUEUE), [offer], since))


@pytest.fixture
def waiting() -> Iterator[Waiting]:
    with Waiting() as calls:
        yield calls


async def woken(*waiters: Waiter) -> list[bool]:
    return [await waiter.woken(AT_ONCE_S) for waiter in waiters]


async def test_as_many_are_woken_as_there_are_jobs_the_longest_waiting_first(waiting: Waiting) -> None:
    calls = [waiting.enter(f"p{number}") for number in range(4)]

    waiting.polls.jobs_arrived(a_task_queue(), 2)

    assert await woken(*calls) == [True, True, False, False]


async def test_only_those_are_woken_that_could_take_the_job(waiting: Waiting) -> None:
    small, large = waiting.enter("small", cpus=1), waiting.enter("large", cpus=8)

    waiting.polls.jobs_arrived(a_task_queue(cpus=4), 5)

    assert await woken(small, large) == [False, True]


async def test_who_took_nothing_hands_the_news_on(waiting: Waiting) -> None:
    first, second, third = (waiting.enter(stamp) for stamp in ("a", "b", "c"))
    waiting.polls.jobs_arrived(a_task_queue(), 1)
    assert await woken(first, second, third) == [True, False, False]

    first.looks()
    first.looked({})

    assert await woken(second, third) == [True, False]


async def test_news_of_jobs_that_are_gone_is_not_handed_on(waiting: Waiting) -> None:
    first, second = waiting.enter("a"), waiting.enter("b")
    waiting.polls.jobs_arrived(a_task_queue(7), 1)
    waiting.chances.gone.add(7)

    first.looks()
    first.looked({})

    assert await woken(second) == [False]


async def test_who_comes_late_is_woken_by_jobs_that_came_after_its_look_and_that_suit_it(
    waiting: Waiting,
) -> None:
    moments = []
    for cpus in (1, 4):
        moments.append(waiting.polls.moment)
        waiting.polls.jobs_arrived(a_task_queue(cpus, cpus=cpus), 1)
    moments.append(waiting.polls.moment)

    small = [waiting.enter_late(moment, "small", cpus=1) for moment in moments]
    large = [waiting.enter_late(moment, "large", cpus=4) for moment in moments]

    assert await woken(*small) == [True, False, False]
    assert await woken(*large) == [True, True, False]


async def test_who_comes_late_is_not_woken_by_jobs_that_others_have_taken(waiting: Waiting) -> None:
    moment = waiting.polls.moment
    waiting.polls.jobs_arrived(a_task_queue(7), 1)
    waiting.chances.gone.add(7)

    assert await woken(waiting.enter_late(moment, "late")) == [False]


async def test_who_comes_late_is_woken_by_a_command_for_it_that_came_after_its_look(waiting: Waiting) -> None:
    moment = waiting.polls.moment
    waiting.polls.pilot_called("one")

    assert await woken(waiting.enter_late(moment, "one"), waiting.enter_late(moment, "other")) == [True, False]


async def test_who_comes_late_is_woken_by_a_tree_that_came_after_its_look(waiting: Waiting) -> None:
    moment = waiting.polls.moment
    waiting.polls.everything_changed()

    assert await woken(waiting.enter_late(moment, "late")) == [True]


async def test_who_comes_so_late_that_it_is_forgotten_what_happened_looks_again(waiting: Waiting) -> None:
    for _ in range(MOST_REMEMBERED + 1):
        waiting.polls.pilot_called("other")
    in_time, late = waiting.enter_late(1, "in time"), waiting.enter_late(0, "late")

    assert await woken(in_time, late) == [False, True]


async def test_who_looked_while_free_slots_were_asked_first_and_waits_only_then_looks_again(waiting: Waiting) -> None:
    free = waiting.enter("free")
    waiting.polls.jobs_arrived(a_task_queue(7), 1)
    moment = waiting.polls.moment
    free.looks()
    free.looked({})

    assert await woken(waiting.enter_late(moment, "late", is_occupied=True)) == [True]


async def test_a_call_of_which_the_chances_cannot_be_told_leaves_no_waiter(waiting: Waiting) -> None:
    moment = waiting.polls.moment
    waiting.polls.jobs_arrived(a_task_queue(7), 1)
    waiting.chances.unclear.add(7)

    with pytest.raises(KeyError):
        waiting.enter_late(moment, "late")
    assert len(waiting.polls) == 0


async def test_who_took_the_job_wakes_nobody_else(waiting: Waiting) -> None:
    first, second = waiting.enter("a"), waiting.enter("b")
    waiting.polls.jobs_arrived(a_task_queue(7), 1)

    first.looks()
    first.looked({7: 1})

    assert await woken(second) == [False]


async def test_who_took_a_job_of_another_task_queue_hands_the_news_on(waiting: Waiting) -> None:
    first, second = waiting.enter("a"), waiting.enter("b")
    waiting.polls.jobs_arrived(a_task_queue(7), 1)

    first.looks()
    first.looked({8: 1})

    assert await woken(second) == [True]


async def test_who_would_have_to_throw_a_job_out_is_told_when_no_free_slot_took_the_new_one(waiting: Waiting) -> None:
    occupied, free = waiting.enter("occupied", is_occupied=True), waiting.enter("free")
    waiting.polls.jobs_arrived(a_task_queue(7), 1)
    assert await woken(occupied, free) == [False, True]

    free.looks()
    free.looked({})

    assert await woken(occupied) == [True]


async def test_who_would_have_to_throw_a_job_out_waits_until_free_slots_have_looked_also_where_jobs_are_many(
    waiting: Waiting,
) -> None:
    occupied, free = waiting.enter("occupied", is_occupied=True), waiting.enter("free")
    waiting.polls.jobs_arrived(a_task_queue(7), 2)
    assert waiting.polls.is_offered(7, "occupied"), "a look now would throw nothing out"
    assert await woken(occupied, free) == [False, True]

    free.looks()
    free.looked({7: 1})

    assert not waiting.polls.is_offered(7, "occupied")
    assert await woken(occupied) == [True]


async def test_who_throws_a_job_out_is_not_told_when_a_free_slot_took_the_new_one(waiting: Waiting) -> None:
    occupied, free = waiting.enter("occupied", is_occupied=True), waiting.enter("free")
    waiting.polls.jobs_arrived(a_task_queue(7), 1)

    free.looks()
    free.looked({7: 1})

    assert await woken(occupied) == [False]


async def test_who_comes_while_free_slots_look_is_told_after_them_too(waiting: Waiting) -> None:
    free = waiting.enter("free")
    waiting.polls.jobs_arrived(a_task_queue(7), 1)
    late = waiting.enter("late", is_occupied=True)

    free.looks()
    free.looked({})

    assert await woken(late) == [True]


async def test_jobs_are_on_offer_until_every_free_slot_that_was_told_has_looked(waiting: Waiting) -> None:
    first, _second = waiting.enter("a"), waiting.enter("b")
    waiting.polls.jobs_come(a_task_queue(7), 1)
    assert waiting.polls.is_offered(7, "occupied")
    waiting.polls.jobs_arrived(a_task_queue(7), 1)
    assert waiting.polls.is_offered(7, "occupied")
    assert not waiting.polls.is_offered(7, "a"), "its own look is no reason to hold back"
    assert not waiting.polls.is_offered(8, "occupied")

    first.looks()
    first.looked({7: 1})

    assert not waiting.polls.is_offered(7, "occupied")


async def test_jobs_that_only_occupied_slots_look_for_are_not_on_offer(waiting: Waiting) -> None:
    waiting.enter("a", is_occupied=True)
    waiting.polls.jobs_come(a_task_queue(7), 1)
    waiting.polls.jobs_arrived(a_task_queue(7), 1)
    assert not waiting.polls.is_offered(7, "b")


async def test_a_call_that_leaves_offers_nothing_any_more(waiting: Waiting) -> None:
    offer = SlotOffer("s", Amounts(cpus=1))
    with waiting.polls.waiting(PilotCredential("a", QUEUE), [offer], 0):
        waiting.polls.jobs_arrived(a_task_queue(7), 1)
        assert waiting.polls.is_offered(7, "b")
    assert not waiting.polls.is_offered(7, "b")


async def test_news_that_come_during_a_look_make_the_call_look_again(waiting: Waiting) -> None:
    call = waiting.enter("a")
    call.looks()
    waiting.polls.jobs_arrived(a_task_queue(), 1)
    call.looked({})

    assert await woken(call) == [True]


async def test_who_leaves_hands_on_what_it_was_told(waiting: Waiting) -> None:
    with waiting.polls.waiting(PilotCredential("a", QUEUE), [SlotOffer("s", Amounts(cpus=1))], 0) as leaving:
        staying = waiting.enter("b")
        waiting.polls.jobs_arrived(a_task_queue(), 1)
        assert await woken(leaving, staying) == [True, False]

    assert await woken(staying) == [True]


async def test_a_cancelled_call_leaves_no_waiter_and_hands_the_news_on(waiting: Waiting) -> None:
    entered = asyncio.Event()

    async def call() -> None:
        with waiting.polls.waiting(PilotCredential("a", QUEUE), [SlotOffer("s", Amounts(cpus=1))], 0) as waiter:
            entered.set()
            await waiter.woken(60)
            waiter.looks()
            await asyncio.Event().wait()  # the look never ends

    task = asyncio.create_task(call())
    await entered.wait()
    other = waiting.enter("b")
    waiting.polls.jobs_arrived(a_task_queue(), 1)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert len(waiting.polls) == 1
    assert await woken(other) == [True]


async def test_a_command_wakes_its_pilot_only(waiting: Waiting) -> None:
    one, other = waiting.enter("one"), waiting.enter("other")

    waiting.polls.pilot_called("one")

    assert await woken(one, other) == [True, False]


async def test_a_new_tree_wakes_all(waiting: Waiting) -> None:
    calls = [waiting.enter(stamp) for stamp in "abc"]

    waiting.polls.everything_changed()

    assert await woken(*calls) == [True, True, True]


async def test_a_new_tree_wakes_a_few_at_a_time_and_in_the_end_all(waiting: Waiting) -> None:
    calls = [waiting.enter(str(number)) for number in range(3 * LOOK_AT_ONCE)]

    waiting.polls.everything_changed()

    for _ in range(3):
        woken_now = [call for call in calls if await call.woken(AT_ONCE_S)]
        assert len(woken_now) == LOOK_AT_ONCE
        for call in woken_now:
            call.looks()
            call.looked({})
            calls.remove(call)
    assert not calls


async def test_a_tree_that_comes_while_all_are_called_lets_all_look_at_it(waiting: Waiting) -> None:
    calls = [waiting.enter(str(number)) for number in range(LOOK_AT_ONCE + 1)]
    waiting.polls.everything_changed()
    calls[0].looks()
    waiting.polls.everything_changed()
    calls[0].looked({})

    looks = dict.fromkeys(calls, 0)
    while woken_now := [call for call in calls if await call.woken(AT_ONCE_S)]:
        for call in woken_now:
            looks[call] += 1
            call.looks()
            call.looked({})

    assert all(looks.values())


async def test_many_that_are_alike_and_cannot_take_a_job_are_asked_once(waiting: Waiting) -> None:
    for number in range(100):
        waiting.enter(str(number))

    waiting.polls.jobs_arrived(a_task_queue(1, cpus=2000), 1)
    waiting.polls.jobs_arrived(a_task_queue(1, cpus=2000), 1)

    assert waiting.chances.asked == 1


async def test_who_would_not_take_jobs_is_asked_once_and_who_comes_later_too(waiting: Waiting) -> None:
    for number in range(100):
        waiting.enter(str(number), cpus=1)
    waiting.polls.jobs_arrived(a_task_queue(1, cpus=4), 1)
    asked = waiting.chances.asked

    taker = waiting.enter("taker", cpus=8)
    waiting.polls.jobs_arrived(a_task_queue(1, cpus=4), 1)

    assert await woken(taker) == [True]
    assert waiting.chances.asked == asked + 1


async def test_who_would_not_take_jobs_is_asked_again_when_everything_has_changed(waiting: Waiting) -> None:
    call = waiting.enter("a", cpus=1)
    waiting.polls.jobs_arrived(a_task_queue(1, cpus=4), 1)
    asked = waiting.chances.asked
    waiting.polls.everything_changed()
    call.looks()
    call.looked({})

    waiting.polls.jobs_arrived(a_task_queue(1, cpus=4), 1)

    assert waiting.chances.asked == asked + 2, "once for its kind, once for itself"


async def test_the_longest_waiting_is_first_also_among_those_that_differ(waiting: Waiting) -> None:
    free = [waiting.enter("a"), waiting.enter("b")]
    slots = [SlotOffer(name, Amounts(cpus=1)) for name in "12"]
    with waiting.polls.waiting(PilotCredential("c", QUEUE), slots, 0) as two:
        last = waiting.enter("d")
        waiting.polls.jobs_arrived(a_task_queue(), 3)
        assert await woken(*free, two, last) == [True, True, True, False]


async def test_closing_wakes_all_and_says_so(waiting: Waiting) -> None:
    call = waiting.enter("a")

    waiting.polls.close()

    assert await woken(call) == [True]
    assert not waiting.polls.is_open


async def test_a_call_that_looked_while_the_polls_were_closed_does_not_begin_to_wait(waiting: Waiting) -> None:
    waiting.polls.close()
    late = waiting.enter("late")

    async with asyncio.timeout(10):
        assert not await waiting.polls.woken(late, 3600.0)


async def test_jobs_that_come_one_by_one_wake_as_many_as_a_batch(waiting: Waiting) -> None:
    calls = [waiting.enter(f"p{number}") for number in range(3)]

    waiting.polls.jobs_arrived(a_task_queue(), 1)
    waiting.polls.jobs_arrived(a_task_queue(), 1)

    assert await woken(*calls) == [True, True, False]


async def test_a_job_that_is_taken_answers_for_one_job_only(waiting: Waiting) -> None:
    first, second = waiting.enter("a"), waiting.enter("b")
    waiting.polls.jobs_arrived(a_task_queue(8), 2)  # keeps both busy
    for _ in range(2):
        waiting.polls.jobs_arrived(a_task_queue(7), 1)  # both tell the first
    second.looks()
    second.looked({8: 1})

    first.looks()
    first.looked({7: 1})

    assert await woken(second) == [True]


@given(takers=st.lists(st.booleans(), max_size=12), batches=st.lists(st.integers(1, 6), min_size=1, max_size=5))
def test_no_job_waits_beside_a_call_that_would_take_it(takers: list[bool], batches: list[int]) -> None:
    """Each call takes one job if it is a taker, else none; woken calls look until nobody is woken any more."""

    async def story() -> tuple[int, int]:
        with Waiting() as waiting:
            calls = {waiting.enter(str(number)): takes for number, takes in enumerate(takers)}
            left, looks = sum(batches), 0
            for batch in batches:
                waiting.polls.jobs_arrived(a_task_queue(1), batch)
            while woken_now := [call for call in calls if await call.woken(AT_ONCE_S)]:
                for call in woken_now:
                    looks += 1
                    call.looks()
                    taken = 1 if calls[call] and left else 0
                    calls[call] = calls[call] and not taken
                    left -= taken
                    call.looked({1: taken})
            return sum(batches) - left, looks

    taken, looks = asyncio.run(story())

    assert taken == min(sum(batches), sum(takers))
    assert looks <= len(takers) * len(batches)
