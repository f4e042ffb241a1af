"""Jobs that are searched by what they have in common, and changed only while they meet it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pilotage.errors import InvalidInputError
from pilotage.values.attempts import Outcome
from pilotage.values.jobs import ALL_OWNERS, JobCondition
from pilotage_server.core.identity import Identity
from pilotage_server.core.jobs.changes import JobChange
from pilotage_server.operations.jobs.changes import change_jobs
from pilotage_server.operations.jobs.conditions import query_of, search_jobs
from pilotage_server.storage.database.engine import Database
from support.grid import Grid
from support.jobs import a_user, an_operator
from support.virtual_clock import VirtualClock

NOON = datetime(2026, 11, 27, 12, tzinfo=UTC)

pytestmark = pytest.mark.any_database


@pytest.fixture
def grid(database: Database, clock: VirtualClock) -> Grid:
    return Grid(database, clock)


def found(grid: Grid, states: Sequence[str], identity: Identity | None = None, **condition: Any) -> list[int]:
    wanted = JobCondition(frozenset(states), **{"owner": ALL_OWNERS, **condition})
    runs = grid.read(lambda transaction, state: search_jobs(transaction, state, identity or an_operator(), wanted)).runs
    return [job_id for run in runs for job_id in run]


def run_one(grid: Grid, node: str) -> int:
    """Run a job on a node until it fails there; returns its id."""
    (job_id,) = grid.submit()
    pilot = grid.start_pilot()
    pilot.show(name=node)
    pilot.report(pilot.take(), Outcome.EXITED, exit_code=1)
    return job_id


def test_failed_jobs_are_found_by_node_and_time(grid: Grid, clock: VirtualClock) -> None:
    early = run_one(grid, "n1")
    clock.advance(hours=2)
    since = clock()
    here, elsewhere = run_one(grid, "n1"), run_one(grid, "n2")
    failed = ["FAILED", "REMOVED"]
    assert found(grid, failed, site="cern", node="N1", since=since) == [here]
    assert found(grid, failed, site="CERN", since=since) == [here, elsewhere]
    assert found(grid, failed, node="n1", since=since - timedelta(hours=3), until=since) == [early]
    assert found(grid, failed, site="CERN", ce="ce01", queue="long", owner="alice") == [early, here, elsewhere]
    assert found(grid, failed, owner="bob") == []


def test_running_and_held_jobs_are_found_by_place(grid: Grid) -> None:
    running, held, waiting = grid.submit(count=3)
    pilot = grid.start_pilot()
    pilot.show(name="n1")
    assert pilot.claim() == [running]
    grid.write(lambda transaction, state: change_jobs(transaction, state, an_operator(), [held], JobChange.HOLD, ""))
    assert found(grid, ["MATCHED", "RUNNING"], site="CERN") == [running]
    assert found(grid, ["HELD"]) == [held]
    assert found(grid, ["WAITING", "HELD"], owner="alice") == [held, waiting]


def test_users_find_only_their_own_jobs(grid: Grid) -> None:
    (job_id,) = grid.submit()
    assert found(grid, ["WAITING"], a_user()) == [job_id]
    for stranger in (a_user("bob"), a_user("alice", "cms")):
        assert found(grid, ["WAITING"], stranger) == []
        assert found(grid, ["WAITING"], stranger, owner="alice") == []


def test_owner_is_that_of_one_vo_unless_all_are_named(grid: Grid) -> None:
    (here,) = grid.submit()
    (there,) = grid.submit(user=a_user("alice", "cms"))
    assert found(grid, ["WAITING"], owner="alice") == [here]
    assert found(grid, ["WAITING"], owner="alice", vo="cms") == [there]
    assert found(grid, ["WAITING"], owner="alice", vo="*") == [here, there]
    assert found(grid, ["WAITING"]) == [here, there]


@pytest.mark.parametrize(
    ("condition", "where"),
    [
        (JobCondition(where="("), "where"),
        (JobCondition(since=NOON, until=NOON), "until"),
        (JobCondition(frozenset({"WAITING"}), site="CERN"), "states"),
        (JobCondition(frozenset({"HELD"}), site="CERN", queue="long"), "queue"),
    ],
)
def test_condition_without_sense_is_refused(grid: Grid, condition: JobCondition, where: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        grid.read(lambda transaction, state: search_jobs(transaction, state, an_operator(), condition))
    assert [violation.where for violation in caught.value.violations] == [where]


def test_job_that_has_moved_on_is_not_changed(grid: Grid, clock: VirtualClock) -> None:
    failed, again = run_one(grid, "n1"), run_one(grid, "n1")
    since = clock() - timedelta(hours=1)
    condition = JobCondition(frozenset({"FAILED"}), node="n1", owner=ALL_OWNERS, since=since, where="ExitCode == 1")

    def reschedule(*ids: int) -> list[str]:
        results = grid.write(
            lambda transaction, state: change_jobs(
                transaction,
                state,
                an_operator(),
                ids,
                JobChange.RESCHEDULE,
                "",
                query_of(transaction, state, an_operator(), condition),
            )
        )
        return [result.refusal for result in results]

    assert reschedule(again) == [""]
    refusals = reschedule(failed, again)
    assert refusals == ["", f"job {again} is WAITING now; it does not meet the condition any more"]
