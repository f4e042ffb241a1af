"""Folders of glideins: collected from batch systems, kept for a while, and deleted."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import ClassVar

import pytest

from pilotage.errors import WorldError
from pilotage_agents.site_director.glideins import GlideinFolders, GlideinRecord
from support.director_grid import QUEUE, DirectorGrid
from support.fake_batch_systems import FakeBatchSystem


@pytest.fixture
def grid(tmp_path: Path) -> DirectorGrid:
    return DirectorGrid(tmp_path)


class CountingBatchSystem(FakeBatchSystem):
    """A batch system that counts the requests for output."""

    times = 0

    async def collect(self, folders: Sequence[Path]) -> None:
        self.times += 1
        await super().collect(folders)


class WatchedFolders(GlideinFolders):
    """Folders that record their operations, and which of them ran in the thread of the event loop."""

    operations: ClassVar[set[str]] = set()
    blocking: ClassVar[set[str]] = set()

    def uncollected(self) -> tuple[GlideinRecord, ...]:
        self._record("uncollected")
        return super().uncollected()

    def mark_ended(self, stamp: str) -> None:
        self._record("mark_ended")
        super().mark_ended(stamp)

    def mark_collected(self, stamps: Iterable[str]) -> None:
        self._record("mark_collected")
        super().mark_collected(stamps)

    def prune(self, keep: int, now: datetime) -> None:
        self._record("prune")
        super().prune(keep, now)

    def _record(self, operation: str) -> None:
        self.operations.add(operation)
        if threading.current_thread() is threading.main_thread():
            self.blocking.add(operation)


def ended_glideins(grid: DirectorGrid, count: int) -> GlideinFolders:
    """Return the folders of `count` glideins that have ended and whose output is still to be collected."""
    folders = grid.folders()
    folders.open()
    for number in range(count):
        folders.prepare(GlideinRecord(f"stamp{number:04}", QUEUE, "local"), "token", (), {})
        folders.mark_ended(f"stamp{number:04}")
    return folders


async def test_only_the_newest_folders_of_ended_glideins_are_kept(grid: DirectorGrid) -> None:
    grid.link.waiting = 5
    director = grid.director(keep_ended=2)
    await director.run_once()
    for glidein_id in grid.batch.requests:
        grid.batch.end(glidein_id, 0)
    grid.link.waiting = 0
    await director.run_once()
    assert len(list(grid.folder.glob("pilots/*"))) == 2


async def test_unreadable_record_does_not_affect_other_glideins(grid: DirectorGrid) -> None:
    grid.link.waiting = 2
    await grid.director().run_once()
    (grid.folder / "pilots" / "stamp0" / "glidein.json").write_text("{")
    grid.batch.end("fake.2", 0, "done")
    grid.link.waiting = 0
    await grid.director().run_once()
    assert grid.link.ended == {"stamp1": "done"}


async def test_output_of_ended_glideins_is_collected_once_when_available(grid: DirectorGrid) -> None:
    grid.link.waiting = 2
    director = grid.director(keep_ended=0)
    await director.run_once()
    grid.link.waiting = 0
    grid.batch.end("fake.1", 0, "done")
    grid.batch.fails_collect = True
    await director.run_once()
    assert (grid.folder / "pilots" / "stamp0").exists()
    grid.batch.fails_collect = False
    await director.run_once()
    await director.run_once()
    assert grid.batch.collected == ["stamp0"]
    assert not (grid.folder / "pilots" / "stamp0").exists()


async def test_folders_of_rejected_glideins_are_collected_too(grid: DirectorGrid) -> None:
    grid.link.waiting, grid.batch.refuses = 1, "no"
    director = grid.director()
    await director.run_once()
    await director.run_once()
    assert grid.batch.collected == ["stamp0"]


async def test_file_operations_do_not_block_the_event_loop(grid: DirectorGrid, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = WatchedFolders(grid.folder / "pilots")
    monkeypatch.setattr(grid, "folders", lambda: watched)
    grid.link.waiting = 2
    director = grid.director()
    await director.run_once()
    grid.batch.end("fake.1", 0, "done")
    grid.batch.refuses, grid.link.waiting = "no", 3
    await director.run_once()
    await director.run_once()
    assert {"stamp0", "stamp2"} <= grid.link.ended.keys()
    assert "stamp0" in grid.batch.collected
    assert watched.operations == {"uncollected", "mark_ended", "mark_collected", "prune"}
    assert watched.blocking == set()


async def test_uncollectable_folder_does_not_delay_others(grid: DirectorGrid) -> None:
    ended_glideins(grid, 150)
    grid.batch.uncollectable = {"stamp0003"}
    director = grid.director()
    for _ in range(10):
        await director.run_once()
    assert sorted(grid.batch.collected) == [f"stamp{n:04}" for n in range(150) if n != 3]


async def test_uncollectable_folder_is_retried_with_growing_back_off(grid: DirectorGrid) -> None:
    batch_system = CountingBatchSystem(uncollectable={"stamp0000"})
    grid.batch = batch_system
    ended_glideins(grid, 1)
    director = grid.director()
    for _ in range(60):
        await director.run_once()
        grid.now += timedelta(minutes=1)
    assert batch_system.times == 2 + 5  # in the first cycles, then after 1, 2, 4, 8 and 16 minutes
    batch_system.uncollectable = set()
    grid.now += timedelta(hours=1)
    await director.run_once()
    assert grid.batch.collected == ["stamp0000"]


async def test_uncollected_folders_are_bounded_and_collected_later(grid: DirectorGrid) -> None:
    folders = ended_glideins(grid, 1010)
    grid.batch.fails_collect = True
    director = grid.director(keep_ended=5)
    await director.run_once()
    assert len(list(folders.root.glob("*/pilot.json"))) == 1000
    grid.batch.fails_collect = False
    for _ in range(12):
        await director.run_once()
    assert len(set(grid.batch.collected)) == 1010
    assert len(list(folders.root.glob("stamp*"))) == 5


def test_failed_preparation_deletes_the_folder_and_its_token(tmp_path: Path) -> None:
    class FullDiskFolders(GlideinFolders):
        def save(self, record: GlideinRecord) -> None:
            raise WorldError("no space left on device", transient=True)

    folders = FullDiskFolders(tmp_path / "pilots")
    folders.open()
    with pytest.raises(WorldError):
        folders.prepare(GlideinRecord("ab12", QUEUE, "local"), "secret", (), {})
    assert list(folders.root.iterdir()) == []


def test_missing_common_file_is_named_and_leaves_no_folder(tmp_path: Path) -> None:
    folders = GlideinFolders(tmp_path / "pilots", {"ca.pem": tmp_path / "gone"})
    folders.open()
    with pytest.raises(WorldError, match="gone: No such file or directory"):
        folders.prepare(GlideinRecord("ab12", QUEUE, "local"), "secret", (), {})
    assert list(folders.root.iterdir()) == []


def test_existing_folder_is_not_changed(tmp_path: Path) -> None:
    folders = GlideinFolders(tmp_path / "pilots")
    folders.open()
    record = GlideinRecord("ab12", QUEUE, "local")
    folders.prepare(record, "first", (), {})
    with pytest.raises(WorldError, match="File exists"):
        folders.prepare(record, "second", (), {})
    assert (folders.path_of("ab12") / "token").read_text() == "first"


async def test_unfinished_folder_is_deleted_after_an_hour(grid: DirectorGrid) -> None:
    folders = ended_glideins(grid, 1)
    for name, minutes in (("old", 61), ("young", 59)):
        (folders.root / name).mkdir()
        (folders.root / name / "token").write_text("secret")
        set_mtime(folders.root / name, grid.now - timedelta(minutes=minutes))
    set_mtime(folders.path_of("stamp0000"), grid.now - timedelta(days=1))
    await grid.director().run_once()
    assert sorted(path.name for path in folders.root.iterdir() if path.is_dir()) == ["stamp0000", "young"]


def set_mtime(path: Path, time: datetime) -> None:
    os.utime(path, (time.timestamp(), time.timestamp()))
