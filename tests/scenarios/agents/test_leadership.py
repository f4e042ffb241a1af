"""Replicas of an agent on several hosts: one leads at a time, and another takes over when it fails."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from pilotage.errors import LeadershipLostError, ServerUnreachableError, StateConflictError
from pilotage_agents.runtime.leadership import LeaderAgent
from support.leadership import TURN_S, BackgroundAgent, DatabaseLeadership, ManualPause, RecordingAgent, a_copy
from support.virtual_clock import LoopTime, VirtualClock

RENEWAL_INTERVAL = timedelta(seconds=TURN_S / 3)


async def run_replicas(clock: VirtualClock, length: timedelta, *replicas: LeaderAgent) -> None:
    """Run replicas together for `length`; each runs again after the interval that it returned."""
    end = clock() + length
    due = {replica: clock() for replica in replicas}
    while (soonest := min(due.values())) < end:
        clock.advance(soonest - clock())
        for replica in [replica for replica, time in due.items() if time == soonest]:
            due[replica] = soonest + await replica.run_once()
    clock.advance(end - clock())


async def forever() -> None:
    await asyncio.Event().wait()


async def test_one_of_three_replicas_leads_and_keeps_leadership_between_cycles(
    leadership: DatabaseLeadership, clock: VirtualClock
) -> None:
    workers = [RecordingAgent(interval=timedelta(minutes=20)) for _ in range(3)]
    replicas = [a_copy(name, worker, leadership, clock) for name, worker in zip("abc", workers, strict=True)]
    await run_replicas(clock, timedelta(hours=1), *replicas)
    assert [worker.steps for worker in workers] == [["began", "ended"] * 3, [], []]


async def test_cycles_repeat_at_the_returned_interval(leadership: DatabaseLeadership, clock: VirtualClock) -> None:
    worker = RecordingAgent(interval=timedelta(seconds=4))
    await run_replicas(clock, timedelta(minutes=1), a_copy("a", worker, leadership, clock))
    assert worker.steps.count("began") == 15


async def test_another_replica_leads_after_a_dead_leaders_lease_expires(
    leadership: DatabaseLeadership, clock: VirtualClock
) -> None:
    first, second = RecordingAgent(), RecordingAgent()
    replicas = a_copy("a", first, leadership, clock), a_copy("b", second, leadership, clock)
    await run_replicas(clock, timedelta(seconds=35), *replicas)
    assert second.steps == []
    await run_replicas(clock, timedelta(seconds=TURN_S) + RENEWAL_INTERVAL, replicas[1])
    assert second.steps == ["began", "ended"]


async def test_stopped_leader_releases_leadership(leadership: DatabaseLeadership, clock: VirtualClock) -> None:
    first, second = RecordingAgent(), RecordingAgent()
    replicas = a_copy("a", first, leadership, clock), a_copy("b", second, leadership, clock)
    for replica in replicas:
        await replica.run_once()
    await replicas[0].stop()
    await replicas[1].run_once()
    assert (first.steps, second.steps) == (["began", "ended", "stopped"], ["began", "ended"])


async def test_stopped_follower_changes_nothing(leadership: DatabaseLeadership, clock: VirtualClock) -> None:
    first, second = RecordingAgent(), RecordingAgent()
    replicas = a_copy("a", first, leadership, clock), a_copy("b", second, leadership, clock)
    for replica in replicas:
        await replica.run_once()
    await replicas[1].stop()
    await run_replicas(clock, timedelta(minutes=1), replicas[0])
    await replicas[1].run_once()
    assert (first.steps, second.steps) == (["began", "ended"], [])


@pytest.mark.parametrize("another_leads", [True, False])
async def test_expired_leader_stops_its_agent_unless_another_leads(
    leadership: DatabaseLeadership, clock: VirtualClock, another_leads: bool
) -> None:
    worker = RecordingAgent()
    replica = a_copy("a", worker, leadership, clock)
    await replica.run_once()
    clock.advance(seconds=TURN_S)
    if another_leads:
        await a_copy("b", RecordingAgent(), leadership, clock).run_once()
    await replica.stop()
    assert worker.steps == ["began", "ended", *([] if another_leads else ["stopped"])]


async def test_long_cycle_renews_leadership(leadership: DatabaseLeadership, clock: VirtualClock) -> None:
    beats, work_done = ManualPause(), asyncio.Event()

    async def work() -> None:
        await work_done.wait()

    first, second = RecordingAgent(work=work), RecordingAgent()
    other = a_copy("b", second, leadership, clock)
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        group.create_task(a_copy("a", first, leadership, clock, beats).run_once())
        for _ in range(10):
            clock.advance(RENEWAL_INTERVAL)
            await beats.beat()
            await other.run_once()
        work_done.set()
    assert first.steps == ["began", "ended"]
    assert second.steps == []


async def test_cycle_is_cancelled_when_another_replica_took_leadership(
    leadership: DatabaseLeadership, clock: VirtualClock
) -> None:
    beats, first, second = ManualPause(), RecordingAgent(work=forever), RecordingAgent()
    cycle = asyncio.ensure_future(a_copy("a", first, leadership, clock, beats).run_once())
    await beats.beat()
    clock.advance(seconds=TURN_S)
    await a_copy("b", second, leadership, clock).run_once()
    beats.end_pause()
    with pytest.raises(LeadershipLostError):
        await asyncio.wait_for(cycle, 30)
    assert first.steps == ["began", "cut off"]
    assert second.steps == ["began", "ended"]


async def test_unreachable_server_cancels_the_cycle_before_the_lease_expires(
    leadership: DatabaseLeadership, clock: VirtualClock
) -> None:
    beats, first = ManualPause(), RecordingAgent(work=forever)
    cycle = asyncio.ensure_future(a_copy("a", first, leadership, clock, beats).run_once())
    await beats.begun()
    leadership.is_reachable = False
    for _ in range(2):
        await beats.beat()
        clock.advance(RENEWAL_INTERVAL)
    assert first.steps == ["began"]
    clock.advance(RENEWAL_INTERVAL)
    beats.end_pause()
    with pytest.raises(LeadershipLostError):
        await asyncio.wait_for(cycle, 30)
    assert first.steps == ["began", "cut off"]


async def run_ready_tasks() -> None:
    """Return when all tasks wait for something outside the event loop."""
    for _ in range(100):
        await asyncio.sleep(0)


@pytest.mark.parametrize("fails", [False, True])
async def test_pending_renewal_completes_before_leadership_is_released(
    leadership: DatabaseLeadership, clock: VirtualClock, fails: bool
) -> None:
    beats, work_done = ManualPause(), asyncio.Event()

    async def work() -> None:
        await work_done.wait()
        if fails:
            raise ServerUnreachableError("no answer")

    first, second = RecordingAgent(work=work), RecordingAgent()
    ending = asyncio.ensure_future(a_copy("a", first, leadership, clock, beats).run_one_cycle())
    await beats.begun()
    leadership.request_sent.clear()
    leadership.may_arrive.clear()
    beats.end_pause()
    await leadership.request_sent.wait()
    work_done.set()
    await run_ready_tasks()
    leadership.may_arrive.set()
    await asyncio.wait([ending])
    assert isinstance(ending.exception(), ServerUnreachableError) is fails
    await a_copy("b", second, leadership, clock).run_once()
    assert second.steps == ["began", "ended"]


async def test_slow_stop_keeps_leadership_until_it_ends(leadership: DatabaseLeadership, clock: VirtualClock) -> None:
    beats, end_done = ManualPause(), asyncio.Event()

    async def end() -> None:
        await end_done.wait()

    first, second = RecordingAgent(end=end), RecordingAgent()
    replica, other = a_copy("a", first, leadership, clock, beats), a_copy("b", second, leadership, clock)
    await replica.run_once()
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        group.create_task(replica.stop())
        for _ in range(10):
            clock.advance(RENEWAL_INTERVAL)
            await beats.beat()
            await other.run_once()
        end_done.set()
    await other.run_once()
    assert first.steps[-1] == "stopped"
    assert second.steps == ["began", "ended"]


async def test_leader_stops_its_agent_though_the_server_is_unreachable(
    leadership: DatabaseLeadership, clock: VirtualClock
) -> None:
    worker = RecordingAgent()
    replica = a_copy("a", worker, leadership, clock)
    await replica.run_once()
    clock.advance(seconds=TURN_S)
    leadership.is_reachable = False
    with pytest.raises(ServerUnreachableError):
        await replica.stop()
    assert worker.steps == ["began", "ended", "stopped"]


async def test_leadership_is_released_when_stopping_the_agent_fails(
    leadership: DatabaseLeadership, clock: VirtualClock
) -> None:
    async def end() -> None:
        raise ServerUnreachableError("no answer")

    second = RecordingAgent()
    replica = a_copy("a", RecordingAgent(end=end), leadership, clock)
    await replica.run_once()
    with pytest.raises(ServerUnreachableError, match="no answer"):
        await replica.stop()
    await a_copy("b", second, leadership, clock).run_once()
    assert second.steps == ["began", "ended"]


async def test_leadership_that_expires_before_the_answer_starts_no_cycle(
    leadership: DatabaseLeadership, clock: VirtualClock
) -> None:
    leadership.before_answer = lambda: clock.advance(seconds=TURN_S)
    worker = RecordingAgent()
    with pytest.raises(LeadershipLostError):
        await a_copy("a", worker, leadership, clock).run_once()
    assert worker.steps == []


async def test_failed_cycle_raises_its_own_error_and_is_retried(
    leadership: DatabaseLeadership, clock: VirtualClock
) -> None:
    async def fail() -> None:
        raise ServerUnreachableError("no answer")

    worker = RecordingAgent(work=fail)
    replica = a_copy("a", worker, leadership, clock)
    for _ in range(2):
        with pytest.raises(ServerUnreachableError, match="no answer"):
            await replica.run_once()
    assert worker.steps == ["began"] * 2


async def test_single_cycle_is_rejected_while_another_leads_and_releases_leadership(
    leadership: DatabaseLeadership, clock: VirtualClock
) -> None:
    first, second = RecordingAgent(), RecordingAgent()
    replicas = a_copy("a", first, leadership, clock), a_copy("b", second, leadership, clock)
    await replicas[0].run_once()
    with pytest.raises(StateConflictError, match="leads, on host of a"):
        await replicas[1].run_one_cycle()
    await replicas[0].stop()
    await replicas[1].run_one_cycle()
    await replicas[0].run_one_cycle()
    assert second.steps == ["began", "ended"]


async def test_dry_run_needs_no_leadership(leadership: DatabaseLeadership, clock: VirtualClock) -> None:
    await a_copy("a", RecordingAgent(), leadership, clock).run_once()
    assert await a_copy("b", RecordingAgent(), leadership, clock).dry_run() == ("would work",)


# Work between cycles -----------------------------------------------------------------------------------------------


async def test_background_work_ends_when_another_replica_leads(
    leadership: DatabaseLeadership, clock: VirtualClock
) -> None:
    first, second = BackgroundAgent(), RecordingAgent()
    replica = a_copy("a", first, leadership, clock)
    await replica.run_once()
    clock.advance(seconds=TURN_S)
    await a_copy("b", second, leadership, clock).run_once()
    assert first.steps == ["turn taken", "began", "ended"]
    await replica.run_once()
    assert first.steps == ["turn taken", "began", "ended", "turn lost"]


async def test_background_work_ends_when_leadership_is_not_renewed_in_time(
    leadership: DatabaseLeadership, clock: VirtualClock
) -> None:
    worker, loop_time = BackgroundAgent(), LoopTime()
    replica = a_copy("a", worker, leadership, clock)
    await replica.run_once()
    loop_time.advance(TURN_S - 1)
    clock.advance(seconds=TURN_S - 1)
    await replica.run_once()
    loop_time.advance(TURN_S - 1)
    clock.advance(seconds=TURN_S - 1)
    await asyncio.sleep(0)
    assert not worker.ended.is_set(), "it was renewed"
    loop_time.advance(1)
    clock.advance(seconds=1)
    async with asyncio.timeout(30):
        await worker.ended.wait()


async def test_work_started_after_leadership_expired_ends_with_the_cycle(
    leadership: DatabaseLeadership, clock: VirtualClock
) -> None:
    worker, beats = BackgroundAgent(), ManualPause()

    async def start_work_when_cancelled() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            worker.steps.append("began more")

    worker.work = start_work_when_cancelled
    cycle = asyncio.create_task(a_copy("a", worker, leadership, clock, beats).run_once())
    await beats.begun()
    leadership.is_reachable = False
    clock.advance(seconds=TURN_S)
    beats.end_pause()
    with pytest.raises(LeadershipLostError):
        await cycle
    assert worker.steps[-3:] == ["began more", "cut off", "turn lost"]


async def test_single_cycle_waits_for_background_work_before_releasing_leadership(
    leadership: DatabaseLeadership, clock: VirtualClock
) -> None:
    worker = BackgroundAgent()
    await a_copy("a", worker, leadership, clock).run_one_cycle()
    assert worker.steps == ["turn taken", "began", "ended", "waited for the rest", "turn lost"]
