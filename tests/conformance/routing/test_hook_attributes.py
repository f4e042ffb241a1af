"""Attributes from the hooks of job routers: stored with the routed job, and shown in the ad of its job."""

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


def test_hook_attributes_fill_only_unset_names(grid: Grid, router: Router) -> None:
    (job_id,) = grid.submit(attributes={"Color": "red"})
    router.take(job_id)
    before = ad_of(grid, job_id)
    owned = ("vo", "JobStatus", "requestmemory", "MemoryUsage", "Requirements", "PeriodicRemove", "HoldReason", "MY")
    attributes: dict[str, Value] = {"color": "blue", **dict.fromkeys((*owned, "RouteName", "RoutedToJobId"), "x")}
    router.send_reports(RouterReport(job_id, 1, attributes=attributes | {"Progress": 70}))
    assert ad_of(grid, job_id) == {**before, "Progress": 70}


def test_hook_attributes_do_not_affect_policies_and_matches(grid: PolicyGrid, router: Router) -> None:
    policy = JobPolicy(periodic_remove="Progress > 50")
    (job_id,) = grid.submit(policy=policy, requirements_expression="MY.Progress =?= undefined")
    pilot = grid.start_pilot()
    router.take(job_id)
    router.start(job_id)
    router.send_reports(RouterReport(job_id, 1, attributes={"Progress": 70}))
    assert grid.evaluate_changed() == []
    (routable,) = grid.read(lambda transaction, state: load_routable_jobs(transaction, state, [job_id]))
    assert "Progress" not in Ad(routable.ad).plain()
    router.report(job_id, Outcome.EVICTED)
    assert pilot.claim() == [job_id]


def test_new_hook_attributes_replace_earlier_ones(grid: Grid, router: Router) -> None:
    first, second = grid.submit(count=2)
    router.take(first, second)
    for _ in range(2):
        router.send_reports(
            *(RouterReport(job_id, 1, attributes={"Stage": job_id, "Löwe": "🦁"}) for job_id in (first, second))
        )
    router.send_reports(
        RouterReport(first, 1, attributes={"Progress": (1, 2.5, "x", True)}), RouterReport(second, 1, "slurm 17")
    )
    assert "Stage" not in ad_of(grid, first)
    assert ad_of(grid, first)["Progress"] == (1, 2.5, "x", True)
    assert (ad_of(grid, second)["Stage"], ad_of(grid, second)["Löwe"]) == (second, "🦁")


def test_hook_attributes_are_shown_until_next_attempt(grid: Grid, router: Router) -> None:
    (job_id,) = grid.submit()
    pilot = grid.start_pilot()
    router.take(job_id)
    router.send_reports(RouterReport(job_id, 1, attributes={"Progress": 70}))
    router.report(job_id, Outcome.EVICTED, reason="vanished")
    assert (grid.job(job_id).state, ad_of(grid, job_id)["Progress"]) == (JobState.WAITING, 70)
    grid.change(JobChange.HOLD, job_id)
    assert ad_of(grid, job_id)["Progress"] == 70
    grid.change(JobChange.RELEASE, job_id)
    pilot.take()
    assert "Progress" not in ad_of(grid, job_id)


def test_ended_job_shows_hook_attributes_of_its_end(grid: Grid, router: Router) -> None:
    (job_id,) = grid.submit()
    router.take(job_id)
    end = router.a_report(job_id, Outcome.EXITED, exit_code=0)
    router.send_reports(RouterReport(job_id, 1, report=end.report, attributes={"Progress": 100}))
    assert (grid.job(job_id).state, ad_of(grid, job_id)["Progress"]) == (JobState.DONE, 100)


def test_router_cannot_set_attributes_of_foreign_routed_job(grid: Grid, router: Router) -> None:
    (job_id,) = grid.submit()
    router.take(job_id)
    other = Router(grid, name="another").begin()
    other.send_reports(
        RouterReport(job_id, 1, attributes={"Progress": 70}), RouterReport(4711, 1, attributes={"Progress": 70})
    )
    assert "Progress" not in ad_of(grid, job_id)
