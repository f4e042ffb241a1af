"""Copies of an agent on several hosts: one acts at a time, and another when that one is gone."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from pilotage.errors import LeadershipLostError, ServerUnreachableError, StateConflictError
from pilotage_agents.runtime.leadership import LeaderAgent
from support.leadership import TURN_S, Beats, DatabaseTurns, Worker, a_copy
from support.virtual_clock import VirtualClock

ASKED_EVERY = timedelta(seconds=TURN_S / 3)


async def live(clock: VirtualClock, length: timedelta, *copies: LeaderAgent) -> None:
    """Let copies live side by side for a while, each asking when it wants to."""
    end = clock() + length
    due = {copy: clock() for copy in copies}
    while (soonest := min(due.values())) < end:
        clock.advance(soonest - clock())
        for copy in [copy for copy, time in due.items() if time == soonest]:
            due[copy] = soonest + await copy.run_once()
    clock.advance(end - clock())


async def forever() -> None:
    await asyncio.Event().wait()


async def test_one_of_three_copies_acts_and_keeps_its_turn_between_rounds(
    turns: DatabaseTurns, clock: VirtualClock
) -> None:
    workers = [Worker(interval=timedelta(minutes=20)) for _ in range(3)]
    copies = [a_copy(name, worker, turns, clock) for name, worker in zip("abc", workers, strict=True)]
    await live(clock, timedelta(hours=1), *copies)
    assert [worker.deeds for worker in workers] == [["began", "ended"] * 3, [], []]


async def test_rounds_follow_at_the_interval_that_the_agent_names(turns: DatabaseTurns, clock: VirtualClock) -> None:
    quick = Worker(interval=timedelta(seconds=4))
    await live(clock, timedelta(minutes=1), a_copy("a", quick, turns, clock))
    assert quick.deeds.count("began") == 15


async def test_a_copy_that_dies_is_followed_by_another_when_its_turn_is_over(
    turns: DatabaseTurns, clock: VirtualClock
) -> None:
    first, second = Worker(), Worker()
    copies = a_copy("a", first, turns, clock), a_copy("b", second, turns, clock)
    await live(clock, timedelta(seconds=35), *copies)
    assert second.deeds == []
    await live(clock, timedelta(seconds=TURN_S) + ASKED_EVERY, copies[1])
    assert second.deeds == ["began", "ended"]


async def test_a_copy_that_stops_gives_its_turn_back(turns: DatabaseTurns, clock: VirtualClock) -> None:
    first, second = Worker(), Worker()
    copies = a_copy("a", first, turns, clock), a_copy("b", second, turns, clock)
    for copy in copies:
        await copy.run_once()
    await copies[0].stop()
    await copies[1].run_once()
    assert (first.deeds, second.deeds) == (["began", "ended", "stopped"], ["began", "ended"])


async def test_a_copy_that_does_not_act_leaves_all_as_it_is_when_it_stops(
    turns: DatabaseTurns, clock: VirtualClock
) -> None:
    first, second = Worker(), Worker()
    copies = a_copy("a", first, turns, clock), a_copy("b", second, turns, clock)
    for copy in copies:
        await copy.run_once()
    await copies[1].stop()
    await live(clock, timedelta(minutes=1), copies[0])
    assert second.deeds == []


@pytest.mark.parametrize("another_acts", [True, False])
async def test_a_copy_whose_turn_has_run_out_ends_well_unless_another_acts(
    turns: DatabaseTurns, clock: VirtualClock, another_acts: bool
) -> None:
    asleep = Worker()
    copy = a_copy("a", asleep, turns, clock)
    await copy.run_once()
    clock.advance(seconds=TURN_S)
    if another_acts:
        await a_copy("b", Worker(), turns, clock).run_once()
    await copy.stop()
    assert asleep.deeds == ["began", "ended", *([] if another_acts else ["stopped"])]


async def test_a_round_that_outlasts_many_turns_is_done_in_one(turns: DatabaseTurns, clock: VirtualClock) -> None:
    beats, work_done = Beats(), asyncio.Event()

    async def work() -> None:
        await work_done.wait()

    first, second = Worker(work=work), Worker()
    other = a_copy("b", second, turns, clock)
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        group.create_task(a_copy("a", first, turns, clock, beats).run_once())
        for _ in range(10):
            clock.advance(ASKED_EVERY)
            await beats.beat()
            await other.run_once()
        work_done.set()
    assert first.deeds == ["began", "ended"]
    assert second.deeds == []


async def test_a_copy_that_was_asleep_while_another_took_the_turn_ends_its_round(
    turns: DatabaseTurns, clock: VirtualClock
) -> None:
    beats, first, second = Beats(), Worker(work=forever), Worker()
    asleep = asyncio.ensure_future(a_copy("a", first, turns, clock, beats).run_once())
    await beats.beat()
    clock.advance(seconds=TURN_S)
    await a_copy("b", second, turns, clock).run_once()
    beats.last_beat()
    with pytest.raises(LeadershipLostError):
        await asyncio.wait_for(asleep, 30)
    assert first.deeds == ["began", "cut off"]
    assert second.deeds == ["began", "ended"]


async def test_a_copy_that_cannot_reach_the_server_ends_its_round_before_another_may_begin(
    turns: DatabaseTurns, clock: VirtualClock
) -> None:
    beats, first = Beats(), Worker(work=forever)
    cut_off = asyncio.ensure_future(a_copy("a", first, turns, clock, beats).run_once())
    await beats.begun()
    turns.is_reachable = False
    for _ in range(2):
        await beats.beat()
        clock.advance(ASKED_EVERY)
    assert first.deeds == ["began"]
    clock.advance(ASKED_EVERY)
    beats.last_beat()
    with pytest.raises(LeadershipLostError):
        await asyncio.wait_for(cut_off, 30)
    assert first.deeds == ["began", "cut off"]


async def all_that_can_happen() -> None:
    """Return when everything has happened that waits for nothing but its turn in the event loop."""
    for _ in range(100):
        await asyncio.sleep(0)


@pytest.mark.parametrize("fails", [False, True])
async def test_a_renewal_under_way_when_the_round_ends_is_answered_before_the_turn_is_given_back(
    turns: DatabaseTurns, clock: VirtualClock, fails: bool
) -> None:
    beats, work_done = Beats(), asyncio.Event()

    async def work() -> None:
        await work_done.wait()
        if fails:
            raise ServerUnreachableError("no answer")

    first, second = Worker(work=work), Worker()
    ending = asyncio.ensure_future(a_copy("a", first, turns, clock, beats).run_one_cycle())
    await beats.begun()
    turns.is_sent.clear()
    turns.arrives.clear()
    beats.last_beat()
    await turns.is_sent.wait()
    work_done.set()
    await all_that_can_happen()
    turns.arrives.set()
    await asyncio.wait([ending])
    assert isinstance(ending.exception(), ServerUnreachableError) is fails
    await a_copy("b", second, turns, clock).run_once()
    assert second.deeds == ["began", "ended"]


async def test_a_copy_that_takes_long_to_stop_keeps_its_turn_until_it_has(
    turns: DatabaseTurns, clock: VirtualClock
) -> None:
    beats, end_done = Beats(), asyncio.Event()

    async def end() -> None:
        await end_done.wait()

    first, second = Worker(end=end), Worker()
    copy, other = a_copy("a", first, turns, clock, beats), a_copy("b", second, turns, clock)
    await copy.run_once()
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        group.create_task(copy.stop())
        for _ in range(10):
            clock.advance(ASKED_EVERY)
            await beats.beat()
            await other.run_once()
        end_done.set()
    await other.run_once()
    assert first.deeds[-1] == "stopped"
    assert second.deeds == ["began", "ended"]


async def test_a_copy_that_is_cut_off_brings_its_own_to_an_end_all_the_same(
    turns: DatabaseTurns, clock: VirtualClock
) -> None:
    worker = Worker()
    copy = a_copy("a", worker, turns, clock)
    await copy.run_once()
    clock.advance(seconds=TURN_S)
    turns.is_reachable = False
    with pytest.raises(ServerUnreachableError):
        await copy.stop()
    assert worker.deeds == ["began", "ended", "stopped"]


async def test_a_copy_that_cannot_end_well_gives_its_turn_back(turns: DatabaseTurns, clock: VirtualClock) -> None:
    async def end() -> None:
        raise ServerUnreachableError("no answer")

    second = Worker()
    copy = a_copy("a", Worker(end=end), turns, clock)
    await copy.run_once()
    with pytest.raises(ServerUnreachableError, match="no answer"):
        await copy.stop()
    await a_copy("b", second, turns, clock).run_once()
    assert second.deeds == ["began", "ended"]


async def test_a_turn_that_is_over_when_the_copy_hears_of_it_begins_no_round(
    turns: DatabaseTurns, clock: VirtualClock
) -> None:
    turns.while_answered = lambda: clock.advance(seconds=TURN_S)
    worker = Worker()
    with pytest.raises(LeadershipLostError):
        await a_copy("a", worker, turns, clock).run_once()
    assert worker.deeds == []


async def test_a_round_that_fails_fails_with_its_own_error_and_is_tried_again_at_once(
    turns: DatabaseTurns, clock: VirtualClock
) -> None:
    async def fail() -> None:
        raise ServerUnreachableError("no answer")

    worker = Worker(work=fail)
    copy = a_copy("a", worker, turns, clock)
    for _ in range(2):
        with pytest.raises(ServerUnreachableError, match="no answer"):
            await copy.run_once()
    assert worker.deeds == ["began"] * 2


async def test_a_single_round_is_refused_while_another_copy_acts_and_gives_its_turn_back(
    turns: DatabaseTurns, clock: VirtualClock
) -> None:
    first, second = Worker(), Worker()
    copies = a_copy("a", first, turns, clock), a_copy("b", second, turns, clock)
    await copies[0].run_once()
    with pytest.raises(StateConflictError, match="leads, on host of a"):
        await copies[1].run_one_cycle()
    await copies[0].stop()
    await copies[1].run_one_cycle()
    await copies[0].run_one_cycle()
    assert second.deeds == ["began", "ended"]


async def test_a_dry_run_needs_no_turn(turns: DatabaseTurns, clock: VirtualClock) -> None:
    await a_copy("a", Worker(), turns, clock).run_once()
    assert await a_copy("b", Worker(), turns, clock).dry_run() == ("would work",)
