"""The background task for periodic policies, on a real database: when it evaluates them and what it costs."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from pilotage.job_description import JobPolicy
from pilotage.values.attempts import Outcome
from pilotage_server.background import PolicyTask
from pilotage_server.core.jobs.record import PolicyWatch
from pilotage_server.core.jobs.states import JobState
from pilotage_server.rpc.framework.transactions import Transactions
from pilotage_server.storage.database.engine import Database
from pilotage_server.storage.retention import first_watched, next_watched
from support.grid import Grid
from support.sql_statements import plan_of, statements
from support.virtual_clock import VirtualClock


class Boot:
    """A boot clock that is moved by hand."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class Bench:
    """A grid whose server has the policy task."""

    def __init__(self, database: Database, clock: VirtualClock) -> None:
        self.grid = Grid(database, clock)
        self.boot = Boot()
        self.task = PolicyTask(Transactions(database, self.grid.state), self.boot)
        self._clock = clock

    async def pass_time(self, seconds: float) -> None:
        """Advance both clocks and run the task."""
        self.boot.now_s += seconds
        self._clock.advance(timedelta(seconds=seconds))
        await self.run_task()

    async def run_task(self) -> None:
        async with asyncio.timeout(30):
            await self.task.run_once()

    def state(self, job_id: int) -> JobState:
        return self.grid.job(job_id).state


@pytest.fixture
def bench(sqlite_database: Database, clock: VirtualClock) -> Bench:
    return Bench(sqlite_database, clock)


async def test_policy_is_evaluated_at_submission(bench: Bench) -> None:
    await bench.run_task()
    (job_id,) = bench.grid.submit(policy=JobPolicy(periodic_hold='Owner == "alice"'))
    await bench.run_task()
    assert bench.state(job_id) is JobState.HELD


async def test_time_dependent_policy_is_evaluated_each_minute(bench: Bench) -> None:
    (job_id,) = bench.grid.submit(policy=JobPolicy(periodic_remove="time() - QDate >= 90"))
    await bench.run_task()
    await bench.pass_time(59)
    await bench.pass_time(41)
    assert bench.state(job_id) is JobState.REMOVED


async def test_starting_server_evaluates_policies_of_existing_jobs(
    bench: Bench, sqlite_database: Database, clock: VirtualClock
) -> None:
    (job_id,) = bench.grid.submit(policy=JobPolicy(periodic_remove="JobStatus == 1"))
    other = Bench(sqlite_database, clock)
    await other.run_task()
    assert other.state(job_id) is JobState.REMOVED


async def test_other_server_evaluates_missed_policies_within_an_hour(
    bench: Bench, sqlite_database: Database, clock: VirtualClock
) -> None:
    await bench.run_task()
    stopped = Bench(sqlite_database, clock)
    (job_id,) = stopped.grid.submit(policy=JobPolicy(periodic_remove="JobStatus == 1 && NumJobStarts > 0"))
    pilot = stopped.grid.start_pilot()
    match = pilot.take()
    pilot.start(match)
    pilot.report(match, Outcome.EVICTED)
    await bench.pass_time(3599)
    assert bench.state(job_id) is JobState.WAITING
    await bench.pass_time(61)
    assert bench.state(job_id) is JobState.REMOVED


async def test_policy_of_an_array_job_sees_its_own_attributes(bench: Bench) -> None:
    policy = JobPolicy(periodic_remove='Index == "index 1"')
    job_ids = bench.grid.submit(count=3, policy=policy, attributes={"Index": "index $(Process)"})
    await bench.run_task()
    assert [bench.state(job_id) for job_id in job_ids] == [JobState.WAITING, JobState.REMOVED, JobState.WAITING]


async def test_many_policies_are_evaluated_in_batches(bench: Bench) -> None:
    job_ids = bench.grid.submit(count=450, policy=JobPolicy(periodic_remove="time() > 0 && ProcId >= 440"))
    await bench.run_task()
    removed = [job.id for job in bench.grid.jobs(job_ids).values() if job.state is JobState.REMOVED]
    assert removed == job_ids[440:]


async def test_jobs_without_policies_cost_one_query_a_minute(bench: Bench, sqlite_database: Database) -> None:
    bench.grid.submit(count=1000)
    await bench.run_task()
    with statements(sqlite_database) as queries:
        for _ in range(59):
            await bench.pass_time(1)
        in_first_59_s = list(queries)
        await bench.pass_time(1)
    selects = [text for text in queries if text.startswith("SELECT")]
    assert in_first_59_s == []
    assert len(selects) == 1


def test_policy_batch_query_uses_the_index(sqlite_database: Database) -> None:
    plan = plan_of(
        sqlite_database,
        lambda transaction: next_watched(transaction.session, first_watched(PolicyWatch.EACH_MINUTE), 200),
    )
    assert "USING INDEX ix_jobs_watched" in plan
    assert "TEMP B-TREE" not in plan
