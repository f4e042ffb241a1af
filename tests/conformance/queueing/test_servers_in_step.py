"""Servers on one PostgreSQL: what one does to jobs the others know from the feed, without counting all again."""

from __future__ import annotations

import pytest

from pilotage_server.operations.startup.sync import sync_events, sync_resources
from pilotage_server.storage.database.engine import Database
from support.pool_bench import PoolBench, three_queues
from support.statements import statements


@pytest.fixture
def servers(postgresql_database: Database) -> tuple[PoolBench, PoolBench]:
    one = PoolBench(postgresql_database)
    one.put(three_queues())
    return one, PoolBench(postgresql_database)


def test_jobs_that_come_to_one_server_are_known_to_the_other(servers: tuple[PoolBench, PoolBench]) -> None:
    one, other = servers
    other.submit(Memory=1000)
    other.read(sync_events)
    job = one.submit(count=3, Memory=1000)
    assert other.read(sync_events) == 3
    assert other.state.waiting.count(job.task_queue_id) == 4


def test_ones_own_jobs_are_not_counted_again(servers: tuple[PoolBench, PoolBench]) -> None:
    one, _ = servers
    job = one.submit(count=3, Memory=1000)
    assert one.read(sync_events) == 0
    assert one.state.waiting.count(job.task_queue_id) == 3


def test_jobs_that_leave_on_one_server_are_gone_on_the_other(servers: tuple[PoolBench, PoolBench]) -> None:
    one, other = servers
    first = one.submit(count=2, Memory=1000)
    other.submit(Memory=1000)
    one.read(sync_events)
    other.read(sync_events)
    other.remove(one.job(first.id))
    one.read(sync_events)
    assert one.state.waiting.count(first.task_queue_id) == 2
    one.agree()


def test_who_waits_for_jobs_hears_of_those_that_came_to_another_server(servers: tuple[PoolBench, PoolBench]) -> None:
    one, other = servers
    one.submit(Memory=1000)
    other.submit(Memory=1000)
    told: list[int] = []
    other.state.waiting_listeners.append(lambda _queue, count: told.append(count))
    one.submit(count=5, Memory=1000)
    other.read(sync_events)
    other.read(sync_events)
    assert sum(told) >= 5


def test_a_job_of_a_task_queue_that_is_not_known_may_fit_any_queue(servers: tuple[PoolBench, PoolBench]) -> None:
    one, other = servers
    woken: list[str] = []
    other.state.access_listeners.append(lambda: woken.append("now"))
    job = one.submit(Memory=1000)
    other.read(sync_events)
    assert woken
    assert other.state.waiting.unknown() == {job.task_queue_id}


def test_a_server_that_starts_follows_from_there(servers: tuple[PoolBench, PoolBench]) -> None:
    one, _ = servers
    job = one.submit(count=3, Memory=1000)
    late = PoolBench(one.database)
    assert late.read(sync_events) == 0
    assert late.state.waiting.count(job.task_queue_id) == 3


def test_without_news_a_look_reads_neither_jobs_nor_pools(servers: tuple[PoolBench, PoolBench]) -> None:
    one, other = servers
    one.submit(Memory=1000)
    other.catch_up()
    other.read(sync_events)
    with statements(other.database) as seen:
        other.read(sync_events)
        other.read(sync_resources)
    assert seen
    assert not [statement for statement in seen if "jobs" in statement or "canonical" in statement]
