"""Glideins whose submission, record or report is lost for a while, and their reports to the server."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path

import pytest

from pilotage.errors import ServerUnreachableError, WorldError
from pilotage.values.pilots import GlideinReport, PilotState
from pilotage_agents.batch_systems.base import LOG_NAME, GlideinRequest, GlideinState, GlideinStatus, Submission
from pilotage_agents.site_director.glideins import GlideinFolders, GlideinRecord
from pilotage_agents.site_director.ports import DirectorContext, GlideinReportAnswer
from pilotage_agents.site_director.queues import QueueFailures
from pilotage_agents.site_director.watch import GlideinWatch, WatchLimits
from support.director_grid import QUEUE, DirectorGrid, FakeDirectorLink
from support.fake_batch_systems import FakeBatchSystem


class LosesFirstReport(FakeDirectorLink):
    """A server that does not receive the first report."""

    async def report_glideins(self, reports: Sequence[GlideinReport]) -> GlideinReportAnswer:
        if "report_glideins" not in self.calls:
            self.calls.append("report_glideins")
            raise ServerUnreachableError("the server does not answer")
        return await super().report_glideins(reports)


@pytest.fixture
def grid(tmp_path: Path) -> DirectorGrid:
    return DirectorGrid(tmp_path)


async def test_glidein_that_appears_late_is_adopted_and_not_replaced(
    grid: DirectorGrid,
) -> None:
    grid.link.waiting, grid.batch.loses_answers = 1, True
    director = grid.director()
    await director.run_once()
    late = grid.batch.requests.pop("fake.1")
    for _ in range(9):
        await director.run_once()
        grid.now += timedelta(minutes=1)
    assert grid.link.ended == {}
    grid.batch.requests["fake.1"] = late
    await director.run_once()
    grid.now += timedelta(minutes=10)
    await director.run_once()
    reports = dict.fromkeys((report.stamp, report.glidein_id) for report in grid.link.reports)
    assert list(reports) == [("stamp0", ""), ("stamp0", "fake.1")]
    assert len(grid.link.registered) == 1


async def test_glidein_of_unknown_fate_is_not_replaced(grid: DirectorGrid) -> None:
    grid.link.waiting, grid.batch.loses_answers = 1, True
    director = grid.director()
    await director.run_once()
    grid.batch.is_reachable = False
    for _ in range(30):
        grid.now += timedelta(minutes=1)
        await director.run_once()
    assert len(grid.link.registered) == 1
    assert [(report.stamp, report.ended) for report in grid.link.reports] == [("stamp0", False)]


async def test_glideins_of_a_cancelled_cycle_are_found_by_the_next(grid: DirectorGrid) -> None:
    class SlowBatchSystem(FakeBatchSystem):
        submitted = asyncio.Event()

        async def submit_many(self, requests: Sequence[GlideinRequest]) -> tuple[Submission, ...]:
            await super().submit_many(requests)
            self.submitted.set()
            return await asyncio.Future()

    slow = SlowBatchSystem()
    grid.batch, grid.link.waiting = slow, 2
    director = grid.director()
    first_cycle = asyncio.create_task(director.run_once())
    await slow.submitted.wait()
    first_cycle.cancel()
    await asyncio.wait([first_cycle])
    grid.now += timedelta(minutes=1)
    await director.run_once()
    assert [(report.stamp, report.glidein_id) for report in grid.link.reports if report.glidein_id] == [
        ("stamp0", "fake.1"),
        ("stamp1", "fake.2"),
    ]
    for glidein_id in slow.requests:
        slow.end(glidein_id, 0, "done")
    grid.link.waiting = 0
    await director.run_once()
    assert grid.link.ended == dict.fromkeys(["stamp0", "stamp1"], "done")


async def test_unsubmitted_glideins_of_a_cancelled_cycle_are_given_up(grid: DirectorGrid) -> None:
    class StuckBatchSystem(FakeBatchSystem):
        called = asyncio.Event()

        async def submit_many(self, requests: Sequence[GlideinRequest]) -> tuple[Submission, ...]:
            self.called.set()
            return await asyncio.Future()

    stuck = StuckBatchSystem()
    grid.batch, grid.link.waiting = stuck, 1
    director = grid.director(lost_after_s=60)
    first_cycle = asyncio.create_task(director.run_once())
    await stuck.called.wait()
    first_cycle.cancel()
    await asyncio.wait([first_cycle])
    grid.link.waiting = 0
    await director.run_once()
    assert grid.link.ended == {}
    grid.now += timedelta(seconds=60)
    await director.run_once()
    assert grid.link.ended == {"stamp0": "it was never submitted"}


async def test_glideins_are_watched_though_their_records_cannot_be_written(
    grid: DirectorGrid, monkeypatch: pytest.MonkeyPatch
) -> None:
    class FullDiskFolders(GlideinFolders):
        def save(self, record: GlideinRecord) -> None:
            if record.glidein_id:
                raise WorldError("no space left on device", transient=True)
            super().save(record)

    monkeypatch.setattr(grid, "folders", lambda: FullDiskFolders(grid.folder / "pilots"))
    grid.link.waiting = 3
    director = grid.director()
    await director.run_once()
    assert [report.stamp for report in grid.link.reports] == ["stamp0", "stamp1", "stamp2"]
    grid.link.waiting = 0
    for glidein_id in grid.batch.requests:
        grid.batch.end(glidein_id, 0, "done")
    await director.run_once()
    assert set(grid.link.ended) == {"stamp0", "stamp1", "stamp2"}


async def test_rejection_is_reported_later_after_a_failed_report(grid: DirectorGrid) -> None:
    grid.link = LosesFirstReport(grid.link.tree, waiting=2)
    grid.batch.refuses = "no"
    director = grid.director(lost_after_s=60)
    await director.run_once()
    assert grid.link.ended == {}
    grid.link.waiting = 0
    for _ in range(3):
        await director.run_once()
        grid.now += timedelta(seconds=60)
    assert grid.link.ended == dict.fromkeys(["stamp0", "stamp1"], "it was never submitted")


def new_reports(grid: DirectorGrid) -> list[tuple[str, str, bool]]:
    """Return the reports since the last call, in order: stamp, glidein id, ended."""
    reports = [(report.stamp, report.glidein_id, report.ended) for report in grid.link.reports]
    grid.link.reports.clear()
    return reports


async def test_unreported_id_is_reported_though_the_batch_system_is_unreachable(
    grid: DirectorGrid,
) -> None:
    grid.link = LosesFirstReport(grid.link.tree, waiting=1)
    director = grid.director()
    await director.run_once()
    assert new_reports(grid) == []
    grid.batch.is_reachable = False
    await director.run_once()
    assert new_reports(grid) == [("stamp0", "fake.1", False)]


async def test_glideins_are_reported_when_they_start_and_every_hour(grid: DirectorGrid) -> None:
    grid.link.waiting = 1
    director = grid.director()
    await director.run_once()
    assert new_reports(grid) == [("stamp0", "fake.1", False)]
    grid.link.waiting = 0
    for state in (GlideinState.WAITING, GlideinState.RUNNING, GlideinState.RUNNING):
        grid.batch.statuses["fake.1"] = GlideinStatus(state)
        await director.run_once()
    assert [report.state for report in grid.link.reports] == [PilotState.RUNNING]
    grid.link.reports.clear()
    for minutes, is_reachable, times in ((59, True, 0), (1, True, 1), (60, False, 0), (0, True, 1), (1, True, 0)):
        grid.now += timedelta(minutes=minutes)
        grid.batch.is_reachable = is_reachable
        await director.run_once()
        assert new_reports(grid) == [("stamp0", "fake.1", False)] * times


async def test_restarted_director_reports_only_confirmed_glideins(
    grid: DirectorGrid,
) -> None:
    grid.link.waiting = 1
    await grid.director().run_once()
    new_reports(grid)
    director = grid.director()
    grid.batch.is_reachable = False
    await director.run_once()
    assert new_reports(grid) == []
    grid.batch.is_reachable = True
    await director.run_once()
    assert new_reports(grid) == [("stamp0", "fake.1", False)]


async def test_many_glideins_are_reported_in_batches(grid: DirectorGrid) -> None:
    grid.folders().open()
    for number in range(2001):
        record = GlideinRecord(f"stamp{number}", QUEUE, "local", f"fake.{number}")
        grid.folders().prepare(record, "token", (), {})
        grid.batch.statuses[record.glidein_id] = GlideinStatus(GlideinState.WAITING)
    await grid.director().run_once()
    assert grid.link.calls.count("report_glideins") == 3
    assert len({stamp for stamp, _, _ in new_reports(grid)}) == 2001


async def test_records_are_read_outside_the_event_loop(grid: DirectorGrid, monkeypatch: pytest.MonkeyPatch) -> None:
    readers: list[threading.Thread] = []

    class WatchedFolders(GlideinFolders):
        def records(self) -> tuple[GlideinRecord, ...]:
            readers.append(threading.current_thread())
            return super().records()

    monkeypatch.setattr(grid, "folders", lambda: WatchedFolders(grid.folder / "pilots"))
    await grid.director().run_once()
    assert len(readers) == 1
    assert readers[0] is not threading.current_thread()


async def test_queue_whose_glideins_fail_to_start_is_paused(grid: DirectorGrid) -> None:
    grid.link.waiting = 1
    director = grid.director()
    await director.run_once()
    grid.batch.statuses["fake.1"] = GlideinStatus(GlideinState.ENDED, "LAUNCH_FAILED", has_failed=True)
    await director.run_once()
    assert len(grid.submitted) == 1
    (line,) = await director.dry_run()
    assert "the last: a pilot ended with LAUNCH_FAILED" in line


async def test_batch_systems_are_polled_concurrently(grid: DirectorGrid) -> None:
    barrier = asyncio.Barrier(2)

    class MeetingBatchSystem(FakeBatchSystem):
        async def poll_all(self, glidein_ids: Sequence[str]) -> Mapping[str, GlideinStatus]:
            async with asyncio.timeout(30):
                await barrier.wait()
            return await super().poll_all(glidein_ids)

    folders = grid.folders()
    folders.open()
    systems = {"a": MeetingBatchSystem(), "b": MeetingBatchSystem()}
    for name in systems:
        folders.prepare(GlideinRecord(f"stamp-{name}", QUEUE, name, "id"), "token", (), {})
    limits = WatchLimits(keep_ended=5, lost_after=timedelta(), credential=timedelta(days=1))
    watch = GlideinWatch(DirectorContext(folders, grid.link, systems, lambda: grid.now), limits)
    await watch.refresh(QueueFailures())
    assert grid.link.reports == []


async def test_end_of_output_of_a_dead_pilot_is_sent_once_it_is_collected(grid: DirectorGrid) -> None:
    grid.link.waiting = 1
    director = grid.director()
    await director.run_once()
    (request,) = grid.batch.requests.values()
    (request.folder / LOG_NAME).write_bytes(b"x" * 20_000 + b"the glidein has no Python\n")
    grid.batch.fails_collect = True
    grid.batch.statuses["fake.1"] = GlideinStatus(GlideinState.ENDED, "exit code 1", exit_code=1)
    grid.link.waiting = 0
    await director.run_once()
    assert grid.link.logs == {}, "it lies elsewhere"
    grid.batch.fails_collect = False
    grid.now += timedelta(hours=1)
    await director.run_once()
    (log_of_pilot,) = grid.link.logs.values()
    assert (len(log_of_pilot), log_of_pilot[-26:]) == (16 * 1024, "the glidein has no Python\n")
