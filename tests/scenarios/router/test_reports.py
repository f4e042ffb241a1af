"""What a job router tells of its copies while more becomes known of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from pilotage_agents.router.context import RouterContext
from pilotage_agents.router.core.model import RoutedJobOutcome, RoutedJobReport, RoutedJobState, RoutedJobStatus
from pilotage_agents.router.core.routed_job import RoutedJobKey, TrackedJob
from pilotage_agents.router.core.routed_jobs import TrackedJobs
from pilotage_agents.router.hooks import RouteHooks
from pilotage_agents.router.monitor import RoutedJobCleanup, RoutedJobReporter
from pilotage_agents.router.ports import RoutedJobReportAnswer
from pilotage_agents.router.targets import TargetPool
from pilotage_agents.router.tasks import BackgroundTasks
from support.router_scene import NO_HOOKS, FakeRouterLink, RouterScene
from support.virtual_clock import START


class Amid(FakeRouterLink):
    """A server that takes its time to hear a report; meanwhile something happens."""

    meanwhile: Callable[[], object]
    heard: list[RoutedJobReport]

    async def report(self, request: str, reports: Sequence[RoutedJobReport]) -> RoutedJobReportAnswer:
        self.heard += reports
        if len(self.heard) == 1:
            self.meanwhile()
        return RoutedJobReportAnswer({}, ())


RUNS = TrackedJob(
    RoutedJobKey(1, 1), "A", "queue SITE/ce/A", START, "ref:1", status=RoutedJobStatus(RoutedJobState.RUNNING)
)


async def told(tmp_path: Path, copies: TrackedJobs, meanwhile: Callable[[], object]) -> list[RoutedJobReport]:
    """Return the reports of a running copy of which more becomes known while the first one is heard."""
    scene, link, errands = RouterScene(tmp_path), Amid(), BackgroundTasks(10.0)
    link.heard, link.meanwhile = [], meanwhile
    places = TargetPool(scene.places, scene.clock, 10.0)
    hooks = RouteHooks(NO_HOOKS, tmp_path / "hooks")
    shared = RouterContext("jobrouter", copies, link, places, hooks, scene.clock, errands)
    copies.put(RUNS, report_due=True)
    await RoutedJobReporter(shared, RoutedJobCleanup(places, scene.folder(), errands)).send()
    await errands.close()
    return link.heard


async def test_an_end_that_is_noted_while_an_earlier_word_of_the_copy_is_told_is_told_as_well(tmp_path: Path) -> None:
    copies = TrackedJobs()
    ended = replace(RUNS, outcome=RoutedJobOutcome("KILLED", RUNS.status))
    reports = await told(tmp_path, copies, lambda: copies.put(ended, report_due=True))
    assert [report.state for report in reports] == ["RUNNING", "DONE"]
    assert len(copies) == 0


async def test_what_a_hook_says_while_an_earlier_word_of_the_copy_is_told_is_told_as_well(tmp_path: Path) -> None:
    copies = TrackedJobs()
    reports = await told(tmp_path, copies, lambda: copies.update_attributes(RUNS.key, {"Progress": 70}))
    assert [dict(report.attributes) for report in reports] == [{}, {"Progress": 70}]
    assert copies.reports_due == {}
