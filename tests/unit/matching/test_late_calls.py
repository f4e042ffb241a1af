"""Calls that begin to wait for work after something has happened since their look."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from pilotage_server.rpc.matching.long_polls import MAX_RECENT_CHANGES
from support.waiting_calls import Waiting, a_task_queue, woken


@pytest.fixture
def waiting() -> Iterator[Waiting]:
    with Waiting() as calls:
        yield calls


async def test_who_comes_late_is_woken_by_jobs_that_came_after_its_look_and_that_suit_it(
    waiting: Waiting,
) -> None:
    moments = []
    for cpus in (1, 4):
        moments.append(waiting.polls.generation)
        waiting.polls.wake_for_jobs(a_task_queue(cpus, cpus=cpus), 1)
    moments.append(waiting.polls.generation)

    small = [waiting.enter_late(moment, "small", cpus=1) for moment in moments]
    large = [waiting.enter_late(moment, "large", cpus=4) for moment in moments]

    assert await woken(*small) == [True, False, False]
    assert await woken(*large) == [True, True, False]


async def test_who_comes_late_is_not_woken_by_jobs_that_others_have_taken(waiting: Waiting) -> None:
    moment = waiting.polls.generation
    waiting.polls.wake_for_jobs(a_task_queue(7), 1)
    waiting.chances.gone.add(7)

    assert await woken(waiting.enter_late(moment, "late")) == [False]


async def test_who_comes_late_is_woken_by_a_command_for_it_that_came_after_its_look(waiting: Waiting) -> None:
    moment = waiting.polls.generation
    waiting.polls.wake_pilot("one")

    assert await woken(waiting.enter_late(moment, "one"), waiting.enter_late(moment, "other")) == [True, False]


async def test_who_comes_late_is_woken_by_a_tree_that_came_after_its_look(waiting: Waiting) -> None:
    moment = waiting.polls.generation
    waiting.polls.wake_all()

    assert await woken(waiting.enter_late(moment, "late")) == [True]


async def test_who_comes_so_late_that_it_is_forgotten_what_happened_looks_again(waiting: Waiting) -> None:
    for _ in range(MAX_RECENT_CHANGES + 1):
        waiting.polls.wake_pilot("other")
    in_time, late = waiting.enter_late(1, "in time"), waiting.enter_late(0, "late")

    assert await woken(in_time, late) == [False, True]


async def test_who_looked_while_free_slots_were_asked_first_and_waits_only_then_looks_again(waiting: Waiting) -> None:
    free = waiting.enter("free")
    waiting.polls.wake_for_jobs(a_task_queue(7), 1)
    moment = waiting.polls.generation
    free.begin_look()
    free.end_look({})

    assert await woken(waiting.enter_late(moment, "late", is_occupied=True)) == [True]


async def test_a_call_of_which_the_chances_cannot_be_told_leaves_no_waiter(waiting: Waiting) -> None:
    moment = waiting.polls.generation
    waiting.polls.wake_for_jobs(a_task_queue(7), 1)
    waiting.chances.unclear.add(7)

    with pytest.raises(KeyError):
        waiting.enter_late(moment, "late")
    assert len(waiting.polls) == 0


async def test_a_call_that_looked_while_the_polls_were_closed_does_not_begin_to_wait(waiting: Waiting) -> None:
    waiting.polls.close()
    late = waiting.enter("late")

    async with asyncio.timeout(10):
        assert not await waiting.polls.wait(late, 3600.0)
