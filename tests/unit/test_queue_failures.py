"""Queues that are left alone after failures."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from pilotage.resource_tree import QueueId
from pilotage_agents.core.backoff import backoff
from pilotage_agents.core.queue_failures import QueueFailures

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
QUEUE, OTHER = QueueId("S", "ce", "a"), QueueId("S", "ce", "b")
FAILURES = QueueFailures(timedelta(seconds=2), timedelta(seconds=60))


def test_a_failure_pauses_its_queue_only_and_only_for_a_while() -> None:
    failures = FAILURES.failed(QUEUE, "no such program", NOON)
    assert "no such program" in failures.pause_of(QUEUE, NOON)
    assert failures.pause_of(QUEUE, NOON + timedelta(seconds=2)) == ""
    assert failures.pause_of(OTHER, NOON) == ""


def test_pauses_double_with_each_failure_in_a_row_up_to_the_longest() -> None:
    failures, now, pauses = FAILURES, NOON, []
    for _ in range(7):
        failures = failures.failed(QUEUE, "refused", now)
        until = failures.rows[QUEUE].until
        pauses.append((until - now).total_seconds())
        now = until
    assert pauses == [2, 4, 8, 16, 32, 60, 60]


def test_pilots_that_fail_together_count_as_one_failure() -> None:
    failures = FAILURES.failed(QUEUE, "first", NOON).failed(QUEUE, "second", NOON)
    assert failures.rows[QUEUE].failures == 1


def test_a_pilot_that_ends_well_ends_the_row() -> None:
    failures = FAILURES.failed(QUEUE, "refused", NOON).went_well(QUEUE)
    assert failures.pause_of(QUEUE, NOON) == ""
    assert failures == FAILURES


def test_a_backoff_of_any_number_of_failures_is_bounded() -> None:
    assert backoff(0, timedelta(seconds=1), timedelta(hours=1)) == timedelta(0)
    assert backoff(10_000, timedelta(seconds=1), timedelta(hours=1)) == timedelta(hours=1)
