"""Evidence about nodes from attempts that ended or still run."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from pilotage.values.attempts import Outcome
from pilotage_server.core.health.evidence import AttemptGroup, RunningFilter
from pilotage_server.core.jobs.states import JobState
from pilotage_server.core.rules import Rules
from pilotage_server.operations.health import HealthWatch
from pilotage_server.storage.attempts import has_failures, load_ended, mark_trials
from pilotage_server.storage.database.engine import Database
from pilotage_server.storage.database.transaction import Transaction
from pilotage_server.storage.events import feed_bounds
from support.grid import FAST, Grid, a_pilot, evidence_of_running, grid, review_health
from support.races import SITES, B, PilotedJob, start_race
from support.sql_statements import statements
from support.virtual_clock import VirtualClock

__all__ = ["grid"]

pytestmark = pytest.mark.any_database


def ended(grid: Grid, after: int = 0) -> list[tuple[str, bool, int]]:
    def read(transaction: Transaction) -> list[AttemptGroup]:
        _, newest = feed_bounds(transaction.session)
        found = load_ended(transaction.session, after, newest, FAST)
        assert has_failures(transaction.session, after, newest) or not any(group.failed for group in found)
        return found

    return sorted((group.key.node, group.failed, group.number) for group in grid.database.read(read))


def test_equal_outcomes_at_a_node_are_counted_together(grid: Grid) -> None:
    pilot, other = a_pilot(grid), a_pilot(grid, "n2")
    for _ in range(2):
        pilot.report(pilot.take(), Outcome.EXITED, exit_code=1, wall_s=3)
    pilot.report(pilot.take(), Outcome.START_FAILED, reason="no space left")
    pilot.report(pilot.take(), Outcome.EXITED, exit_code=0, wall_s=3)
    other.report(other.take(), Outcome.EXITED, exit_code=1, wall_s=61)
    assert ended(grid) == [("n1", False, 1), ("n1", True, 3), ("n2", False, 1)]


def test_evicted_declined_and_lost_attempts_are_no_evidence(grid: Grid) -> None:
    pilot = a_pilot(grid)
    pilot.report(pilot.take(), Outcome.EVICTED, reason="its owner came back")
    pilot.report(pilot.take(), Outcome.DECLINED, reason="START has changed")
    match = pilot.take()
    pilot.start(match)
    grid.glidein_ended(pilot)
    assert ended(grid) == []


def test_plugged_payload_counts_as_one_failure(grid: Grid, clock: VirtualClock) -> None:
    pilot = a_pilot(grid)
    match = pilot.take()
    pilot.start(match)
    failed: dict[str, Any] = {"exit_code": 1, "wall_s": 3}
    pilot.report(match, state=JobState.RUNNING, plugged=True, **failed)
    pilot.report(match, state=JobState.RUNNING, plugged=True, **failed)
    job = grid.job(match.job_id)
    assert (job.state, job.reason) == (JobState.RUNNING, "exit code 1 after 3 s: its slot is kept for a while")
    assert ended(grid) == [("n1", True, 1)]
    clock.advance(minutes=5)
    assert evidence_of_running(grid) == []
    pilot.report(match, Outcome.EXITED, **failed)
    job = grid.job(match.job_id)
    assert (job.state, job.reason, job.wall_clock) == (JobState.FAILED, "exit code 1", timedelta(seconds=3))
    assert ended(grid) == [("n1", True, 1)]


def test_failed_race_copy_counts_once(database: Database, clock: VirtualClock) -> None:
    grid = Grid(database, clock, *SITES)
    original, _ = start_race(grid)
    copy = PilotedJob(grid, B)
    original.finish(exit_code=3, wall_s=2)
    assert ended(grid) == [("", True, 1)]
    copy.finish(exit_code=4, wall_s=100)
    assert original.job.state is JobState.FAILED
    assert ended(grid) == [("", False, 1), ("", True, 1)]


def test_lost_output_is_no_evidence(grid: Grid) -> None:
    pilot = a_pilot(grid)
    match = pilot.take()
    pilot.report(match, Outcome.OUTPUT_LOST, reason="it could not be stored: the server's disk is full", wall_s=3)
    assert grid.history(match.job_id) == [(1, "output lost")]
    assert grid.job(match.job_id).state is JobState.WAITING
    assert ended(grid) == []


def test_failed_start_of_last_attempt_is_a_failure(database: Database, clock: VirtualClock) -> None:
    grid = Grid(database, clock, rules=Rules(attempt_limit=1))
    (job,) = grid.submit()
    pilot = a_pilot(grid)
    pilot.report(pilot.take(), Outcome.START_FAILED, reason="no space left")
    assert grid.job(job).state is JobState.FAILED
    assert ended(grid) == [("n1", True, 1)]


def test_death_by_signal_is_a_failure(grid: Grid) -> None:
    pilot = a_pilot(grid)
    pilot.report(pilot.take(), Outcome.EXITED, signal=11, wall_s=0.1)
    assert ended(grid) == [("n1", True, 1)]


def test_job_counts_as_lasting_after_minimum_time(grid: Grid, clock: VirtualClock) -> None:
    pilot = a_pilot(grid)
    pilot.start(pilot.take())
    clock.advance(seconds=59)
    (young,) = evidence_of_running(grid)
    assert (young.key.node, young.longest, young.lasted) == ("n1", timedelta(seconds=59), None)
    clock.advance(seconds=1)
    (old,) = evidence_of_running(grid)
    assert old.lasted == AttemptGroup(old.key, False, 1, clock() - FAST, FAST)


def test_running_attempts_are_filtered_but_probes_always_count(grid: Grid, clock: VirtualClock) -> None:
    pilot = a_pilot(grid)
    match = pilot.take()
    pilot.start(match)
    clock.advance(minutes=1)
    no_match = RunningFilter(sites=frozenset({"LYON"}), owners=frozenset({"nobody"}))
    assert evidence_of_running(grid, no_match) == []
    owner = grid.job(match.job_id).owner
    assert [
        group.key.account.owner for group in evidence_of_running(grid, RunningFilter(owners=frozenset({owner})))
    ] == [owner]
    grid.database.write(lambda transaction: mark_trials(transaction.session, [(match.job_id, match.attempt)]))
    (trial,) = evidence_of_running(grid, no_match)
    assert trial.lasted is not None
    assert trial.lasted.trial


def test_running_attempts_are_read_only_after_enough_failures(grid: Grid) -> None:
    pilot, watch = a_pilot(grid), HealthWatch()
    review_health(grid, watch)
    read_running: list[bool] = []
    for _ in range(6):
        pilot.report(pilot.take(), Outcome.EXITED, exit_code=1, wall_s=1)
        with statements(grid.database) as executed:
            review_health(grid, watch)
        read_running.append(any("AS running" in statement for statement in executed))
    assert read_running == [False] * 5 + [True]


def test_slow_node_clock_does_not_age_jobs(grid: Grid, clock: VirtualClock) -> None:
    pilot = a_pilot(grid)
    match = pilot.take()
    pilot.report(match, state=JobState.RUNNING, started=clock() - timedelta(minutes=4))
    assert evidence_of_running(grid) == []
    clock.advance(minutes=2)
    (group,) = evidence_of_running(grid)
    assert group.longest == timedelta(minutes=2)


def test_running_group_has_oldest_and_number_of_lasting_attempts(grid: Grid, clock: VirtualClock) -> None:
    for pilot in (a_pilot(grid), a_pilot(grid), a_pilot(grid)):
        pilot.start(pilot.take())
        clock.advance(seconds=40)
    (group,) = evidence_of_running(grid)
    assert group.longest == timedelta(minutes=2)
    assert group.lasted is not None
    assert (group.lasted.number, group.lasted.matched) == (2, clock() - timedelta(seconds=80))
