"""Servers of one database: each follows the others by the feed, and drains no pilot for an old tree."""

from __future__ import annotations

import pytest

from pilotage_server.operations.attempts.pilot_calls import DrainPilot
from pilotage_server.operations.startup.sync import sync_events, sync_resources
from pilotage_server.storage.database.engine import Database
from support.grid import LONG, Grid, Pilot, a_tree
from support.pool_bench import PoolBench, three_queues
from support.sql_statements import statements
from support.virtual_clock import VirtualClock


@pytest.fixture
def servers(postgresql_database: Database) -> tuple[PoolBench, PoolBench]:
    one = PoolBench(postgresql_database)
    one.put(three_queues())
    return one, PoolBench(postgresql_database)


def test_sync_adds_jobs_of_another_server(servers: tuple[PoolBench, PoolBench]) -> None:
    one, other = servers
    other.submit(Memory=1000)
    other.read(sync_events)
    job = one.submit(count=3, Memory=1000)
    assert other.read(sync_events) == 3
    assert other.state.waiting.count(job.task_queue_id) == 4


def test_sync_skips_own_jobs(servers: tuple[PoolBench, PoolBench]) -> None:
    one, _ = servers
    job = one.submit(count=3, Memory=1000)
    assert one.read(sync_events) == 0
    assert one.state.waiting.count(job.task_queue_id) == 3


def test_sync_removes_jobs_removed_by_another_server(servers: tuple[PoolBench, PoolBench]) -> None:
    one, other = servers
    first = one.submit(count=2, Memory=1000)
    other.submit(Memory=1000)
    one.read(sync_events)
    other.read(sync_events)
    other.remove(one.job(first.id))
    one.read(sync_events)
    assert one.state.waiting.count(first.task_queue_id) == 2
    one.check_consistency()


def test_sync_notifies_waiting_requests(servers: tuple[PoolBench, PoolBench]) -> None:
    one, other = servers
    one.submit(Memory=1000)
    other.submit(Memory=1000)
    notified: list[int] = []
    other.state.waiting_listeners.append(lambda _queue, count: notified.append(count))
    one.submit(count=5, Memory=1000)
    other.read(sync_events)
    other.read(sync_events)
    assert sum(notified) >= 5


def test_job_of_unknown_task_queue_wakes_all_requests(servers: tuple[PoolBench, PoolBench]) -> None:
    one, other = servers
    woken: list[str] = []
    other.state.access_listeners.append(lambda: woken.append("now"))
    job = one.submit(Memory=1000)
    other.read(sync_events)
    assert woken
    assert other.state.waiting.unknown() == {job.task_queue_id}


def test_started_server_syncs_from_its_start_position(servers: tuple[PoolBench, PoolBench]) -> None:
    one, _ = servers
    job = one.submit(count=3, Memory=1000)
    late = PoolBench(one.database)
    assert late.read(sync_events) == 0
    assert late.state.waiting.count(job.task_queue_id) == 3


def test_sync_without_events_reads_neither_jobs_nor_pools(servers: tuple[PoolBench, PoolBench]) -> None:
    one, other = servers
    one.submit(Memory=1000)
    other.sync()
    other.read(sync_events)
    with statements(other.database) as executed:
        other.read(sync_events)
        other.read(sync_resources)
    assert executed
    assert not [statement for statement in executed if "jobs" in statement or "canonical" in statement]


NEW = "CERN/ce01/new"


def test_server_with_old_tree_keeps_pilot_of_new_queue(database: Database, clock: VirtualClock) -> None:
    late, newer = Grid(database, clock), Grid(database, clock)
    newer.put(a_tree(LONG, NEW))
    pilot = Pilot(late, newer.start_pilot(NEW).identity)

    assert pilot.request_jobs().commands == ()
    assert pilot.beat().commands == ()


def test_pilot_of_removed_queue_is_drained_after_sync(database: Database, clock: VirtualClock) -> None:
    late, newer = Grid(database, clock), Grid(database, clock)
    pilot = late.start_pilot(LONG)
    newer.put(a_tree(NEW))
    assert pilot.beat().commands == ()

    late.read(sync_resources)

    (command,) = pilot.beat().commands
    assert isinstance(command, DrainPilot)
