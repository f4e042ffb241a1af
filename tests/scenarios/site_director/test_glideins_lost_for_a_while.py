"""Glideins of a site director whose submission, record or output is lost for a while."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path

import pytest

from pilotage.errors import ServerUnreachableError, WorldError
from pilotage.values.pilots import GlideinReport
from pilotage_agents.batch_systems.base import GlideinRequest, GlideinState, GlideinStatus, Submission
from pilotage_agents.site_director.glideins import GlideinFolders, GlideinRecord
from pilotage_agents.site_director.ports import DirectorContext, GlideinReportAnswer
from pilotage_agents.site_director.queues import QueueFailures
from pilotage_agents.site_director.watch import GlideinWatch, WatchLimits
from support.director_grid import QUEUE, DirectorGrid, FakeDirectorLink
from support.fake_batch_systems import FakeBatchSystem


class Forgetful(FakeDirectorLink):
    """Does not hear the first report."""

    async def report_glideins(self, reports: Sequence[GlideinReport]) -> GlideinReportAnswer:
        if "report_glideins" not in self.calls:
            self.calls.append("report_glideins")
            raise ServerUnreachableError("the server does not answer")
        return await super().report_glideins(reports)


@pytest.fixture
def grid(tmp_path: Path) -> DirectorGrid:
    return DirectorGrid(tmp_path)


async def test_a_pilot_that_its_batch_system_comes_to_late_is_adopted_and_its_like_is_not_sent(
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
    assert [(each.stamp, each.glidein_id) for each in grid.link.reports] == [("stamp0", ""), ("stamp0", "fake.1")]
    assert len(grid.link.registered) == 1


async def test_a_pilot_that_may_be_in_a_batch_system_which_is_away_calls_for_no_other(grid: DirectorGrid) -> None:
    grid.link.waiting, grid.batch.loses_answers = 1, True
    director = grid.director()
    await director.run_once()
    grid.batch.is_reachable = False
    for _ in range(30):
        grid.now += timedelta(minutes=1)
        await director.run_once()
    assert len(grid.link.registered) == 1
    assert [(each.stamp, each.ended) for each in grid.link.reports] == [("stamp0", False)]


async def test_pilots_of_a_round_that_was_cut_off_are_found_again_by_the_next(grid: DirectorGrid) -> None:
    class Slow(FakeBatchSystem):
        taken = asyncio.Event()

        async def submit_many(self, requests: Sequence[GlideinRequest]) -> tuple[Submission, ...]:
            await super().submit_many(requests)
            self.taken.set()
            return await asyncio.Future()

    slow = Slow()
    grid.batch, grid.link.waiting = slow, 2
    director = grid.director()
    first_round = asyncio.create_task(director.run_once())
    await slow.taken.wait()
    first_round.cancel()
    await asyncio.wait([first_round])
    grid.now += timedelta(minutes=1)
    await director.run_once()
    assert [(each.stamp, each.glidein_id) for each in grid.link.reports if each.glidein_id] == [
        ("stamp0", "fake.1"),
        ("stamp1", "fake.2"),
    ]
    for glidein_id in slow.requests:
        slow.end(glidein_id, 0, "done")
    grid.link.waiting = 0
    await director.run_once()
    assert grid.link.ended == dict.fromkeys(["stamp0", "stamp1"], "done")


async def test_pilots_of_a_round_that_was_cut_off_before_they_were_submitted_are_given_up(grid: DirectorGrid) -> None:
    class Stuck(FakeBatchSystem):
        asked = asyncio.Event()

        async def submit_many(self, requests: Sequence[GlideinRequest]) -> tuple[Submission, ...]:
            self.asked.set()
            return await asyncio.Future()

    stuck = Stuck()
    grid.batch, grid.link.waiting = stuck, 1
    director = grid.director(lost_after_s=60)
    first_round = asyncio.create_task(director.run_once())
    await stuck.asked.wait()
    first_round.cancel()
    await asyncio.wait([first_round])
    grid.link.waiting = 0
    await director.run_once()
    assert grid.link.ended == {}
    grid.now += timedelta(seconds=60)
    await director.run_once()
    assert grid.link.ended == {"stamp0": "it was never submitted"}


async def test_pilots_whose_records_cannot_be_written_are_watched_all_the_same(
    grid: DirectorGrid, monkeypatch: pytest.MonkeyPatch
) -> None:
    class FullDisk(GlideinFolders):
        def save(self, record: GlideinRecord) -> None:
            if record.glidein_id:
                raise WorldError("no space left on device", transient=True)
            super().save(record)

    monkeypatch.setattr(grid, "folders", lambda: FullDisk(grid.folder / "pilots"))
    grid.link.waiting = 3
    director = grid.director()
    await director.run_once()
    assert [report.stamp for report in grid.link.reports] == ["stamp0", "stamp1", "stamp2"]
    grid.link.waiting = 0
    for glidein_id in grid.batch.requests:
        grid.batch.end(glidein_id, 0, "done")
    await director.run_once()
    assert set(grid.link.ended) == {"stamp0", "stamp1", "stamp2"}


async def test_a_refusal_that_the_server_did_not_hear_is_told_later(grid: DirectorGrid) -> None:
    grid.link = Forgetful(grid.link.tree, waiting=2)
    grid.batch.refuses = "no"
    director = grid.director(lost_after_s=60)
    await director.run_once()
    assert grid.link.ended == {}
    grid.link.waiting = 0
    for _ in range(3):
        await director.run_once()
        grid.now += timedelta(seconds=60)
    assert grid.link.ended == dict.fromkeys(["stamp0", "stamp1"], "it was never submitted")


def told(grid: DirectorGrid) -> list[tuple[str, str, bool]]:
    """Return what the server has heard of glideins since this was last asked, in order."""
    heard = [(each.stamp, each.glidein_id, each.ended) for each in grid.link.reports]
    grid.link.reports.clear()
    return heard


async def test_an_id_that_the_server_did_not_hear_is_told_at_the_next_look_whatever_the_batch_system_says(
    grid: DirectorGrid,
) -> None:
    grid.link = Forgetful(grid.link.tree, waiting=1)
    director = grid.director()
    await director.run_once()
    assert told(grid) == []
    grid.batch.is_reachable = False
    await director.run_once()
    assert told(grid) == [("stamp0", "fake.1", False)]


async def test_the_server_hears_every_hour_of_glideins_that_their_batch_system_has(grid: DirectorGrid) -> None:
    grid.link.waiting = 1
    director = grid.director()
    await director.run_once()
    assert told(grid) == [("stamp0", "fake.1", False)]
    grid.link.waiting = 0
    for minutes, is_reachable, times in ((59, True, 0), (1, True, 1), (60, False, 0), (0, True, 1), (1, True, 0)):
        grid.now += timedelta(minutes=minutes)
        grid.batch.is_reachable = is_reachable
        await director.run_once()
        assert told(grid) == [("stamp0", "fake.1", False)] * times


async def test_a_director_that_was_restarted_tells_what_its_batch_system_has_and_nothing_that_it_does_not_know(
    grid: DirectorGrid,
) -> None:
    grid.link.waiting = 1
    await grid.director().run_once()
    told(grid)
    director = grid.director()
    grid.batch.is_reachable = False
    await director.run_once()
    assert told(grid) == []
    grid.batch.is_reachable = True
    await director.run_once()
    assert told(grid) == [("stamp0", "fake.1", False)]


async def test_many_glideins_are_told_in_several_reports(grid: DirectorGrid) -> None:
    grid.folders().open()
    for number in range(2001):
        record = GlideinRecord(f"stamp{number}", QUEUE, "local", f"fake.{number}")
        grid.folders().prepare(record, "token", (), {})
        grid.batch.statuses[record.glidein_id] = GlideinStatus(GlideinState.WAITING)
    await grid.director().run_once()
    assert grid.link.calls.count("report_glideins") == 3
    assert len({stamp for stamp, _, _ in told(grid)}) == 2001


async def test_records_are_read_beside_the_event_loop(grid: DirectorGrid, monkeypatch: pytest.MonkeyPatch) -> None:
    readers: list[threading.Thread] = []

    class Watched(GlideinFolders):
        def records(self) -> tuple[GlideinRecord, ...]:
            readers.append(threading.current_thread())
            return super().records()

    monkeypatch.setattr(grid, "folders", lambda: Watched(grid.folder / "pilots"))
    await grid.director().run_once()
    assert len(readers) == 1
    assert readers[0] is not threading.current_thread()


async def test_a_queue_whose_pilots_cannot_be_started_is_left_alone_for_a_while(grid: DirectorGrid) -> None:
    grid.link.waiting = 1
    director = grid.director()
    await director.run_once()
    grid.batch.statuses["fake.1"] = GlideinStatus(GlideinState.ENDED, "LAUNCH_FAILED", has_failed=True)
    await director.run_once()
    assert len(grid.submitted) == 1
    (line,) = await director.dry_run()
    assert "the last: a pilot ended with LAUNCH_FAILED" in line


async def test_batch_systems_are_asked_at_the_same_time(grid: DirectorGrid) -> None:
    both = asyncio.Barrier(2)

    class Other(FakeBatchSystem):
        async def poll_all(self, glidein_ids: Sequence[str]) -> Mapping[str, GlideinStatus]:
            async with asyncio.timeout(30):
                await both.wait()
            return await super().poll_all(glidein_ids)

    folders = grid.folders()
    folders.open()
    systems = {"a": Other(), "b": Other()}
    for name in systems:
        folders.prepare(GlideinRecord(f"stamp-{name}", QUEUE, name, "id"), "token", (), {})
    terms = WatchLimits(keep_ended=5, lost_after=timedelta(), credential=timedelta(days=1))
    watch = GlideinWatch(DirectorContext(folders, grid.link, systems, lambda: grid.now), terms)
    await watch.refresh(QueueFailures())
    assert grid.link.reports == []
