"""Query plans: each frequent query about jobs uses an index."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from pilotage.notifications import ALL_OCCASIONS, NewSubscription, RecipientKind
from pilotage_server.core.jobs.conditions import JobQuery
from pilotage_server.core.jobs.notifications import Subscription
from pilotage_server.core.jobs.record import PolicyWatch
from pilotage_server.core.jobs.states import LIVE, JobCause, JobState
from pilotage_server.core.races.races import RaceSet
from pilotage_server.storage import leases, races, task_queues
from pilotage_server.storage.attempts import load_taken, next_taken, next_unreported
from pilotage_server.storage.database.engine import Database
from pilotage_server.storage.database.transaction import Transaction
from pilotage_server.storage.events import events_of, feed_bounds, last_attempts_at
from pilotage_server.storage.leases import extend_all, lock_expired, running_by_pool
from pilotage_server.storage.notifications.outbox import has_due_notifications, waiting_notifications
from pilotage_server.storage.notifications.subscriptions import (
    count_open,
    delete_closed_subscriptions,
    find_subscriptions,
    has_moving_job,
)
from pilotage_server.storage.pools import load_job_groups, pools_with_live_jobs
from pilotage_server.storage.queries.selection import FoundPage, JobFinder
from pilotage_server.storage.retention import delete_ended_jobs, first_watched, next_watched
from pilotage_server.storage.submission.templates import load_descriptions
from support.sql_statements import plan_of

EACH_MINUTE = first_watched(PolicyWatch.EACH_MINUTE)


def race_set(jobs: int) -> RaceSet:
    """Return a race set of this many jobs."""
    return RaceSet(1, jobs, jobs, False)


def a_subscription(transaction: Transaction) -> Subscription:
    """Return a subscription for a million jobs."""
    wanted = NewSubscription(RecipientKind.COMMAND)
    return Subscription(1, "sky", "alice", 1, 10**6, wanted, transaction.now, 0, ALL_OCCASIONS)


FAILED, RUNNING, HELD = (frozenset({state}) for state in (JobState.FAILED, JobState.RUNNING, JobState.HELD))


def selected(transaction: Transaction, **query: Any) -> FoundPage:
    """Return a page of the jobs of a query; its first statement counts the entries of a small index, if one is used."""
    return JobFinder(transaction.session, JobQuery(**query)).next(9, 10)


QUERIES: tuple[tuple[str, str, Callable[[Transaction], object]], ...] = (
    (
        "first waiting jobs",
        "ix_jobs_waiting",
        lambda transaction: task_queues.load_first_waiting(transaction.session, 1, 10),
    ),
    (
        "expired leases",
        "ix_jobs_timed",
        lambda transaction: lock_expired(transaction.session, transaction.now, 10),
    ),
    (
        "expired fences",
        "ix_jobs_timed",
        lambda transaction: leases.lock_expired_fences(transaction.session, transaction.now, 10),
    ),
    ("all leases", "ix_jobs_timed", lambda transaction: extend_all(transaction.session, timedelta(hours=1))),
    ("running jobs by pool", "ix_jobs_timed", lambda transaction: running_by_pool(transaction.session)),
    (
        "fences of a pilot",
        "ix_attempts_taken",
        lambda transaction: leases.lock_fences_of_pilots(transaction.session, ["p"]),
    ),
    (
        "attempts taken from pilots",
        "ix_attempts_taken",
        lambda transaction: load_taken(transaction.session, ["p"], transaction.now),
    ),
    (
        "attempts taken from a router",
        "ix_attempts_taken",
        lambda transaction: next_taken(transaction.session, "route:r", (0, 0), 10),
    ),
    (
        "unreported attempts of a router",
        "ix_attempts_unreported",
        lambda transaction: next_unreported(transaction.session, "route:r", (0, 0), 10),
    ),
    ("pools with live jobs", "ix_jobs_live", lambda transaction: pools_with_live_jobs(transaction.session, ["p"])),
    ("jobs of pools", "ix_jobs_live", lambda transaction: load_job_groups(transaction.session, ["a", "b"])),
    (
        "live task queues",
        "ix_jobs_live",
        lambda transaction: task_queues.load_live_task_queues(transaction.session),
    ),
    (
        "idle task queues",
        "ix_jobs_live",
        lambda transaction: task_queues.delete_idle(transaction.session, transaction.now, 10),
    ),
    (
        "descriptions",
        "templates USING INTEGER PRIMARY KEY|pk_templates",
        lambda transaction: load_descriptions(transaction.session, [1, 2]),
    ),
    (
        "waiting jobs of task queues",
        "ix_jobs_waiting",
        lambda transaction: task_queues.count_waiting(transaction.session, [1, 2]),
    ),
    ("templates of a task queue", "ix_jobs_live", lambda transaction: task_queues.templates_of(transaction.session, 1)),
    (
        "jobs with policies due",
        "ix_jobs_watched",
        lambda transaction: next_watched(transaction.session, EACH_MINUTE, 10),
    ),
    ("jobs of an owner", "ix_jobs_owner_id", lambda transaction: selected(transaction, owner="a")),
    (
        "live jobs of an owner",
        "ix_jobs_live_owner|ix_jobs_owner_id",
        lambda transaction: selected(transaction, states=LIVE, owner="a", vo="v"),
    ),
    (
        "newest jobs of an owner",
        "ix_jobs_owner_id",
        lambda transaction: selected(transaction, owner="a", newest_first=True),
    ),
    (
        "number of jobs that failed since a time",
        "ix_jobs_ended",
        lambda transaction: selected(transaction, states=FAILED, since=transaction.now),
    ),
    ("number of leased jobs", "ix_jobs_timed", lambda transaction: selected(transaction, states=RUNNING, site="S")),
    ("number of held jobs of a site", "ix_jobs_held", lambda transaction: selected(transaction, states=HELD, site="S")),
    ("racing jobs", "ix_jobs_race", lambda transaction: races.lock_racers(transaction.session, [1])),
    (
        "live jobs of race sets",
        "ix_jobs_race_set",
        lambda transaction: races.live_jobs(transaction.session, [race_set(9), race_set(8)]),
    ),
    (
        "live jobs of a large race set",
        "ix_jobs_race_set",
        lambda transaction: races.live_jobs(transaction.session, [race_set(10**6)]),
    ),
    (
        "next live jobs of a race set",
        "ix_jobs_race_set",
        lambda transaction: races.live_jobs_after(transaction.session, race_set(10**6), 7),
    ),
    ("open races", "ix_races_ended", lambda transaction: races.load_all_open(transaction.session)),
    (
        "recent losses of races",
        "ix_races_ended",
        lambda transaction: races.sum_losses_since(transaction.session, transaction.now),
    ),
    (
        "old finished jobs",
        "ix_jobs_ended",
        lambda transaction: delete_ended_jobs(transaction.session, transaction.now, 10),
    ),
    (
        "positions of the event feed",
        "SEARCH job_events|pk_job_events",
        lambda transaction: feed_bounds(transaction.session),
    ),
    (
        "live job of a subscription",
        "ix_jobs_live_owner|ix_jobs_owner_id",
        lambda transaction: has_moving_job(transaction.session, a_subscription(transaction)),
    ),
    (
        "whether notifications are due",
        "ix_notifications_due",
        lambda transaction: has_due_notifications(transaction.session, transaction.now, ()),
    ),
    (
        "due notifications",
        "ix_notifications_due",
        lambda transaction: waiting_notifications(transaction.session, transaction.now, ()),
    ),
    (
        "subscriptions of an owner",
        "ix_subscriptions_owner",
        lambda transaction: find_subscriptions(transaction.session, "sky", "alice", (), 10),
    ),
    (
        "open subscriptions of an owner",
        "ix_subscriptions_open",
        lambda transaction: count_open(transaction.session, "sky", "alice"),
    ),
    (
        "closed subscriptions",
        "ix_subscriptions_closed",
        lambda transaction: delete_closed_subscriptions(transaction.session, transaction.now, 10),
    ),
    ("events of a job", "ix_job_events_job_id", lambda transaction: events_of(transaction.session, 1)),
    (
        "last attempts before an edit",
        "ix_job_events_job_id",
        lambda transaction: last_attempts_at(transaction.session, [1], [JobCause.EDITED]),
    ),
)


@pytest.mark.parametrize(("indexes", "query"), [row[1:] for row in QUERIES], ids=[row[0] for row in QUERIES])
def test_query_uses_its_index(database: Database, indexes: str, query: Callable[[Transaction], object]) -> None:
    """PostgreSQL chooses by its statistics between indexes that suit a query equally, separated by a bar."""
    plan = plan_of(database, query)
    assert any(index in plan for index in indexes.split("|")), plan


ORDERED_QUERIES = (
    lambda transaction: next_taken(transaction.session, "route:r", (4, 1), 10),
    lambda transaction: next_unreported(transaction.session, "route:r", (4, 1), 10),
)


@pytest.mark.parametrize(
    "query", ORDERED_QUERIES, ids=["attempts taken from a router", "unreported attempts of a router"]
)
def test_next_routed_jobs_are_found_without_sorting(database: Database, query: Callable[[Transaction], object]) -> None:
    plan = plan_of(database, query)
    assert "Sort" not in plan
    assert "TEMP B-TREE" not in plan
    assert "(job_id,attempt)>(?,?)" in plan or "ROW(job_id, attempt) > ROW(" in plan.split("Index Cond:")[-1]
