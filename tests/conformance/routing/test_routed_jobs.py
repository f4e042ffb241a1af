"""Routed jobs: claims by job routers, states, ends, holds and accounting."""

from __future__ import annotations

from datetime import timedelta

import pytest

from pilotage.errors import LeadershipLostError
from pilotage.values.attempts import Outcome
from pilotage_server.core.jobs.changes import JobChange
from pilotage_server.core.jobs.states import HoldCode, JobState
from pilotage_server.core.routing import RouterReport
from pilotage_server.operations.jobs.queries import get_ad
from support.grid import LONG, Grid
from support.jobs import an_operator
from support.routers import SHORT, Router, a_copy, grid, router

__all__ = ["grid", "router"]


def test_waiting_job_is_routed_once_and_not_matched(grid: Grid, router: Router) -> None:
    (job_id,) = grid.submit()
    pilot = grid.start_pilot()
    assert router.take(job_id) == [job_id]
    assert pilot.claim() == []
    assert router.refusal(a_copy(job_id)) == "it is MATCHED"
    job = grid.job(job_id)
    assert (job.state, job.attempt, job.slot, str(job.queue)) == (JobState.MATCHED, 1, "north", LONG)
    assert job.reason == f"route north to queue {LONG}"


def test_job_of_a_pilot_is_not_routed(grid: Grid, router: Router) -> None:
    (job_id,) = grid.submit()
    grid.start_pilot().take()
    assert router.refusal(a_copy(job_id)) == "it is MATCHED"
    assert grid.job(job_id).pilot_stamp == "p1"


def test_jobs_of_one_call_are_decided_individually(grid: Grid, router: Router) -> None:
    free, held = grid.submit(), grid.submit()
    grid.change(JobChange.HOLD, *held)
    answers = router.route(a_copy(held[0]), a_copy(4711), a_copy(free[0], SHORT, "south"))
    assert [(answer.job_id, answer.attempt, answer.refusal) for answer in answers] == [
        (held[0], 0, "it is HELD"),
        (4711, 0, "there is no job 4711"),
        (free[0], 1, ""),
    ]


def test_only_leading_replica_may_route_and_report(grid: Grid, router: Router) -> None:
    (job_id,) = grid.submit()
    other = Router(grid, holder="another")
    with pytest.raises(LeadershipLostError):
        other.take(job_id)
    assert grid.job(job_id).state is JobState.WAITING
    router.take(job_id)
    other.attempts[job_id] = 1
    with pytest.raises(LeadershipLostError):
        other.finish(job_id)
    assert grid.job(job_id).state is JobState.MATCHED


def test_success_of_routed_job_completes_the_job(grid: Grid, router: Router) -> None:
    (job_id,) = grid.submit()
    router.take(job_id)
    assert router.start(job_id, reference="slurm 17", node="n42").results[0].accepted
    job = grid.job(job_id)
    assert (job.state, job.node) == (JobState.RUNNING, "n42")
    router.finish(job_id)
    assert grid.job(job_id).state is JobState.DONE
    assert grid.history(job_id) == [(1, "exited")]
    assert router.copies() == []


def test_failure_at_target_fails_the_job(grid: Grid, router: Router) -> None:
    (job_id,) = grid.submit()
    router.take(job_id)
    router.finish(job_id, exit_code=3, started=grid.clock())
    job = grid.job(job_id)
    assert (job.state, job.exit_code, job.reason) == (JobState.FAILED, 3, "exit code 3")


def test_failure_at_target_is_retried_anywhere(grid: Grid, router: Router) -> None:
    (job_id,) = grid.submit(retries=1)
    router.take(job_id)
    router.finish(job_id, exit_code=3, started=grid.clock())
    job = grid.job(job_id)
    assert (job.state, job.reason, job.lease_until) == (JobState.WAITING, "retry 1 of 1 after exit code 3", None)
    assert router.copies() == []
    assert grid.start_pilot().claim() == [job_id]


@pytest.mark.parametrize("outcome", [Outcome.EVICTED, Outcome.DECLINED])
def test_lost_or_declined_routed_job_requeues_without_spent_attempt(
    grid: Grid, router: Router, outcome: Outcome
) -> None:
    (job_id,) = grid.submit()
    pilot = grid.start_pilot()
    router.take(job_id)
    router.report(job_id, outcome, reason="vanished")
    job = grid.job(job_id)
    assert (job.state, job.spent_attempts, job.lease_until) == (JobState.WAITING, 0, None)
    assert pilot.claim() == [job_id]


def test_hold_at_target_holds_the_job(grid: Grid, router: Router) -> None:
    (job_id,) = grid.submit()
    router.take(job_id)
    (unwanted,) = router.send_reports(RouterReport(job_id, 1, held="too much memory")).unwanted
    assert (unwanted.job_id, unwanted.attempt) == (job_id, 1)
    job = grid.job(job_id)
    assert (job.state, job.reason, job.hold_code) == (JobState.HELD, "too much memory", HoldCode.STARTD_HELD_JOB)
    assert job.is_fenced
    router.send_reports(RouterReport(job_id, 1, held="reported again"))
    router.report(job_id, Outcome.KILLED)
    assert grid.job(job_id).reason == "too much memory"
    assert router.copies() == []


def test_hold_report_ignores_removed_and_foreign_jobs(grid: Grid, router: Router) -> None:
    own, removed, foreign = grid.submit(count=3)
    router.take(own, removed)
    other = Router(grid, "another router").begin()
    other.take(foreign)
    grid.change(JobChange.REMOVE, removed)
    router.send_reports(*(RouterReport(job_id, 1, held="too much memory") for job_id in (own, removed, foreign)))
    states = [grid.job(job_id).state for job_id in (own, removed, foreign)]
    assert states == [JobState.HELD, JobState.REMOVED, JobState.MATCHED]


@pytest.mark.parametrize("change", [JobChange.REMOVE, JobChange.HOLD, JobChange.RESCHEDULE])
def test_routed_job_of_changed_job_is_unwanted_until_its_end(grid: Grid, router: Router, change: JobChange) -> None:
    (job_id,) = grid.submit()
    pilot = grid.start_pilot()
    router.take(job_id)
    assert router.unwanted() == []
    grid.change(change, job_id)
    assert router.unwanted() == [(job_id, 1)]
    assert pilot.claim() == []
    assert router.refusal(a_copy(job_id)), "its routed job may still run"
    assert router.report(job_id, Outcome.KILLED).results[0].accepted
    assert router.unwanted() == []
    if change is not JobChange.REMOVE:
        grid.change(JobChange.RELEASE, job_id)
        assert router.take(job_id) == [job_id]
    assert grid.job(job_id).spent_attempts == 0


def test_each_report_is_decided_by_state_of_its_job(grid: Grid, router: Router) -> None:
    removed, held, again, _ = ids = grid.submit(count=4)
    router.take(*ids)
    for change, job_id in ((JobChange.REMOVE, removed), (JobChange.HOLD, held), (JobChange.RESCHEDULE, again)):
        grid.change(change, job_id)
    results = router.start(*ids).results
    assert [result.accepted for result in results] == [False, False, False, True]
    assert [grid.job(job_id).state for job_id in ids] == ["REMOVED", "HELD", "WAITING", "RUNNING"]
    assert router.unwanted() == [(removed, 1), (held, 1), (again, 1)]
    assert all(result.accepted for result in router.finish(*ids).results)
    assert [grid.job(job_id).state for job_id in ids] == ["REMOVED", "HELD", "WAITING", "DONE"]
    assert router.take(again) == [again]


def test_rescheduled_job_stays_fenced_until_router_reports(grid: Grid, router: Router) -> None:
    (job_id,) = grid.submit()
    router.take(job_id)
    grid.change(JobChange.RESCHEDULE, job_id)
    for _ in range(5):
        grid.pass_time(days=10)
    assert router.refusal(a_copy(job_id)) == "its last attempt may still be running"
    summary = grid.why(job_id).summary
    assert summary.startswith(f"It waits until job router {router.name} reports the end of its copy")


def test_silent_router_keeps_its_jobs(grid: Grid, router: Router) -> None:
    (job_id,) = grid.submit()
    router.take(job_id)
    router.start(job_id)
    for _ in range(5):
        assert grid.pass_time(days=10).jobs == ()
    assert router.finish(job_id).results[0].accepted
    assert grid.job(job_id).state is JobState.DONE


def test_routed_jobs_survive_restart_of_server(grid: Grid, router: Router) -> None:
    first, second, third = grid.submit(count=3)
    router.take(first)
    grid.clock.advance(timedelta(seconds=1))
    router.take(second, third, target="far.example:4711")
    router.start(first, reference="slurm 17")
    router.finish(third)
    grid.change(JobChange.HOLD, second)
    router.grid = grid.restarted()
    one, two = router.copies()
    assert (one.copy.key, one.copy.reference, one.state, one.unwanted) == (
        (first, 1), "slurm 17", JobState.RUNNING, ""
    )  # fmt: skip
    assert (two.copy.key, two.copy.reference, two.copy.target) == ((second, 1), "", "server far.example:4711")
    assert "held" in two.unwanted
    assert Router(grid, "another").copies() == []


def test_router_cannot_report_foreign_routed_jobs(grid: Grid, router: Router) -> None:
    (job_id,) = grid.submit()
    router.take(job_id)
    other = Router(grid, "another", attempts={job_id: 1}).begin()
    (result,) = other.finish(job_id, node="elsewhere", reference="mine").results
    assert result.refusal == f"attempt 1 of job {job_id} does not belong to this router"
    assert (grid.job(job_id).state, grid.job(job_id).node) == (JobState.MATCHED, "")
    assert router.copies()[0].copy.reference == ""


def test_repeated_reports_change_nothing(grid: Grid, router: Router) -> None:
    (job_id,) = grid.submit()
    router.take(job_id)
    for _ in range(2):
        assert router.start(job_id).results[0].accepted
    for _ in range(2):
        assert router.finish(job_id).results[0].accepted
    assert grid.history(job_id) == [(1, "exited")]


def test_use_is_charged_from_start_of_routed_job(grid: Grid, router: Router) -> None:
    waiting, running = grid.submit(count=2, request_cpus=2)
    router.take(waiting, running)
    grid.pass_time(hours=1)
    router.start(running)
    assert used_s(grid) == pytest.approx(0, abs=1e-6)
    grid.pass_time(hours=1)
    router.finish(running)
    router.report(waiting, Outcome.EVICTED)
    assert used_s(grid) == pytest.approx(used_s(grid.restarted()))
    assert 6800 < used_s(grid) < 7200, "two cores for an hour, less some decay"


@pytest.mark.parametrize(("started_min", "charged_s"), [(10, 600), (-60, 1200)])
def test_late_start_report_is_charged_from_start_after_match(
    grid: Grid, router: Router, started_min: float, charged_s: float
) -> None:
    (job_id,) = grid.submit()
    router.take(job_id)
    started = grid.clock() + timedelta(minutes=started_min)
    grid.pass_time(minutes=20)
    router.finish(job_id, started=started)
    assert used_s(grid) == pytest.approx(charged_s, rel=0.01)
    assert used_s(grid) == pytest.approx(used_s(grid.restarted()))


def used_s(grid: Grid) -> float:
    """Return the use of all accounts in core seconds."""
    shares = grid.state.shares
    return sum(shares.use(account, grid.clock()).core_s for account in shares.accounts())


def test_ad_has_attributes_of_routing(grid: Grid, router: Router) -> None:
    (job_id,) = grid.submit()
    router.take(job_id)
    router.start(job_id, reference="slurm 17", node="n42")
    ad = grid.read(lambda transaction, _: get_ad(transaction, an_operator(), job_id))
    routing = {name: ad[name] for name in ("RouteName", "RoutedBy", "RoutedToJobId", "RemoteHost")}
    assert routing == {
        "RouteName": "north",
        "RoutedBy": "job router of sky",
        "RoutedToJobId": "slurm 17",
        "RemoteHost": "north@n42",
    }
    router.finish(job_id)
    assert not grid.read(lambda transaction, _: get_ad(transaction, an_operator(), job_id)).keys() & {
        "RouteName",
        "RoutedToJobId",
    }
