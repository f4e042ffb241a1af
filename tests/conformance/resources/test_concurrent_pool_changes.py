"""Pools under concurrency: jobs are submitted while pools are removed and while the tree is redeclared."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from sqlalchemy import select, text

from pilotage import clock as real_time
from pilotage.clock import Clock
from pilotage.job_description import JobDescription, Value
from pilotage.resources.requirements import pool_id, read_requirements
from pilotage_server.core.jobs.descriptions import single_groups
from pilotage_server.core.jobs.states import JobCause
from pilotage_server.operations.attempts.transitions import apply_transition
from pilotage_server.operations.jobs.submission import submit_jobs
from pilotage_server.operations.queueing.rekeying import add_references
from pilotage_server.operations.resources.pools import clean_pools, plan_cleaning
from pilotage_server.operations.server_state import ServerState
from pilotage_server.storage.database.engine import Database
from pilotage_server.storage.database.tables import LIVE_JOB, metadata
from pilotage_server.storage.database.transaction import Transaction
from pilotage_server.storage.jobs import load_job
from pilotage_server.storage.submission.templates import load_description
from support.database import has_lock_waiter
from support.jobs import lease_to
from support.pool_bench import BIG, FAR, PoolBench, a_user, three_queues

JOBS = metadata.tables["jobs"]
TIMEOUT_S = 60


@pytest.fixture
def clock() -> Clock:
    """Return the real clock: concurrent transactions need different times."""
    return real_time.now


@pytest.fixture
def bench(database: Database) -> PoolBench:
    bench = PoolBench(database)
    bench.put(three_queues())
    return bench


class PausedOperation:
    """An operation that pauses before its commit until `resume`."""

    def __init__(self, operation: Callable[[Transaction, ServerState], object]) -> None:
        self._operation = operation
        self._done = threading.Event()
        self._resumed = threading.Event()

    def __call__(self, transaction: Transaction, state: ServerState) -> object:
        result = self._operation(transaction, state)
        self._done.set()
        assert self._resumed.wait(TIMEOUT_S)
        return result

    def wait(self) -> None:
        """Wait until the operation is done but for its commit."""
        assert self._done.wait(TIMEOUT_S)

    def resume(self) -> None:
        """Let the operation commit."""
        self._resumed.set()


def submit_job(transaction: Transaction, state: ServerState) -> int:
    job = JobDescription("run.sh", requirements={"Memory": 3000})
    return submit_jobs(transaction, state, a_user(), single_groups([job])).job_ids[0]


def clean_idle_pools(transaction: Transaction, state: ServerState) -> tuple[str, ...]:
    return clean_pools(transaction, state, timedelta(0), plan_cleaning(transaction, timedelta(0)))


def wait_until_blocked(bench: PoolBench, future: Future[Any]) -> None:
    """Wait until the transaction of `future` waits for another one; SQLite has only one at a time."""
    while bench.database.engine.dialect.name == "postgresql" and not bench.database.read(has_lock_waiter):
        assert not future.done()


def idle_pool(bench: PoolBench) -> str:
    job = bench.submit(Memory=3000)
    bench.remove(job)
    return job.pool_id


def assert_consistent(bench: PoolBench) -> None:
    """Check that every live job has its pool and task queue, and that memory agrees with the database."""
    query = select(JOBS.c.pool_id).where(text(LIVE_JOB)).distinct()
    live = set(bench.database.read(lambda transaction: transaction.session.execute(query).scalars().all()))
    assert live <= bench.stored().keys()
    task_queues = metadata.tables["task_queues"]
    orphans = select(JOBS.c.id).where(text(f"jobs.{LIVE_JOB}"), JOBS.c.task_queue_id.not_in(select(task_queues.c.id)))
    assert bench.database.read(lambda transaction: transaction.session.execute(orphans).all()) == []
    bench.check_consistency()


def test_cleanup_keeps_pool_of_uncommitted_job(bench: PoolBench) -> None:
    pool = idle_pool(bench)
    submission = PausedOperation(submit_job)
    with ThreadPoolExecutor(2) as threads:
        submitted = threads.submit(bench.write, submission)
        submission.wait()
        cleaned = threads.submit(bench.write, clean_idle_pools)
        if bench.database.engine.dialect.name == "postgresql":  # SQLite has one write transaction at a time
            assert cleaned.result(TIMEOUT_S) == ()
        submission.resume()
        submitted.result(TIMEOUT_S)
        assert cleaned.result(TIMEOUT_S) == ()
    assert bench.stored_queues(pool) == {BIG, FAR}
    assert_consistent(bench)


def test_submission_recreates_pool_of_uncommitted_cleanup(bench: PoolBench) -> None:
    pool = idle_pool(bench)
    cleanup = PausedOperation(clean_idle_pools)
    with ThreadPoolExecutor(2) as threads:
        cleaned = threads.submit(bench.write, cleanup)
        cleanup.wait()
        submitted = threads.submit(bench.write, submit_job)
        wait_until_blocked(bench, submitted)
        cleanup.resume()
        assert cleaned.result(TIMEOUT_S) == (pool,)
        submitted.result(TIMEOUT_S)
    assert bench.stored_queues(pool) == {BIG, FAR}
    assert bench.state.mappings.queues(pool) == {BIG, FAR}
    assert_consistent(bench)


def test_live_jobs_keep_pools_during_concurrent_cleanups(bench: PoolBench) -> None:
    def submit_and_remove(memory: int) -> None:
        for _ in range(10):
            job = bench.submit(Memory=memory)
            assert bench.state.mappings.queues(job.pool_id) == bench.stored_queues(job.pool_id) != frozenset()
            bench.remove(job)
        bench.submit(Memory=memory)

    def clean(_: int) -> None:
        for _ in range(20):
            bench.clean(hours=0)

    _run_together(*(lambda memory=memory: submit_and_remove(memory) for memory in (1000, 1000, 3000)), lambda: clean(0))
    assert_consistent(bench)


def test_jobs_submitted_during_redeclaration_get_pools_of_last_tree(bench: PoolBench) -> None:
    as_value = three_queues(parameters={"Memory": {"type": "value"}})
    as_capacity = three_queues()

    def submit() -> None:
        for _ in range(10):
            bench.submit(Memory="2000 MB")
            bench.submit(Memory=2000)

    def redeclare() -> None:
        for _ in range(4):
            bench.put(as_value)
            bench.put(as_capacity)
        bench.put(as_value)

    _run_together(submit, submit, redeclare)
    query = select(JOBS.c.template_id, JOBS.c.pool_id).where(text(LIVE_JOB))

    def check(transaction: Transaction) -> None:
        rows = transaction.session.execute(query).all()
        assert len(rows) == 40
        for template_id, pool in rows:
            section = load_description(transaction.session, template_id).requirements or {}
            assert pool == pool_id(read_requirements(section, "cms", as_value.tree.declarations))

    bench.database.read(check)
    assert_consistent(bench)


def test_rekeying_and_redeclaration_combine(bench: PoolBench) -> None:
    names = [f"a{number}" for number in range(12)]
    as_value = three_queues(parameters={"Memory": {"type": "value"}})
    as_capacity = three_queues()
    jobs = [_submit_with(bench, {name: "x"}) for name in names]

    def refer() -> None:
        for name in names:
            bench.write(partial(add_references, names=[name]))

    def redeclare() -> None:
        for _ in range(5):
            bench.put(as_value)
            bench.put(as_capacity)
        bench.put(as_value)

    _run_together(refer, redeclare)
    pool = pool_id(read_requirements({"Memory": 2000}, "cms", as_value.tree.declarations))
    for name, job_id in zip(names, jobs, strict=True):
        job = bench.job(job_id)
        task_queue = bench.state.waiting.task_queue(job.task_queue_id)
        assert job.pool_id == pool
        assert task_queue is not None
        assert (task_queue.traits.pool_id, task_queue.traits.value(name)) == (pool, "x")
    assert_consistent(bench)


def test_requeue_during_redeclaration_gets_new_pool_and_key(
    postgresql_database: Database,
) -> None:
    bench = PoolBench(postgresql_database)
    bench.put(three_queues())
    bench.write(lambda transaction, state: add_references(transaction, state, ["numjobstarts"]))
    job_id = _submit_with(bench, {})
    lease_to(bench.database, bench.state, job_id)
    as_value = three_queues(parameters={"Memory": {"type": "value"}})

    def requeue(transaction: Transaction, state: ServerState) -> None:
        job = load_job(transaction.session, job_id)
        bench.put(as_value)  # in a transaction of its own
        apply_transition(transaction, state, job, JobCause.EVICTED, reason="", actor="pilot:p1")

    bench.write(requeue)
    pool = pool_id(read_requirements({"Memory": 2000}, "cms", as_value.tree.declarations))
    job = bench.job(job_id)
    task_queue = bench.state.waiting.task_queue(job.task_queue_id)
    assert task_queue is not None
    assert (job.pool_id, task_queue.pool_id, task_queue.traits.value("NumJobStarts")) == (pool, pool, 1)
    assert_consistent(bench)


def _submit_with(bench: PoolBench, attributes: dict[str, Value]) -> int:
    job = JobDescription("run.sh", requirements={"Memory": 2000}, attributes=attributes)
    return bench.write(
        lambda transaction, state: submit_jobs(transaction, state, a_user(), single_groups([job]))
    ).job_ids[0]


def _run_together(*functions: Callable[[], None]) -> None:
    start = threading.Barrier(len(functions))

    def run(function: Callable[[], None]) -> None:
        start.wait(TIMEOUT_S)
        function()

    with ThreadPoolExecutor(len(functions)) as threads:
        futures: list[Future[None]] = [threads.submit(run, function) for function in functions]
        for future in futures:
            future.result(TIMEOUT_S)
