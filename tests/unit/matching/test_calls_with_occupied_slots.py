"""Calls that wait for work with free slots and with occupied ones: free slots are asked first."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pilotage.values.amounts import Amounts
from pilotage.values.offers import SlotOffer
from pilotage_server.core.identity import PilotCredential
from support.waiting_calls import QUEUE, Waiting, a_task_queue, woken


@pytest.fixture
def waiting() -> Iterator[Waiting]:
    with Waiting() as calls:
        yield calls


async def test_who_would_have_to_throw_a_job_out_is_told_when_no_free_slot_took_the_new_one(waiting: Waiting) -> None:
    occupied, free = waiting.enter("occupied", is_occupied=True), waiting.enter("free")
    waiting.polls.wake_for_jobs(a_task_queue(7), 1)
    assert await woken(occupied, free) == [False, True]

    free.begin_look()
    free.end_look({})

    assert await woken(occupied) == [True]


async def test_who_would_have_to_throw_a_job_out_waits_until_free_slots_have_looked_also_where_jobs_are_many(
    waiting: Waiting,
) -> None:
    occupied, free = waiting.enter("occupied", is_occupied=True), waiting.enter("free")
    waiting.polls.wake_for_jobs(a_task_queue(7), 2)
    assert waiting.polls.is_offered(7, "occupied"), "a look now would throw nothing out"
    assert await woken(occupied, free) == [False, True]

    free.begin_look()
    free.end_look({7: 1})

    assert not waiting.polls.is_offered(7, "occupied")
    assert await woken(occupied) == [True]


async def test_who_throws_a_job_out_is_not_told_when_a_free_slot_took_the_new_one(waiting: Waiting) -> None:
    occupied, free = waiting.enter("occupied", is_occupied=True), waiting.enter("free")
    waiting.polls.wake_for_jobs(a_task_queue(7), 1)

    free.begin_look()
    free.end_look({7: 1})

    assert await woken(occupied) == [False]


async def test_who_comes_while_free_slots_look_is_told_after_them_too(waiting: Waiting) -> None:
    free = waiting.enter("free")
    waiting.polls.wake_for_jobs(a_task_queue(7), 1)
    late = waiting.enter("late", is_occupied=True)

    free.begin_look()
    free.end_look({})

    assert await woken(late) == [True]


async def test_jobs_are_on_offer_until_every_free_slot_that_was_told_has_looked(waiting: Waiting) -> None:
    first, _second = waiting.enter("a"), waiting.enter("b")
    waiting.polls.announce_jobs(a_task_queue(7), 1)
    assert waiting.polls.is_offered(7, "occupied")
    waiting.polls.wake_for_jobs(a_task_queue(7), 1)
    assert waiting.polls.is_offered(7, "occupied")
    assert not waiting.polls.is_offered(7, "a"), "its own look is no reason to hold back"
    assert not waiting.polls.is_offered(8, "occupied")

    first.begin_look()
    first.end_look({7: 1})

    assert not waiting.polls.is_offered(7, "occupied")


async def test_jobs_that_only_occupied_slots_look_for_are_not_on_offer(waiting: Waiting) -> None:
    waiting.enter("a", is_occupied=True)
    waiting.polls.announce_jobs(a_task_queue(7), 1)
    waiting.polls.wake_for_jobs(a_task_queue(7), 1)
    assert not waiting.polls.is_offered(7, "b")


async def test_a_call_that_leaves_offers_nothing_any_more(waiting: Waiting) -> None:
    offer = SlotOffer("s", Amounts(cpus=1))
    with waiting.polls.waiting(PilotCredential("a", QUEUE), [offer], 0):
        waiting.polls.wake_for_jobs(a_task_queue(7), 1)
        assert waiting.polls.is_offered(7, "b")
    assert not waiting.polls.is_offered(7, "b")
