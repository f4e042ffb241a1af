"""Long polls of pilots: which waiting calls are woken by jobs, commands and new resource trees."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilotage.values.amounts import Amounts
from pilotage.values.offers import SlotOffer
from pilotage_server.core.identity import PilotCredential
from pilotage_server.rpc.matching.long_polls import MAX_CONCURRENT_LOOKS, MAX_RECENT_CHANGES
from support.long_polls import AT_ONCE_S, QUEUE, LongPollBench, a_task_queue, woken


@pytest.fixture
def waiting() -> Iterator[LongPollBench]:
    with LongPollBench() as calls:
        yield calls


async def test_wakes_one_call_per_job_longest_waiting_first(waiting: LongPollBench) -> None:
    calls = [waiting.enter(f"p{number}") for number in range(4)]

    waiting.add_jobs(a_task_queue(), 2)

    assert await woken(*calls) == [True, True, False, False]


async def test_wakes_only_calls_that_could_take_the_job(waiting: LongPollBench) -> None:
    small, large = waiting.enter("small", cpus=1), waiting.enter("large", cpus=8)

    waiting.add_jobs(a_task_queue(cpus=4), 5)

    assert await woken(small, large) == [False, True]


async def test_call_that_took_nothing_passes_the_wake_up_on(waiting: LongPollBench) -> None:
    first, second, third = (waiting.enter(stamp) for stamp in ("a", "b", "c"))
    waiting.add_jobs(a_task_queue(), 1)
    assert await woken(first, second, third) == [True, False, False]

    waiting.look(first)

    assert await woken(second, third) == [True, False]


async def test_wake_up_for_taken_jobs_is_not_passed_on(waiting: LongPollBench) -> None:
    first, second = waiting.enter("a"), waiting.enter("b")
    waiting.add_jobs(a_task_queue(7), 1)
    waiting.estimator.jobs[7] = 0

    waiting.look(first)

    assert await woken(second) == [False]


async def test_call_that_took_the_job_passes_nothing_on(waiting: LongPollBench) -> None:
    first, second = waiting.enter("a"), waiting.enter("b")
    waiting.add_jobs(a_task_queue(7), 1)

    waiting.look(first, {7: 1})

    assert await woken(second) == [False]


async def test_call_that_took_another_job_passes_the_wake_up_on(waiting: LongPollBench) -> None:
    first, second = waiting.enter("a"), waiting.enter("b")
    waiting.add_jobs(a_task_queue(7), 1)

    waiting.look(first, {8: 1})

    assert await woken(second) == [True]


async def test_wake_up_during_a_look_causes_another_look(waiting: LongPollBench) -> None:
    call = waiting.enter("a")
    with waiting.polls.look(call):
        waiting.add_jobs(a_task_queue(), 1)

    assert await woken(call) == [True]


@pytest.mark.parametrize("other_id", [7, 8])
async def test_jobs_during_the_look_of_a_woken_call_cause_another_look(waiting: LongPollBench, other_id: int) -> None:
    call = waiting.enter("a")
    waiting.add_jobs(a_task_queue(7), 1)
    with waiting.polls.look(call):
        waiting.add_jobs(a_task_queue(other_id), 1)

    assert await woken(call) == [True]


async def test_call_that_ends_passes_its_wake_up_on(waiting: LongPollBench) -> None:
    with waiting.polls.waiting(PilotCredential("a", QUEUE), [SlotOffer("s", Amounts(cpus=1))], 0) as ending:
        remaining = waiting.enter("b")
        waiting.add_jobs(a_task_queue(), 1)
        assert await woken(ending, remaining) == [True, False]

    assert await woken(remaining) == [True]


async def test_cancelled_call_is_removed_and_passes_its_wake_up_on(waiting: LongPollBench) -> None:
    entered = asyncio.Event()

    async def call() -> None:
        with waiting.polls.waiting(PilotCredential("a", QUEUE), [SlotOffer("s", Amounts(cpus=1))], 0) as waiter:
            entered.set()
            await waiter.wait(60)
            with waiting.polls.look(waiter):
                await asyncio.Event().wait()  # the look never ends

    task = asyncio.create_task(call())
    await entered.wait()
    other = waiting.enter("b")
    waiting.add_jobs(a_task_queue(), 1)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert len(waiting.polls) == 1
    assert await woken(other) == [True]


async def test_look_that_fails_passes_its_turn_on(waiting: LongPollBench) -> None:
    first, second = waiting.enter("a"), waiting.enter("b")
    waiting.add_jobs(a_task_queue(), 1)

    with pytest.raises(ConnectionError), waiting.polls.look(first):
        raise ConnectionError

    assert await woken(first, second) == [False, True]


async def test_command_wakes_only_its_pilot(waiting: LongPollBench) -> None:
    one, other = waiting.enter("one"), waiting.enter("other")

    waiting.polls.wake_pilot("one")

    assert await woken(one, other) == [True, False]


async def test_new_tree_wakes_all_calls(waiting: LongPollBench) -> None:
    calls = [waiting.enter(stamp) for stamp in "abc"]

    waiting.polls.wake_all()

    assert await woken(*calls) == [True, True, True]


async def test_new_tree_wakes_calls_in_limited_batches(waiting: LongPollBench) -> None:
    calls = [waiting.enter(str(number)) for number in range(3 * MAX_CONCURRENT_LOOKS)]

    waiting.polls.wake_all()

    for _ in range(3):
        woken_now = [call for call in calls if await call.wait(AT_ONCE_S)]
        assert len(woken_now) == MAX_CONCURRENT_LOOKS
        for call in woken_now:
            waiting.look(call)
            calls.remove(call)
    assert not calls


async def test_second_tree_during_the_wake_up_reaches_all_calls(waiting: LongPollBench) -> None:
    calls = [waiting.enter(str(number)) for number in range(MAX_CONCURRENT_LOOKS + 1)]
    waiting.polls.wake_all()
    with waiting.polls.look(calls[0]):
        waiting.polls.wake_all()

    looks = dict.fromkeys(calls, 0)
    while woken_now := [call for call in calls if await call.wait(AT_ONCE_S)]:
        for call in woken_now:
            looks[call] += 1
            waiting.look(call)

    assert all(looks.values())


async def test_calls_of_one_slot_class_are_evaluated_once(waiting: LongPollBench) -> None:
    for number in range(100):
        waiting.enter(str(number))

    waiting.add_jobs(a_task_queue(1, cpus=2000), 1)
    waiting.add_jobs(a_task_queue(1, cpus=2000), 1)

    assert waiting.estimator.calls == 1


async def test_refusal_is_cached_and_new_calls_are_evaluated(waiting: LongPollBench) -> None:
    for number in range(100):
        waiting.enter(str(number), cpus=1)
    waiting.add_jobs(a_task_queue(1, cpus=4), 1)
    evaluations = waiting.estimator.calls

    taker = waiting.enter("taker", cpus=8)
    waiting.add_jobs(a_task_queue(1, cpus=4), 1)

    assert await woken(taker) == [True]
    assert waiting.estimator.calls == evaluations + 1


async def test_cached_refusals_are_dropped_when_all_calls_are_woken(waiting: LongPollBench) -> None:
    call = waiting.enter("a", cpus=1)
    waiting.add_jobs(a_task_queue(1, cpus=4), 1)
    evaluations = waiting.estimator.calls
    waiting.polls.wake_all()
    waiting.look(call)

    waiting.add_jobs(a_task_queue(1, cpus=4), 1)

    assert waiting.estimator.calls == evaluations + 2, "once for its slot class, once for itself"


async def test_longest_waiting_call_is_first_across_slot_classes(waiting: LongPollBench) -> None:
    free = [waiting.enter("a"), waiting.enter("b")]
    slots = [SlotOffer(name, Amounts(cpus=1)) for name in "12"]
    with waiting.polls.waiting(PilotCredential("c", QUEUE), slots, 0) as two_slots:
        last = waiting.enter("d")
        waiting.add_jobs(a_task_queue(), 3)
        assert await woken(*free, two_slots, last) == [True, True, True, False]


async def test_close_wakes_all_calls(waiting: LongPollBench) -> None:
    call = waiting.enter("a")

    waiting.polls.close()

    assert await woken(call) == [True]
    assert not waiting.polls.is_open


async def test_single_jobs_wake_as_many_calls_as_a_batch(waiting: LongPollBench) -> None:
    calls = [waiting.enter(f"p{number}") for number in range(3)]

    waiting.add_jobs(a_task_queue(), 1)
    waiting.add_jobs(a_task_queue(), 1)

    assert await woken(*calls) == [True, True, False]


@pytest.mark.parametrize(("first_took", "is_third_woken"), [(0, True), (1, True), (2, False)])
async def test_as_many_calls_look_as_there_are_untaken_jobs(
    waiting: LongPollBench, first_took: int, is_third_woken: bool
) -> None:
    first, second, third = (waiting.enter(stamp) for stamp in "abc")
    waiting.add_jobs(a_task_queue(7), 2)

    for call, took in ((first, first_took), (second, 0)):
        waiting.look(call, {7: took})

    assert await woken(third) == [is_third_woken]


async def test_as_many_calls_look_as_jobs_are_left_when_first_looks_take_the_others(waiting: LongPollBench) -> None:
    first, *others = (waiting.enter(str(number)) for number in range(50))
    waiting.estimator.jobs[7] = 0
    with waiting.polls.look(first):
        for _ in range(39):  # the first look of another call takes all but the last job
            waiting.estimator.jobs[7] = 1
            waiting.add_jobs(a_task_queue(7), 1)

        assert sum(await woken(*others)) == 1


async def test_calls_look_for_jobs_that_come_back(waiting: LongPollBench) -> None:
    first, second, third = (waiting.enter(stamp) for stamp in "abc")
    waiting.estimator.jobs[7] = 1
    waiting.add_jobs(a_task_queue(7), 2)
    assert await woken(first, second) == [True, False]

    waiting.estimator.jobs[7] = 2
    waiting.look(first)

    assert await woken(second, third) == [True, True]


async def test_job_that_an_earlier_look_took_counts_for_no_later_search(waiting: LongPollBench) -> None:
    first, second = waiting.enter("a"), waiting.enter("b")
    with waiting.polls.look(first) as taken, waiting.polls.look(second):
        waiting.estimator.jobs[7] = 0  # the first look has taken the first job
        waiting.add_jobs(a_task_queue(7), 1)
        taken[7] += 1
        waiting.estimator.jobs[7] = 1
        waiting.add_jobs(a_task_queue(7), 1)

    waiting.look(first, {8: 1})

    assert await woken(second) == [True]


async def test_task_queue_without_new_jobs_wakes_no_call(waiting: LongPollBench) -> None:
    waiting.enter("a")
    before = waiting.polls.generation

    waiting.add_jobs(a_task_queue(7), 0)

    assert not waiting.polls.is_offered(7)
    assert await woken(waiting.enter_late(before, "late")) == [False]


@pytest.mark.parametrize(("are_others_occupied", "is_occupied"), [(False, False), (False, True), (True, True)])
@pytest.mark.parametrize("looks_of_a_commit", [1, 7, 50])
async def test_steady_jobs_reach_a_slot_behind_slots_that_refuse_them(
    waiting: LongPollBench, are_others_occupied: bool, is_occupied: bool, looks_of_a_commit: int
) -> None:
    refusing = [waiting.enter(str(number), is_occupied=are_others_occupied) for number in range(40)]
    taker = waiting.enter("taker", is_occupied=is_occupied)
    looks = 0
    while not taker.has_to_look and looks < 200:
        waiting.add_jobs(a_task_queue(7), 1)
        for call in [call for call in refusing if call.has_to_look][:looks_of_a_commit]:
            waiting.look(call)
            looks += 1

    assert taker.has_to_look
    assert looks <= len(refusing) + looks_of_a_commit


async def test_calls_that_have_to_look_are_not_estimated_again_in_a_burst(waiting: LongPollBench) -> None:
    for number in range(100):
        waiting.enter(str(number))
    for _ in range(100):
        waiting.add_jobs(a_task_queue(7), 1)

    assert waiting.estimator.calls <= 2 * 100


async def test_refusals_of_small_calls_hide_no_call_between_them(waiting: LongPollBench) -> None:
    calls = [waiting.enter(str(number), cpus=1 + 7 * (number % 2)) for number in range(8)]
    for _ in range(2):
        waiting.add_jobs(a_task_queue(7, cpus=4), 4)
        assert await woken(*calls) == [False, True] * 4
        for call in calls[1::2]:
            waiting.look(call)


async def test_call_that_had_to_look_for_other_jobs_is_found_by_a_later_search(waiting: LongPollBench) -> None:
    large, _small = waiting.enter("large", cpus=8), waiting.enter("small")
    waiting.add_jobs(a_task_queue(8, cpus=4), 1)
    for _ in range(2):
        waiting.add_jobs(a_task_queue(7, cpus=4), 1)
        assert await woken(large) == [True]
        waiting.look(large)


async def test_calls_that_look_for_other_jobs_come_last(waiting: LongPollBench) -> None:
    first, second = waiting.enter("a"), waiting.enter("b")
    waiting.add_jobs(a_task_queue(8), 1)
    waiting.add_jobs(a_task_queue(7), 1)

    assert await woken(first, second) == [True, True]


@given(takers=st.lists(st.booleans(), max_size=12), batches=st.lists(st.integers(1, 6), min_size=1, max_size=5))
def test_no_job_waits_while_a_call_could_take_it(takers: list[bool], batches: list[int]) -> None:
    """Each call can take one job or none; woken calls look until no call is woken any more."""

    async def scenario() -> tuple[int, int]:
        with LongPollBench() as waiting:
            calls = {waiting.enter(str(number)): can_take for number, can_take in enumerate(takers)}
            remaining_jobs, looks = sum(batches), 0
            for batch in batches:
                waiting.add_jobs(a_task_queue(1), batch)
            while woken_now := [call for call in calls if await call.wait(AT_ONCE_S)]:
                for call in woken_now:
                    looks += 1
                    taken = 1 if calls[call] and remaining_jobs else 0
                    calls[call] = calls[call] and not taken
                    remaining_jobs -= taken
                    waiting.look(call, {1: taken})
            return sum(batches) - remaining_jobs, looks

    taken, looks = asyncio.run(scenario())

    assert taken == min(sum(batches), sum(takers))
    assert looks <= len(takers) * len(batches)


# Calls that register after a change since their look


async def test_late_call_is_woken_by_suitable_jobs_since_its_look(
    waiting: LongPollBench,
) -> None:
    generations = []
    for cpus in (1, 4):
        generations.append(waiting.polls.generation)
        waiting.add_jobs(a_task_queue(cpus, cpus=cpus), 1)
    generations.append(waiting.polls.generation)

    small = [waiting.enter_late(generation, "small", cpus=1) for generation in generations]
    large = [waiting.enter_late(generation, "large", cpus=4) for generation in generations]

    assert await woken(*small) == [True, False, False]
    assert await woken(*large) == [True, True, False]


async def test_late_call_is_not_woken_by_taken_jobs(waiting: LongPollBench) -> None:
    generation = waiting.polls.generation
    waiting.add_jobs(a_task_queue(7), 1)
    waiting.estimator.jobs[7] = 0

    assert await woken(waiting.enter_late(generation, "late")) == [False]


async def test_late_call_is_woken_by_its_command_since_its_look(waiting: LongPollBench) -> None:
    generation = waiting.polls.generation
    waiting.polls.wake_pilot("one")

    assert await woken(waiting.enter_late(generation, "one"), waiting.enter_late(generation, "other")) == [True, False]


async def test_late_call_is_woken_by_a_new_tree_since_its_look(waiting: LongPollBench) -> None:
    generation = waiting.polls.generation
    waiting.polls.wake_all()

    assert await woken(waiting.enter_late(generation, "late")) == [True]


async def test_late_call_looks_again_when_changes_are_forgotten(waiting: LongPollBench) -> None:
    for _ in range(MAX_RECENT_CHANGES + 1):
        waiting.polls.wake_pilot("other")
    in_time, late = waiting.enter_late(1, "in time"), waiting.enter_late(0, "late")

    assert await woken(in_time, late) == [False, True]


async def test_late_call_with_occupied_slots_looks_after_the_free_slots(waiting: LongPollBench) -> None:
    free = waiting.enter("free")
    waiting.add_jobs(a_task_queue(7), 1)
    generation = waiting.polls.generation
    waiting.look(free)

    assert await woken(waiting.enter_late(generation, "late", is_occupied=True)) == [True]


async def test_late_call_that_fails_to_register_is_removed(waiting: LongPollBench) -> None:
    generation = waiting.polls.generation
    waiting.add_jobs(a_task_queue(7), 1)
    waiting.estimator.failing.add(7)

    with pytest.raises(KeyError):
        waiting.enter_late(generation, "late")
    assert len(waiting.polls) == 0


async def test_call_does_not_wait_after_close(waiting: LongPollBench) -> None:
    waiting.polls.close()
    late = waiting.enter("late")

    async with asyncio.timeout(10):
        assert not await waiting.polls.wait(late, 3600.0)


# Occupied slots: free slots look first


async def test_occupied_slot_is_woken_when_no_free_slot_took_the_job(waiting: LongPollBench) -> None:
    occupied, free = waiting.enter("occupied", is_occupied=True), waiting.enter("free")
    waiting.add_jobs(a_task_queue(7), 1)
    assert await woken(occupied, free) == [False, True]

    waiting.look(free)

    assert await woken(occupied) == [True]


async def test_occupied_slot_waits_for_free_slots_to_look_first(
    waiting: LongPollBench,
) -> None:
    occupied, free = waiting.enter("occupied", is_occupied=True), waiting.enter("free")
    waiting.add_jobs(a_task_queue(7), 2)
    assert waiting.polls.is_offered(7), "a look now would preempt no job"
    assert await woken(occupied, free) == [False, True]

    waiting.look(free, {7: 1})

    assert not waiting.polls.is_offered(7)
    assert await woken(occupied) == [True]


async def test_occupied_slot_is_not_woken_when_a_free_slot_took_the_job(waiting: LongPollBench) -> None:
    occupied, free = waiting.enter("occupied", is_occupied=True), waiting.enter("free")
    waiting.add_jobs(a_task_queue(7), 1)

    waiting.look(free, {7: 1})

    assert await woken(occupied) == [False]


async def test_late_occupied_slot_is_woken_after_the_free_slots(waiting: LongPollBench) -> None:
    free = waiting.enter("free")
    waiting.add_jobs(a_task_queue(7), 1)
    late = waiting.enter("late", is_occupied=True)

    waiting.look(free)

    assert await woken(late) == [True]


async def test_occupied_slot_waits_for_a_free_slot_that_looks_already(waiting: LongPollBench) -> None:
    occupied, busy = waiting.enter("occupied", is_occupied=True), waiting.enter("busy")
    waiting.add_jobs(a_task_queue(8), 1)
    free = waiting.enter("free")
    waiting.add_jobs(a_task_queue(7), 1)
    assert await woken(busy, free) == [True, True]

    with waiting.polls.look(busy):
        waiting.look(free)
        assert waiting.polls.is_offered(7)
        assert await woken(occupied) == [False]

    assert await woken(occupied) == [True]


async def test_occupied_slot_waits_for_free_slots_when_a_commit_adds_jobs_meanwhile(
    waiting: LongPollBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    occupied, free = waiting.enter("occupied", is_occupied=True), waiting.enter("free")
    counts = iter([0])  # the first job has been taken; afterwards another thread adds one
    monkeypatch.setattr(waiting.estimator, "jobs_left", lambda _: next(counts, 1))

    waiting.add_jobs(a_task_queue(7), 1)
    assert await woken(occupied, free) == [False, False]

    waiting.add_jobs(a_task_queue(7), 1)
    assert await woken(occupied, free) == [False, True]


async def test_more_jobs_go_to_free_slots_before_further_occupied_ones(waiting: LongPollBench) -> None:
    free, first, second = waiting.enter("free"), *(waiting.enter(stamp, is_occupied=True) for stamp in "ab")
    waiting.add_jobs(a_task_queue(7), 1)
    waiting.look(free)
    assert await woken(free, first, second) == [False, True, False]
    waiting.add_jobs(a_task_queue(7), 1)

    waiting.look(first)

    assert await woken(free, first, second) == [True, False, False]


async def test_occupied_slot_looks_for_jobs_that_came_during_its_look(waiting: LongPollBench) -> None:
    first, second = (waiting.enter(stamp, is_occupied=True) for stamp in "ab")
    waiting.add_jobs(a_task_queue(7), 1)
    waiting.look(first)
    with waiting.polls.look(second):
        waiting.add_jobs(a_task_queue(7), 1)

    assert await woken(first, second) == [True, True]


async def test_steady_jobs_of_which_others_take_some_reach_an_occupied_slot(waiting: LongPollBench) -> None:
    refusing = [waiting.enter(str(number)) for number in range(20)]
    occupied = waiting.enter("occupied", is_occupied=True)
    waiting.estimator.jobs[7] = 0
    commits = 0
    while not occupied.has_to_look and commits < 100:
        commits += 1
        waiting.estimator.jobs[7] += commits % 3 and 1  # a first look takes every third job
        waiting.add_jobs(a_task_queue(7), 1)
        for call in [call for call in refusing if call.has_to_look][:5]:
            waiting.look(call)

    assert occupied.has_to_look


async def test_free_slot_that_came_too_late_looks_for_more_jobs_before_occupied_slots(waiting: LongPollBench) -> None:
    occupied, late, refusing = waiting.enter("occupied", is_occupied=True), waiting.enter("a"), waiting.enter("b")
    waiting.add_jobs(a_task_queue(7), 1)
    with waiting.polls.look(late):  # a first look of another call has taken the job
        waiting.estimator.jobs[7] = 1
        waiting.add_jobs(a_task_queue(7), 1)
    assert await woken(late, refusing) == [False, True]

    waiting.look(refusing)

    assert await woken(occupied, late) == [False, True]


async def test_free_slot_looks_for_more_jobs_when_a_neighbour_took_the_first(waiting: LongPollBench) -> None:
    occupied, late, taker = waiting.enter("occupied", is_occupied=True), waiting.enter("a"), waiting.enter("b")
    waiting.add_jobs(a_task_queue(7), 2)
    with waiting.polls.look(late):
        with waiting.polls.look(taker) as taken:
            taken[7] = 2
            waiting.estimator.jobs[7] = 1
            waiting.add_jobs(a_task_queue(7), 1)
        assert await woken(occupied) == [False]

    assert await woken(occupied, late) == [False, True]


async def test_jobs_are_offered_until_every_woken_free_slot_has_looked(waiting: LongPollBench) -> None:
    first, _second = waiting.enter("a"), waiting.enter("b")
    waiting.polls.announce_jobs(a_task_queue(7), 1)
    assert waiting.polls.is_offered(7)
    waiting.polls.wake_for_jobs(a_task_queue(7), 1)
    assert waiting.polls.is_offered(7)
    assert not waiting.polls.is_offered(8)

    waiting.look(first, {7: 1})

    assert not waiting.polls.is_offered(7)


async def test_jobs_are_not_offered_to_occupied_slots_only(waiting: LongPollBench) -> None:
    waiting.enter("a", is_occupied=True)
    waiting.add_jobs(a_task_queue(7), 1)
    assert not waiting.polls.is_offered(7)


async def test_offer_ends_with_its_call(waiting: LongPollBench) -> None:
    offer = SlotOffer("s", Amounts(cpus=1))
    with waiting.polls.waiting(PilotCredential("a", QUEUE), [offer], 0):
        waiting.add_jobs(a_task_queue(7), 1)
        assert waiting.polls.is_offered(7)
    assert not waiting.polls.is_offered(7)
