"""What an agent does beside its rounds: it outlasts them, and ends with the agent's turn."""

from __future__ import annotations

import asyncio

import pytest

from pilotage.errors import LeadershipLostError
from support.leadership import TURN_S, Beats, DatabaseTurns, OutlastingWorker, Worker, a_copy
from support.virtual_clock import LoopTime, VirtualClock


async def test_what_outlasts_the_rounds_ends_when_another_copy_has_the_turn(
    turns: DatabaseTurns, clock: VirtualClock
) -> None:
    first, second = OutlastingWorker(), Worker()
    copy = a_copy("a", first, turns, clock)
    await copy.run_once()
    clock.advance(seconds=TURN_S)
    await a_copy("b", second, turns, clock).run_once()
    assert first.deeds == ["turn taken", "began", "ended"]
    await copy.run_once()
    assert first.deeds == ["turn taken", "began", "ended", "turn lost"]


async def test_what_outlasts_the_rounds_ends_between_them_when_the_turn_is_not_renewed_in_time(
    turns: DatabaseTurns, clock: VirtualClock
) -> None:
    worker, loop_time = OutlastingWorker(), LoopTime()
    copy = a_copy("a", worker, turns, clock)
    await copy.run_once()
    loop_time.advance(TURN_S - 1)
    clock.advance(seconds=TURN_S - 1)
    await copy.run_once()
    loop_time.advance(TURN_S - 1)
    clock.advance(seconds=TURN_S - 1)
    await asyncio.sleep(0)
    assert not worker.ended.is_set(), "it was renewed"
    loop_time.advance(1)
    clock.advance(seconds=1)
    async with asyncio.timeout(30):
        await worker.ended.wait()


async def test_what_a_round_begins_after_its_turn_was_over_ends_with_it_though_nobody_answers(
    turns: DatabaseTurns, clock: VirtualClock
) -> None:
    worker, beats = OutlastingWorker(), Beats()

    async def begin_more_late() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            worker.deeds.append("began more")

    worker.work = begin_more_late
    round_ = asyncio.create_task(a_copy("a", worker, turns, clock, beats).run_once())
    await beats.begun()
    turns.is_reachable = False
    clock.advance(seconds=TURN_S)
    beats.last_beat()
    with pytest.raises(LeadershipLostError):
        await round_
    assert worker.deeds[-3:] == ["began more", "cut off", "turn lost"]


async def test_a_single_round_of_one_that_outlasts_it_is_waited_for_before_the_turn_is_given_back(
    turns: DatabaseTurns, clock: VirtualClock
) -> None:
    worker = OutlastingWorker()
    await a_copy("a", worker, turns, clock).run_one_cycle()
    assert worker.deeds == ["turn taken", "began", "ended", "waited for the rest", "turn lost"]
