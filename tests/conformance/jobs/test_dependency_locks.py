"""Locks of jobs while events of parents are examined and pilots report: one order for all, on PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import cycle
from threading import Event

import pytest

from pilotage.errors import WorldError
from pilotage.values.attempts import Outcome
from pilotage.values.dependencies import Dependency, DependencyKind
from pilotage_server.core.attempts.reports import JobReport
from pilotage_server.core.jobs.states import JobState
from pilotage_server.operations.attempts.reports import record_reports
from pilotage_server.operations.jobs.dependencies import advance
from pilotage_server.storage.database import engine
from pilotage_server.storage.database.engine import Database
from pilotage_server.storage.database.transaction import Transaction
from support.database import has_lock_waiter, run_against_row_locks
from support.dependent_jobs import DependentJobs
from support.virtual_clock import VirtualClock

AFTER_ANY, AFTER_SETTLED = DependencyKind.AFTER_ANY, DependencyKind.AFTER_SETTLED
LOCK = "SELECT id FROM jobs WHERE id = :key FOR UPDATE NOWAIT"
BLOCKED, WAITING = JobState.BLOCKED, JobState.WAITING


@pytest.fixture
def jobs(postgresql_database: Database, clock: VirtualClock) -> DependentJobs:
    return DependentJobs(postgresql_database, clock)


def after(child: int, kind: DependencyKind, first: int, last: int) -> Dependency:
    """Let a description wait for a range of others."""
    return Dependency(child, kind, ranges=((first, last),))


def end(jobs: DependentJobs, transaction: Transaction, job_ids: Sequence[int]) -> None:
    """Report the ends of running jobs in one transaction."""
    reports = [JobReport(job_id, 1, outcome=Outcome.EXITED, exit_code=0) for job_id in job_ids]
    record_reports(transaction, jobs.grid.state, [(jobs.pilot.identity, reports)])


def test_parents_of_all_sources_are_locked_in_one_order(jobs: DependentJobs) -> None:
    """The source that is examined last has to watch the job with the lowest id."""
    ids = jobs.submit(after(4, AFTER_ANY, 2, 3), after(5, AFTER_SETTLED, 0, 1), count=6)
    jobs.run(*ids[:4], exit_code=None)
    jobs.grid.database.write(lambda transaction: end(jobs, transaction, [ids[1], ids[3]]))
    run_against_row_locks(
        jobs.grid.database, LOCK, [ids[0], ids[2]], lambda transaction: advance(transaction, jobs.grid.state)
    )
    assert jobs.states(*ids[4:]) == [BLOCKED, BLOCKED]
    jobs.finish(ids[0])
    assert jobs.states(*ids[4:]) == [BLOCKED, WAITING]
    jobs.finish(ids[2])
    assert jobs.states(*ids[4:]) == [WAITING, WAITING]
    assert jobs.rows() == {}


def test_free_jobs_and_parents_are_locked_in_one_order(jobs: DependentJobs) -> None:
    free, parent, *nodes, last = jobs.submit(after(0, AFTER_ANY, 1, 1), after(4, AFTER_ANY, 2, 3), count=5)
    jobs.run(parent, *nodes, exit_code=None)
    database = jobs.grid.database
    database.write(lambda transaction: end(jobs, transaction, [parent]))
    assert jobs.grid.write(advance)
    database.write(lambda transaction: end(jobs, transaction, [nodes[1]]))
    run_against_row_locks(database, LOCK, [free, nodes[0]], lambda transaction: advance(transaction, jobs.grid.state))
    assert jobs.states(free, last) == [WAITING, BLOCKED]


def test_source_whose_next_parent_ends_meanwhile_is_examined_again(jobs: DependentJobs) -> None:
    *nodes, child = jobs.submit(after(3, AFTER_ANY, 0, 2), count=4)
    jobs.run(*nodes, exit_code=None)
    database, has_ended, go_on = jobs.grid.database, Event(), Event()
    database.write(lambda transaction: end(jobs, transaction, [nodes[2]]))

    def end_next(transaction: Transaction) -> None:
        end(jobs, transaction, [nodes[1]])
        has_ended.set()
        assert go_on.wait(timeout=30)

    ending = database.submit_write(end_next)
    assert has_ended.wait(timeout=30)
    advancing = database.submit_write(lambda transaction: advance(transaction, jobs.grid.state))
    while not database.read(has_lock_waiter):
        assert not advancing.done()
    go_on.set()
    ending.result(timeout=30)
    assert advancing.result(timeout=30), "more is to be done"
    jobs.grid.advance()
    assert jobs.states(child) == [BLOCKED]
    jobs.finish(nodes[0])
    assert jobs.states(child) == [WAITING]


def test_reports_and_examinations_never_wait_in_a_circle(jobs: DependentJobs, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes, children = 48, 24
    kinds = cycle([AFTER_ANY, AFTER_SETTLED])
    dependencies = [after(nodes + child, next(kinds), child, nodes - 1 - child) for child in range(children)]
    ids = jobs.submit(*dependencies, count=nodes + children)
    jobs.run(*ids[:nodes], exit_code=None)
    conflicts: list[WorldError] = []
    is_retryable = engine._is_retryable

    def counted(error: WorldError) -> bool:
        conflicts.append(error)
        return is_retryable(error)

    monkeypatch.setattr(engine, "_is_retryable", counted)
    database = jobs.grid.database

    def report_ends() -> None:
        for low in range(0, nodes // 2, 2):  # two low ids and two high ones at a time
            ended = *ids[low : low + 2], *ids[nodes - low - 2 : nodes - low]
            database.write(partial(end, jobs, job_ids=ended))

    with ThreadPoolExecutor(2) as threads:
        reporting = threads.submit(report_ends)
        while not reporting.done():
            jobs.grid.advance()
        reporting.result()
    jobs.grid.advance()
    assert set(jobs.states(*ids[nodes:])) == {WAITING}
    assert conflicts == []
    assert jobs.rows() == {}
