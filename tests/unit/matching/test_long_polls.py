"""Calls that wait for work: who is woken, and who is not."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilotage.values.amounts import Amounts
from pilotage.values.offers import SlotOffer
from pilotage_server.core.identity import PilotCredential
from pilotage_server.rpc.matching.long_polls import MAX_CONCURRENT_LOOKS
from support.waiting_calls import AT_ONCE_S, QUEUE, Waiting, a_task_queue, woken


@pytest.fixture
def waiting() -> Iterator[Waiting]:
    with Waiting() as calls:
        yield calls


async def test_as_many_are_woken_as_there_are_jobs_the_longest_waiting_first(waiting: Waiting) -> None:
    calls = [waiting.enter(f"p{number}") for number in range(4)]

    waiting.polls.wake_for_jobs(a_task_queue(), 2)

    assert await woken(*calls) == [True, True, False, False]


async def test_only_those_are_woken_that_could_take_the_job(waiting: Waiting) -> None:
    small, large = waiting.enter("small", cpus=1), waiting.enter("large", cpus=8)

    waiting.polls.wake_for_jobs(a_task_queue(cpus=4), 5)

    assert await woken(small, large) == [False, True]


async def test_who_took_nothing_hands_the_news_on(waiting: Waiting) -> None:
    first, second, third = (waiting.enter(stamp) for stamp in ("a", "b", "c"))
    waiting.polls.wake_for_jobs(a_task_queue(), 1)
    assert await woken(first, second, third) == [True, False, False]

    first.begin_look()
    first.end_look({})

    assert await woken(second, third) == [True, False]


async def test_news_of_jobs_that_are_gone_is_not_handed_on(waiting: Waiting) -> None:
    first, second = waiting.enter("a"), waiting.enter("b")
    waiting.polls.wake_for_jobs(a_task_queue(7), 1)
    waiting.chances.gone.add(7)

    first.begin_look()
    first.end_look({})

    assert await woken(second) == [False]


async def test_who_took_the_job_wakes_nobody_else(waiting: Waiting) -> None:
    first, second = waiting.enter("a"), waiting.enter("b")
    waiting.polls.wake_for_jobs(a_task_queue(7), 1)

    first.begin_look()
    first.end_look({7: 1})

    assert await woken(second) == [False]


async def test_who_took_a_job_of_another_task_queue_hands_the_news_on(waiting: Waiting) -> None:
    first, second = waiting.enter("a"), waiting.enter("b")
    waiting.polls.wake_for_jobs(a_task_queue(7), 1)

    first.begin_look()
    first.end_look({8: 1})

    assert await woken(second) == [True]


async def test_news_that_come_during_a_look_make_the_call_look_again(waiting: Waiting) -> None:
    call = waiting.enter("a")
    call.begin_look()
    waiting.polls.wake_for_jobs(a_task_queue(), 1)
    call.end_look({})

    assert await woken(call) == [True]


async def test_who_leaves_hands_on_what_it_was_told(waiting: Waiting) -> None:
    with waiting.polls.waiting(PilotCredential("a", QUEUE), [SlotOffer("s", Amounts(cpus=1))], 0) as leaving:
        staying = waiting.enter("b")
        waiting.polls.wake_for_jobs(a_task_queue(), 1)
        assert await woken(leaving, staying) == [True, False]

    assert await woken(staying) == [True]


async def test_a_cancelled_call_leaves_no_waiter_and_hands_the_news_on(waiting: Waiting) -> None:
    entered = asyncio.Event()

    async def call() -> None:
        with waiting.polls.waiting(PilotCredential("a", QUEUE), [SlotOffer("s", Amounts(cpus=1))], 0) as waiter:
            entered.set()
            await waiter.wait(60)
            waiter.begin_look()
            await asyncio.Event().wait()  # the look never ends

    task = asyncio.create_task(call())
    await entered.wait()
    other = waiting.enter("b")
    waiting.polls.wake_for_jobs(a_task_queue(), 1)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert len(waiting.polls) == 1
    assert await woken(other) == [True]


async def test_a_command_wakes_its_pilot_only(waiting: Waiting) -> None:
    one, other = waiting.enter("one"), waiting.enter("other")

    waiting.polls.wake_pilot("one")

    assert await woken(one, other) == [True, False]


async def test_a_new_tree_wakes_all(waiting: Waiting) -> None:
    calls = [waiting.enter(stamp) for stamp in "abc"]

    waiting.polls.wake_all()

    assert await woken(*calls) == [True, True, True]


async def test_a_new_tree_wakes_a_few_at_a_time_and_in_the_end_all(waiting: Waiting) -> None:
    calls = [waiting.enter(str(number)) for number in range(3 * MAX_CONCURRENT_LOOKS)]

    waiting.polls.wake_all()

    for _ in range(3):
        woken_now = [call for call in calls if await call.wait(AT_ONCE_S)]
        assert len(woken_now) == MAX_CONCURRENT_LOOKS
        for call in woken_now:
            call.begin_look()
            call.end_look({})
            calls.remove(call)
    assert not calls


async def test_a_tree_that_comes_while_all_are_called_lets_all_look_at_it(waiting: Waiting) -> None:
    calls = [waiting.enter(str(number)) for number in range(MAX_CONCURRENT_LOOKS + 1)]
    waiting.polls.wake_all()
    calls[0].begin_look()
    waiting.polls.wake_all()
    calls[0].end_look({})

    looks = dict.fromkeys(calls, 0)
    while woken_now := [call for call in calls if await call.wait(AT_ONCE_S)]:
        for call in woken_now:
            looks[call] += 1
            call.begin_look()
            call.end_look({})

    assert all(looks.values())


async def test_many_that_are_alike_and_cannot_take_a_job_are_asked_once(waiting: Waiting) -> None:
    for number in range(100):
        waiting.enter(str(number))

    waiting.polls.wake_for_jobs(a_task_queue(1, cpus=2000), 1)
    waiting.polls.wake_for_jobs(a_task_queue(1, cpus=2000), 1)

    assert waiting.chances.asked == 1


async def test_who_would_not_take_jobs_is_asked_once_and_who_comes_later_too(waiting: Waiting) -> None:
    for number in range(100):
        waiting.enter(str(number), cpus=1)
    waiting.polls.wake_for_jobs(a_task_queue(1, cpus=4), 1)
    asked = waiting.chances.asked

    taker = waiting.enter("taker", cpus=8)
    waiting.polls.wake_for_jobs(a_task_queue(1, cpus=4), 1)

    assert await woken(taker) == [True]
    assert waiting.chances.asked == asked + 1


async def test_who_would_not_take_jobs_is_asked_again_when_everything_has_changed(waiting: Waiting) -> None:
    call = waiting.enter("a", cpus=1)
    waiting.polls.wake_for_jobs(a_task_queue(1, cpus=4), 1)
    asked = waiting.chances.asked
    waiting.polls.wake_all()
    call.begin_look()
    call.end_look({})

    waiting.polls.wake_for_jobs(a_task_queue(1, cpus=4), 1)

    assert waiting.chances.asked == asked + 2, "once for its kind, once for itself"


async def test_the_longest_waiting_is_first_also_among_those_that_differ(waiting: Waiting) -> None:
    free = [waiting.enter("a"), waiting.enter("b")]
    slots = [SlotOffer(name, Amounts(cpus=1)) for name in "12"]
    with waiting.polls.waiting(PilotCredential("c", QUEUE), slots, 0) as two:
        last = waiting.enter("d")
        waiting.polls.wake_for_jobs(a_task_queue(), 3)
        assert await woken(*free, two, last) == [True, True, True, False]


async def test_closing_wakes_all_and_says_so(waiting: Waiting) -> None:
    call = waiting.enter("a")

    waiting.polls.close()

    assert await woken(call) == [True]
    assert not waiting.polls.is_open


async def test_jobs_that_come_one_by_one_wake_as_many_as_a_batch(waiting: Waiting) -> None:
    calls = [waiting.enter(f"p{number}") for number in range(3)]

    waiting.polls.wake_for_jobs(a_task_queue(), 1)
    waiting.polls.wake_for_jobs(a_task_queue(), 1)

    assert await woken(*calls) == [True, True, False]


async def test_a_job_that_is_taken_answers_for_one_job_only(waiting: Waiting) -> None:
    first, second = waiting.enter("a"), waiting.enter("b")
    waiting.polls.wake_for_jobs(a_task_queue(8), 2)  # keeps both busy
    for _ in range(2):
        waiting.polls.wake_for_jobs(a_task_queue(7), 1)  # both tell the first
    second.begin_look()
    second.end_look({8: 1})

    first.begin_look()
    first.end_look({7: 1})

    assert await woken(second) == [True]


@given(takers=st.lists(st.booleans(), max_size=12), batches=st.lists(st.integers(1, 6), min_size=1, max_size=5))
def test_no_job_waits_beside_a_call_that_would_take_it(takers: list[bool], batches: list[int]) -> None:
    """Each call takes one job if it is a taker, else none; woken calls look until nobody is woken any more."""

    async def story() -> tuple[int, int]:
        with Waiting() as waiting:
            calls = {waiting.enter(str(number)): takes for number, takes in enumerate(takers)}
            left, looks = sum(batches), 0
            for batch in batches:
                waiting.polls.wake_for_jobs(a_task_queue(1), batch)
            while woken_now := [call for call in calls if await call.wait(AT_ONCE_S)]:
                for call in woken_now:
                    looks += 1
                    call.begin_look()
                    taken = 1 if calls[call] and left else 0
                    calls[call] = calls[call] and not taken
                    left -= taken
                    call.end_look({1: taken})
            return sum(batches) - left, looks

    taken, looks = asyncio.run(story())

    assert taken == min(sum(batches), sum(takers))
    assert looks <= len(takers) * len(batches)
