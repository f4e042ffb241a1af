"""Reports of a job router: reports that the server rejects as malformed, and news during a report."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from pilotage_agents.router.context import RouterContext
from pilotage_agents.router.core.model import RoutedJobOutcome, RoutedJobReport, RoutedJobState, RoutedJobStatus
from pilotage_agents.router.core.routed_job import HELD_BY_TARGET, RoutedJobKey, TrackedJob
from pilotage_agents.router.core.routed_jobs import TrackedJobs
from pilotage_agents.router.hooks import RouteHooks
from pilotage_agents.router.monitor import RoutedJobCleanup, RoutedJobReporter
from pilotage_agents.router.ports import RoutedJobReportAnswer
from pilotage_agents.router.target_pool import TargetPool
from pilotage_agents.router.tasks import BackgroundTasks
from support.router_scene import NO_HOOKS, FakeRouterLink, RouterScene
from support.virtual_clock import START


@pytest.fixture
def scene(tmp_path: Path) -> RouterScene:
    return RouterScene(tmp_path)


@pytest.mark.parametrize("state", [RoutedJobState.RUNNING, RoutedJobState.COMPLETED])
async def test_routed_job_with_a_malformed_report_is_kept(scene: RouterScene, state: RoutedJobState) -> None:
    bad, good = scene.link.submit(2, WantJobRouter=True)
    await scene.run_cycles()
    scene.link.malformed_jobs = [bad]
    for job in (bad, good):
        scene.target().set_state(job, state, exit_code=0 if state is RoutedJobState.COMPLETED else None)
    await scene.run_cycles(3)
    assert [scene.link.jobs[job].state for job in (bad, good)] == [
        "MATCHED",
        "RUNNING" if state is RoutedJobState.RUNNING else "DONE",
    ]
    assert f"ref:pilotage-{bad}-1" not in scene.target().forgotten + scene.target().cancelled


async def test_malformed_report_is_sent_again_in_each_cycle(scene: RouterScene) -> None:
    (job,) = scene.link.submit(WantJobRouter=True)
    await scene.run_cycles()
    scene.link.malformed_jobs = [job]
    scene.target().set_state(job, RoutedJobState.RUNNING)
    await scene.run_cycles(3)
    scene.link.malformed_jobs = []
    scene.target().set_state(job, RoutedJobState.COMPLETED, node="n17", exit_code=0)
    await scene.run_cycles(2)
    assert scene.link.jobs[job].history == ["WAITING", "MATCHED", "DONE"]


async def test_malformed_report_is_sent_once_per_cycle(scene: RouterScene) -> None:
    (job,) = scene.link.submit(WantJobRouter=True)
    await scene.run_cycles()
    scene.link.malformed_jobs = [job]
    scene.target().set_state(job, RoutedJobState.RUNNING)
    before = scene.link.calls.count("report")
    await scene.run_cycles()
    assert scene.link.calls.count("report") - before == 2, "one asks which jobs are unwanted, the other reports"


def rejects_texts(report: RoutedJobReport) -> str:
    """Return the fault that a server finds in texts of targets and hooks."""
    outcome = report.outcome
    has_text = outcome is not None and (outcome.status.reason or "disk" in outcome.reason)
    return 'node: "n\u00f61\x1b" is not liked' if report.node or report.attributes or has_text else ""


def rejects_files(report: RoutedJobReport) -> str:
    """Return the fault that a server finds in output files."""
    return "report.output_files[0].name: is not liked" if report.outcome and report.outcome.files else ""


async def test_rejected_outcome_is_reported_with_a_safe_reason(
    scene: RouterScene,
) -> None:
    (job,) = scene.link.submit(WantJobRouter=True)
    await scene.run_cycles()
    scene.link.find_fault = rejects_texts
    ended = datetime(2026, 1, 1, 12, tzinfo=UTC)
    scene.target().set_state(job, RoutedJobState.COMPLETED, node="n17", exit_code=3, wall_s=5.0, ended=ended)
    await scene.run_cycles(2)
    (outcome,) = scene.link.jobs[job].outcomes
    assert (scene.link.jobs[job].state, scene.link.jobs[job].output) == ("FAILED", {"stdout": b"\n"})
    assert (outcome.status.exit_code, outcome.status.wall_s, outcome.status.ended) == (3, 5.0, ended)
    assert outcome.reason == 'the server rejected the report of its end: node: "n?1?" is not liked'


async def test_outcome_with_rejected_files_is_retried_for_an_hour(
    scene: RouterScene,
) -> None:
    (job,) = scene.link.submit(WantJobRouter=True)
    await scene.run_cycles()
    scene.link.find_fault = rejects_files
    name = scene.target().of_job(job).name
    scene.target().set_state(job, RoutedJobState.COMPLETED, exit_code=0)
    await scene.run_cycles(59, every_s=60)
    assert (scene.link.jobs[job].state, scene.target().forgotten) == ("MATCHED", [])
    await scene.run_cycles(4, every_s=60)
    (outcome,) = scene.link.jobs[job].outcomes
    assert (outcome.outcome, outcome.status.exit_code) == ("OUTPUT_LOST", 0)
    assert "report.output_files[0].name: is not liked" in outcome.reason
    assert (scene.link.jobs[job].attempt, name in scene.target().forgotten) == (2, True)


async def test_files_are_stored_though_the_server_rejects_the_use(scene: RouterScene) -> None:
    (job,) = scene.link.submit(WantJobRouter=True)
    await scene.run_cycles()
    scene.link.find_fault = lambda report: (
        "wall_s: is not liked" if report.outcome and report.outcome.status.wall_s else ""
    )
    scene.target().set_state(job, RoutedJobState.COMPLETED, exit_code=0, wall_s=5.0)
    await scene.run_cycles(4, every_s=60)
    (outcome,) = scene.link.jobs[job].outcomes
    assert (scene.link.jobs[job].state, scene.link.jobs[job].output) == ("DONE", {"stdout": b"\n"})
    assert (outcome.status.exit_code, outcome.status.wall_s) == (0, 0.0)


async def test_files_are_stored_when_the_server_accepts_them_within_the_hour(
    scene: RouterScene,
) -> None:
    (job,) = scene.link.submit(WantJobRouter=True)
    await scene.run_cycles()
    scene.link.find_fault = rejects_files
    scene.target().set_state(job, RoutedJobState.COMPLETED, exit_code=0)
    await scene.run_cycles(30, every_s=60)
    scene.link.find_fault = lambda _: ""
    await scene.run_cycles()
    assert (scene.link.jobs[job].state, scene.link.jobs[job].output) == ("DONE", {"stdout": b"\n"})


async def test_target_hold_with_a_rejected_reason_still_holds_the_job(
    scene: RouterScene,
) -> None:
    (job,) = scene.link.submit(WantJobRouter=True)
    await scene.run_cycles()
    scene.link.find_fault = lambda report: "held: is not liked" if report.held and report.held != HELD_BY_TARGET else ""
    scene.target().set_state(job, RoutedJobState.HELD, reason="disk full")
    await scene.run_cycles()
    scene.target().set_state(job, RoutedJobState.GONE)
    await scene.run_cycles(3)
    assert (scene.link.jobs[job].state, scene.link.jobs[job].reason) == ("HELD", HELD_BY_TARGET)
    assert [outcome.outcome for outcome in scene.link.jobs[job].outcomes] == ["KILLED"]


@pytest.mark.parametrize(
    "status",
    [
        {"node": "n\x00\x1b[31m"},
        {"node": "n\ud800", "reason": "x" * 100_000},
        {"exit_code": 10**12, "signal": -(10**12)},
        {"cpu_s": math.nan, "wall_s": -math.inf},
        {"started": datetime(1, 1, 1, tzinfo=UTC), "ended": datetime(1969, 12, 31, tzinfo=UTC)},
    ],
    ids=["control characters", "lone surrogate", "codes", "amounts", "times"],
)
async def test_malformed_status_does_not_prevent_the_outcome(scene: RouterScene, status: dict[str, Any]) -> None:
    (job,) = scene.link.submit(WantJobRouter=True)
    await scene.run_cycles()
    scene.target().set_state(job, RoutedJobState.COMPLETED, **({"exit_code": 3} | status))
    await scene.run_cycles()
    (outcome,) = scene.link.jobs[job].outcomes
    assert (scene.link.jobs[job].state, outcome.outcome) == ("FAILED", "EXITED")


# Changes during a report ---------------------------------------------------------------------------------------------


class SlowReportLink(FakeRouterLink):
    """A server that calls `meanwhile` during the first report."""

    meanwhile: Callable[[], object]
    received: list[RoutedJobReport]

    async def report(self, request: str, reports: Sequence[RoutedJobReport]) -> RoutedJobReportAnswer:
        self.received += reports
        if len(self.received) == 1:
            self.meanwhile()
        return RoutedJobReportAnswer({}, ())


RUNNING_JOB = TrackedJob(
    RoutedJobKey(1, 1), "A", "queue SITE/ce/A", START, "ref:1", status=RoutedJobStatus(RoutedJobState.RUNNING)
)


async def reports_of(tmp_path: Path, jobs: TrackedJobs, meanwhile: Callable[[], object]) -> list[RoutedJobReport]:
    """Return the reports of a running routed job whose state changes during the first report."""
    scene, link, tasks = RouterScene(tmp_path), SlowReportLink(), BackgroundTasks(10.0)
    link.received, link.meanwhile = [], meanwhile
    targets = TargetPool(scene.targets, scene.clock, 10.0)
    hooks = RouteHooks(NO_HOOKS, tmp_path / "hooks")
    shared = RouterContext("jobrouter", jobs, link, targets, hooks, scene.clock, tasks)
    jobs.put(RUNNING_JOB, report_due=True)
    await RoutedJobReporter(shared, RoutedJobCleanup(targets, scene.folder(), tasks)).send()
    await tasks.close()
    return link.received


async def test_outcome_during_a_report_is_reported_too(tmp_path: Path) -> None:
    jobs = TrackedJobs()
    ended = replace(RUNNING_JOB, outcome=RoutedJobOutcome("KILLED", RUNNING_JOB.status))
    reports = await reports_of(tmp_path, jobs, lambda: jobs.put(ended, report_due=True))
    assert [report.state for report in reports] == ["RUNNING", "DONE"]
    assert len(jobs) == 0


async def test_attributes_during_a_report_are_reported_too(tmp_path: Path) -> None:
    jobs = TrackedJobs()
    reports = await reports_of(tmp_path, jobs, lambda: jobs.update_attributes(RUNNING_JOB.key, {"Progress": 70}))
    assert [dict(report.attributes) for report in reports] == [{}, {"Progress": 70}]
    assert jobs.reports_due == {}
