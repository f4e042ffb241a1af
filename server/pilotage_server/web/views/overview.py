"""The overview: jobs now and over the last day, the sites, and what operators must know."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, timedelta
from typing import Any

from starlette.responses import Response

from pilotage.v1 import diagnosis_service_pb2, overview_service_pb2
from pilotage_server.web.charts import ChartSeries, line_chart
from pilotage_server.web.live import Emit, LiveResponse, StreamCount
from pilotage_server.web.pages import PageMaker, PageView, Shown, Visit

MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
STEP = timedelta(minutes=10)
REFRESH_S = 5
"""Interval at which an open overview is made again; it is sent if it differs."""

_VIEWS_OF_CHECKS = {"agents": "/agents", "pilots": "/sites", "places": "/health", "queues": "/sites", "tree": "/tree"}
"""Where the cause of a finding can be seen; other checks are about the machine of the server."""

_LEVELS = {diagnosis_service_pb2.FINDING_LEVEL_FAULT: "fault", diagnosis_service_pb2.FINDING_LEVEL_WARNING: "warning"}


async def collect_overview(visit: Visit) -> Shown:
    """Return the counts, the sites, and, for operators, the findings that need something to be done."""
    shown = await collect_counts(visit)
    findings: list[Any] = []
    if visit.may("DiagnosisService/Diagnose"):
        found = await visit.calls("DiagnosisService/Diagnose", diagnosis_service_pb2.DiagnoseRequest())
        findings = sorted((each for each in found.findings if each.level in _LEVELS), key=lambda each: -each.level)
    return {**shown, "findings": findings, "levels": _LEVELS, "views_of_checks": _VIEWS_OF_CHECKS}


async def collect_counts(visit: Visit) -> Shown:
    """Return the counts of jobs with their charts, and the sites; those with something to say come first."""
    request = overview_service_pb2.GetOverviewRequest(history_s=DAY.total_seconds(), step_s=STEP.total_seconds())
    overview = await visit.calls("OverviewService/GetOverview", request)
    history, step = overview.history, STEP
    if history and visit.clock() - history[0].time.ToDatetime(UTC) < HOUR:
        # The counts have just begun: they are shown by minutes, so that there is something to see.
        recent = overview_service_pb2.GetOverviewRequest(history_s=HOUR.total_seconds(), step_s=MINUTE.total_seconds())
        history, step = (await visit.calls("OverviewService/GetOverview", recent)).history, MINUTE
    times = [each.time.ToDatetime(UTC) for each in history]
    now_chart = line_chart(
        "Waiting and running jobs over the last day",
        times,
        [
            ChartSeries("wait", [each.waiting for each in history]),
            ChartSeries("busy", [each.running for each in history]),
        ],
        step,
    )
    ended_chart = line_chart(
        "Jobs that ended over the last day",
        times,
        [
            ChartSeries("good", [_per_hour(each.done, each) for each in history]),
            ChartSeries("bad", [_per_hour(each.failed, each) for each in history]),
        ],
        step,
    )
    return {
        "overview": overview,
        "ended": {
            name: sum(getattr(each, name) for each in overview.history) for name in ("done", "failed", "removed")
        },
        "sites": sorted(overview.sites, key=lambda site: (not _is_marked(site), site.site)),
        "now_chart": now_chart,
        "ended_chart": ended_chart,
    }


def _per_hour(count: int, of: overview_service_pb2.JobsOverTime) -> float:
    return count * timedelta(hours=1).total_seconds() / of.covered_s


def _is_marked(site: Any) -> bool:
    return bool(site.banned or site.health or site.downtime)


OVERVIEW = PageView("/", "Overview", ("OverviewService/GetOverview",), "overview.html", collect_overview)


class OverviewLife:
    """The counts of the overview as live updates."""

    def __init__(self, pages: PageMaker, is_open: Callable[[], bool]) -> None:
        self._pages = pages
        self._is_open = is_open
        self._count = StreamCount()

    async def follow(self, visit: Visit) -> Response:
        """Return the live updates of the counts."""

        async def refresh(emit: Emit) -> None:
            before = ""
            while self._is_open():
                text = self._pages.part(OVERVIEW.template, "counts", visit, await collect_counts(visit))
                await emit("counts" if text != before else "", text, "")
                before = text
                for _ in range(REFRESH_S):
                    if self._is_open():  # a stop of the server need not wait for long
                        await asyncio.sleep(1.0)

        return LiveResponse((refresh,), self._count)
