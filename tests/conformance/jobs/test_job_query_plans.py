"""The questions about jobs that must not cost more when there are more jobs: each has an index that serves it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from pilotage_server.core.jobs.record import PolicyWatch
from pilotage_server.core.jobs.states import JobCause
from pilotage_server.core.races.races import RaceSet
from pilotage_server.storage import leases, races, task_queues
from pilotage_server.storage.attempts import load_taken, next_taken, next_unreported
from pilotage_server.storage.database.engine import Database
from pilotage_server.storage.database.transaction import Transaction
from pilotage_server.storage.events import events_of, last_attempts_at
from pilotage_server.storage.jobs import JobQuery, find_jobs
from pilotage_server.storage.leases import extend_all, lock_expired, running_by_pool
from pilotage_server.storage.pools import load_job_groups, pools_with_live_jobs
from pilotage_server.storage.retention import delete_ended_jobs, first_watched, next_watched
from support.statements import plan_of

EACH_MINUTE = first_watched(PolicyWatch.EACH_MINUTE)


def a_set(jobs: int) -> RaceSet:
    """Return a set of so many jobs that may be repeated."""
    return RaceSet(1, jobs, jobs, False)


QUESTIONS: tuple[tuple[str, str, Callable[[Transaction], object]], ...] = (
    (
        "what waits first",
        "ix_jobs_waiting",
        lambda transaction: task_queues.load_first_waiting(transaction.session, 1, 10),
    ),
    (
        "whose lease is over",
        "ix_jobs_timed",
        lambda transaction: lock_expired(transaction.session, transaction.now, 10),
    ),
    (
        "what lingers no more",
        "ix_jobs_timed",
        lambda transaction: leases.lock_expired_fences(transaction.session, transaction.now, 10),
    ),
    ("all leases", "ix_jobs_timed", lambda transaction: extend_all(transaction.session, timedelta(hours=1))),
    ("what runs in pools", "ix_jobs_timed", lambda transaction: running_by_pool(transaction.session)),
    (
        "what lingers at a pilot",
        "ix_attempts_taken",
        lambda transaction: leases.lock_fences_of_pilots(transaction.session, ["p"]),
    ),
    (
        "what was taken from pilots",
        "ix_attempts_taken",
        lambda transaction: load_taken(transaction.session, ["p"], transaction.now),
    ),
    (
        "what a router is to stop",
        "ix_attempts_taken",
        lambda transaction: next_taken(transaction.session, "route:r", (0, 0), 10),
    ),
    (
        "what a router has",
        "ix_attempts_unreported",
        lambda transaction: next_unreported(transaction.session, "route:r", (0, 0), 10),
    ),
    ("which pools live", "ix_jobs_live", lambda transaction: pools_with_live_jobs(transaction.session, ["p"])),
    ("what pools hold", "ix_jobs_live", lambda transaction: load_job_groups(transaction.session, ["a", "b"])),
    (
        "which task queues live",
        "ix_jobs_live",
        lambda transaction: task_queues.load_live_task_queues(transaction.session),
    ),
    (
        "which are idle",
        "ix_jobs_live",
        lambda transaction: task_queues.delete_idle(transaction.session, transaction.now, 10),
    ),
    ("templates of a task queue", "ix_jobs_live", lambda transaction: task_queues.templates_of(transaction.session, 1)),
    (
        "whose policies to look at",
        "ix_jobs_watched",
        lambda transaction: next_watched(transaction.session, EACH_MINUTE, 10),
    ),
    (
        "what an owner has",
        "ix_jobs_owner_id",
        lambda transaction: find_jobs(transaction.session, JobQuery(owner="a"), 0, 10),
    ),
    ("who races", "ix_jobs_race", lambda transaction: races.lock_racers(transaction.session, [1])),
    (
        "what of sets lives",
        "ix_jobs_race_set",
        lambda transaction: races.live_jobs(transaction.session, [a_set(9), a_set(8)]),
    ),
    (
        "what of a large set lives",
        "ix_jobs_race_set",
        lambda transaction: races.live_jobs(transaction.session, [a_set(10**6)]),
    ),
    (
        "what comes after",
        "ix_jobs_race_set",
        lambda transaction: races.live_jobs_after(transaction.session, a_set(10**6), 7),
    ),
    ("which races go on", "ix_races_ended", lambda transaction: races.load_all_open(transaction.session)),
    (
        "what races cost of late",
        "ix_races_ended",
        lambda transaction: races.sum_losses_since(transaction.session, transaction.now),
    ),
    (
        "what ended long ago",
        "ix_jobs_ended",
        lambda transaction: delete_ended_jobs(transaction.session, transaction.now, 10),
    ),
    ("what happened to a job", "ix_job_events_job_id", lambda transaction: events_of(transaction.session, 1)),
    (
        "who began anew",
        "ix_job_events_job_id",
        lambda transaction: last_attempts_at(transaction.session, [1], [JobCause.EDITED]),
    ),
)


@pytest.mark.parametrize(("index", "ask"), [one[1:] for one in QUESTIONS], ids=[one[0] for one in QUESTIONS])
def test_an_index_serves(database: Database, index: str, ask: Callable[[Transaction], object]) -> None:
    assert index in plan_of(database, ask)


IN_ORDER = (
    lambda transaction: next_taken(transaction.session, "route:r", (4, 1), 10),
    lambda transaction: next_unreported(transaction.session, "route:r", (4, 1), 10),
)


@pytest.mark.parametrize("ask", IN_ORDER, ids=["what a router is to stop", "what a router has"])
def test_the_next_of_many_copies_are_found_without_sorting_all(
    database: Database, ask: Callable[[Transaction], object]
) -> None:
    plan = plan_of(database, ask)
    assert "Sort" not in plan
    assert "TEMP B-TREE" not in plan
    assert "(job_id,attempt)>(?,?)" in plan or "ROW(job_id, attempt) > ROW(" in plan.split("Index Cond:")[-1]
