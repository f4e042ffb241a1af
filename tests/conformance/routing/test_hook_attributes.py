"""What the hooks of job routers say of copies, on every database: kept with the copy, and shown with its job's ad."""

from __future__ import annotations

import pytest

from pilotage.classads.evaluation import Ad
from pilotage.classads.library import AdValue
from pilotage.job_description import JobPolicy, Value
from pilotage.values.attempts import Outcome
from pilotage_server.core.jobs.changes import JobChange
from pilotage_server.core.jobs.states import JobState
from pilotage_server.core.routing import RouterReport
from pilotage_server.operations.jobs.queries import get_ad
from pilotage_server.operations.routing.route_jobs import load_routable_jobs
from pilotage_server.storage.database.engine import Database
from support.grid import Grid, PolicyGrid
from support.jobs import an_operator
from support.routers import Router, router
from support.virtual_clock import VirtualClock

__all__ = ["router"]


@pytest.fixture
def grid(database: Database, clock: VirtualClock) -> PolicyGrid:
    return PolicyGrid(database, clock)


def ad_of(grid: Grid, job_id: int) -> dict[str, AdValue]:
    return dict(grid.read(lambda transaction, _: get_ad(transaction, an_operator(), job_id)))


def test_what_hooks_say_fills_only_names_that_nobody_else_has_a_word_for(grid: Grid, router: Router) -> None:
    (job_id,) = grid.submit(attributes={"Color": "red"})
    router.take(job_id)
    plain = ad_of(grid, job_id)
    owned = ("vo", "JobStatus", "requestmemory", "MemoryUsage", "Requirements", "PeriodicRemove", "HoldReason", "MY")
    said: dict[str, Value] = {"color": "blue", **dict.fromkeys((*owned, "RouteName", "RoutedToJobId"), "x")}
    router.tell(RouterReport(job_id, 1, attributes=said | {"Progress": 70}))
    assert ad_of(grid, job_id) == {**plain, "Progress": 70}


def test_no_policy_and_no_match_looks_at_it(grid: PolicyGrid, router: Router) -> None:
    policy = JobPolicy(periodic_remove="Progress > 50")
    (job_id,) = grid.submit(policy=policy, requirements_expression="MY.Progress =?= undefined")
    pilot = grid.start_pilot()
    router.take(job_id)
    router.start(job_id)
    router.tell(RouterReport(job_id, 1, attributes={"Progress": 70}))
    assert grid.look() == []
    (seen,) = grid.read(lambda transaction, state: load_routable_jobs(transaction, state, [job_id]))
    assert "Progress" not in Ad(seen.ad).plain()
    router.report(job_id, Outcome.EVICTED)
    assert pilot.claim() == [job_id]


def test_what_is_said_anew_replaces_all_that_was_said_and_what_is_said_twice_changes_nothing(
    grid: Grid, router: Router
) -> None:
    first, second = grid.submit(count=2)
    router.take(first, second)
    for _ in range(2):
        router.tell(
            *(RouterReport(job_id, 1, attributes={"Stage": job_id, "Löwe": "🦁"}) for job_id in (first, second))
        )
    router.tell(
        RouterReport(first, 1, attributes={"Progress": (1, 2.5, "x", True)}), RouterReport(second, 1, "slurm 17")
    )
    assert "Stage" not in ad_of(grid, first)
    assert ad_of(grid, first)["Progress"] == (1, 2.5, "x", True)
    assert (ad_of(grid, second)["Stage"], ad_of(grid, second)["Löwe"]) == (second, "🦁")


def test_what_was_said_last_is_shown_until_another_attempt_begins(grid: Grid, router: Router) -> None:
    (job_id,) = grid.submit()
    pilot = grid.start_pilot()
    router.take(job_id)
    router.tell(RouterReport(job_id, 1, attributes={"Progress": 70}))
    router.report(job_id, Outcome.EVICTED, reason="vanished")
    assert (grid.job(job_id).state, ad_of(grid, job_id)["Progress"]) == (JobState.WAITING, 70)
    grid.change(JobChange.HOLD, job_id)
    assert ad_of(grid, job_id)["Progress"] == 70
    grid.change(JobChange.RELEASE, job_id)
    pilot.take()
    assert "Progress" not in ad_of(grid, job_id)


def test_a_job_that_has_ended_shows_what_was_said_with_its_end(grid: Grid, router: Router) -> None:
    (job_id,) = grid.submit()
    router.take(job_id)
    end = router.a_report(job_id, Outcome.EXITED, exit_code=0)
    router.tell(RouterReport(job_id, 1, report=end.report, attributes={"Progress": 100}))
    assert (grid.job(job_id).state, ad_of(grid, job_id)["Progress"]) == (JobState.DONE, 100)


def test_no_router_says_anything_of_another_ones_copy(grid: Grid, router: Router) -> None:
    (job_id,) = grid.submit()
    router.take(job_id)
    other = Router(grid, name="another").begin()
    other.tell(RouterReport(job_id, 1, attributes={"Progress": 70}), RouterReport(4711, 1, attributes={"Progress": 70}))
    assert "Progress" not in ad_of(grid, job_id)
