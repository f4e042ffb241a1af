"""Pauses of queues after failed submissions and pilots."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from pilotage.resources.tree import QueueId
from pilotage_agents.site_director.queues import QueueFailures

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
QUEUE, OTHER = QueueId("S", "ce", "a"), QueueId("S", "ce", "b")
FAILURES = QueueFailures(timedelta(seconds=2), timedelta(seconds=60))


def test_failure_pauses_only_its_queue_for_a_while() -> None:
    failures = FAILURES.with_failure(QUEUE, "no such program", NOON)
    assert "no such program" in failures.pause_reason(QUEUE, NOON)
    assert failures.pause_reason(QUEUE, NOON + timedelta(seconds=2)) == ""
    assert failures.pause_reason(OTHER, NOON) == ""


def test_pause_doubles_with_successive_failures_up_to_a_bound() -> None:
    failures, now, pauses = FAILURES, NOON, []
    for _ in range(7):
        failures = failures.with_failure(QUEUE, "refused", now)
        until = failures.streaks[QUEUE].until
        pauses.append((until - now).total_seconds())
        now = until
    assert pauses == [2, 4, 8, 16, 32, 60, 60]


def test_simultaneous_failures_count_once() -> None:
    failures = FAILURES.with_failure(QUEUE, "first", NOON).with_failure(QUEUE, "second", NOON)
    assert failures.streaks[QUEUE].failures == 1


def test_success_resets_failures() -> None:
    failures = FAILURES.with_failure(QUEUE, "refused", NOON).with_success(QUEUE)
    assert failures.pause_reason(QUEUE, NOON) == ""
    assert failures == FAILURES
