"""The duty that looks after policies, over a real database: what it looks at, and how much it takes for that."""

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
from support.statements import plan_of, statements
from support.virtual_clock import VirtualClock


class Boot:
    """A boot clock that is moved by hand."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class Bench:
    """A grid whose server has the duty."""

    def __init__(self, database: Database, clock: VirtualClock) -> None:
        self.grid = Grid(database, clock)
        self.boot = Boot()
        self.duty = PolicyTask(Transactions(database, self.grid.state), self.boot)
        self._clock = clock

    async def pass_time(self, seconds: float) -> None:
        """Let time pass on both clocks, and the duty have its turn."""
        self.boot.now_s += seconds
        self._clock.advance(timedelta(seconds=seconds))
        await self.look()

    async def look(self) -> None:
        async with asyncio.timeout(30):
            await self.duty.run_once()

    def state(self, job_id: int) -> JobState:
        return self.grid.job(job_id).state


@pytest.fixture
def bench(sqlite_database: Database, clock: VirtualClock) -> Bench:
    return Bench(sqlite_database, clock)


async def test_a_job_is_looked_at_when_it_comes_in(bench: Bench) -> None:
    await bench.look()
    (job_id,) = bench.grid.submit(policy=JobPolicy(periodic_hold='Owner == "alice"'))
    await bench.look()
    assert bench.state(job_id) is JobState.HELD


async def test_a_job_whose_policy_depends_on_time_is_looked_at_each_minute(bench: Bench) -> None:
    (job_id,) = bench.grid.submit(policy=JobPolicy(periodic_remove="time() - QDate >= 90"))
    await bench.look()
    await bench.pass_time(59)
    await bench.pass_time(41)
    assert bench.state(job_id) is JobState.REMOVED


async def test_a_server_that_starts_looks_at_what_another_left_behind(
    bench: Bench, sqlite_database: Database, clock: VirtualClock
) -> None:
    (job_id,) = bench.grid.submit(policy=JobPolicy(periodic_remove="JobStatus == 1"))
    other = Bench(sqlite_database, clock)
    await other.look()
    assert other.state(job_id) is JobState.REMOVED


async def test_what_a_server_that_is_gone_should_have_looked_at_is_looked_at_by_another_within_the_hour(
    bench: Bench, sqlite_database: Database, clock: VirtualClock
) -> None:
    await bench.look()
    gone = Bench(sqlite_database, clock)
    (job_id,) = gone.grid.submit(policy=JobPolicy(periodic_remove="JobStatus == 1 && NumJobStarts > 0"))
    pilot = gone.grid.start_pilot()
    match = pilot.take()
    pilot.start(match)
    pilot.report(match, Outcome.EVICTED)
    await bench.pass_time(3599)
    assert bench.state(job_id) is JobState.WAITING
    await bench.pass_time(61)
    assert bench.state(job_id) is JobState.REMOVED


async def test_jobs_of_an_array_are_told_apart_by_their_own_texts(bench: Bench) -> None:
    policy = JobPolicy(periodic_remove='Index == "index 1"')
    ids = bench.grid.submit(count=3, policy=policy, attributes={"Index": "index $(Process)"})
    await bench.look()
    assert [bench.state(job_id) for job_id in ids] == [JobState.WAITING, JobState.REMOVED, JobState.WAITING]


async def test_many_jobs_are_looked_at_in_many_pieces(bench: Bench) -> None:
    ids = bench.grid.submit(count=450, policy=JobPolicy(periodic_remove="time() > 0 && ProcId >= 440"))
    await bench.look()
    removed = [job.id for job in bench.grid.jobs(ids).values() if job.state is JobState.REMOVED]
    assert removed == ids[440:]


async def test_jobs_without_policies_cost_one_question_a_minute(bench: Bench, sqlite_database: Database) -> None:
    bench.grid.submit(count=1000)
    await bench.look()
    with statements(sqlite_database) as seen:
        for _ in range(59):
            await bench.pass_time(1)
        asked_early = list(seen)
        await bench.pass_time(1)
    asked = [text for text in seen if text.startswith("SELECT")]
    assert asked_early == []
    assert len(asked) == 1


def test_a_round_reads_the_index_of_watched_jobs_alone(sqlite_database: Database) -> None:
    plan = plan_of(
        sqlite_database,
        lambda transaction: next_watched(transaction.session, first_watched(PolicyWatch.EACH_MINUTE), 200),
    )
    assert "USING INDEX ix_jobs_watched" in plan
    assert "TEMP B-TREE" not in plan
