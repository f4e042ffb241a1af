"""What becomes of the folders of a site director's glideins, here and where its batch systems have them."""

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


class Counted(FakeBatchSystem):
    """A batch system that counts how often it is asked for output."""

    times = 0

    async def collect(self, folders: Sequence[Path]) -> None:
        self.times += 1
        await super().collect(folders)


class Watched(GlideinFolders):
    """Folders that say which of their work has held up the event loop."""

    held_up: ClassVar[set[str]] = set()

    def uncollected(self) -> tuple[GlideinRecord, ...]:
        self._note("to_collect")
        return super().uncollected()

    def mark_ended(self, stamp: str) -> None:
        self._note("ended")
        super().mark_ended(stamp)

    def mark_collected(self, stamps: Iterable[str]) -> None:
        self._note("collected")
        super().mark_collected(stamps)

    def prune(self, keep: int, now: datetime) -> None:
        self._note("prune")
        super().prune(keep, now)

    def _note(self, work: str) -> None:
        if threading.current_thread() is threading.main_thread():
            self.held_up.add(work)


def some_ended(grid: DirectorGrid, count: int) -> GlideinFolders:
    """Return the folders of `count` glideins that have ended and whose output is still to be collected."""
    folders = grid.folders()
    folders.open()
    for place in range(count):
        folders.prepare(GlideinRecord(f"stamp{place:04}", QUEUE, "local"), "token", (), {})
        folders.mark_ended(f"stamp{place:04}")
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


async def test_a_record_that_cannot_be_read_disturbs_no_other(grid: DirectorGrid) -> None:
    grid.link.waiting = 2
    await grid.director().run_once()
    (grid.folder / "pilots" / "stamp0" / "glidein.json").write_text("{")
    grid.batch.end("fake.2", 0, "done")
    grid.link.waiting = 0
    await grid.director().run_once()
    assert grid.link.ended == {"stamp1": "done"}


async def test_the_output_of_ended_pilots_is_collected_once_and_when_it_can_be(grid: DirectorGrid) -> None:
    grid.link.waiting = 2
    director = grid.director(keep_ended=0)
    await director.run_once()
    grid.link.waiting = 0
    grid.batch.end("fake.1", 0, "done")
    grid.batch.keeps_output = True
    await director.run_once()
    assert (grid.folder / "pilots" / "stamp0").exists()
    grid.batch.keeps_output = False
    await director.run_once()
    await director.run_once()
    assert grid.batch.collected == ["stamp0"]
    assert not (grid.folder / "pilots" / "stamp0").exists()


async def test_what_was_brought_for_pilots_that_were_refused_is_collected_too(grid: DirectorGrid) -> None:
    grid.link.waiting, grid.batch.refuses = 1, "no"
    director = grid.director()
    await director.run_once()
    await director.run_once()
    assert grid.batch.collected == ["stamp0"]


async def test_a_disk_that_is_slow_holds_up_no_lease_of_the_directors_turn(
    grid: DirectorGrid, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched(grid.folder / "pilots")
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
    assert watched.held_up == set()


async def test_one_folder_that_nobody_can_have_holds_up_no_other(grid: DirectorGrid) -> None:
    some_ended(grid, 150)
    grid.batch.stuck = {"stamp0003"}
    director = grid.director()
    for _ in range(10):
        await director.run_once()
    assert sorted(grid.batch.collected) == [f"stamp{n:04}" for n in range(150) if n != 3]


async def test_a_folder_that_nobody_can_have_is_asked_for_ever_more_seldom_until_it_comes(grid: DirectorGrid) -> None:
    asked = Counted(stuck={"stamp0000"})
    grid.batch = asked
    some_ended(grid, 1)
    director = grid.director()
    for _ in range(60):
        await director.run_once()
        grid.now += timedelta(minutes=1)
    assert asked.times == 2 + 5  # in the first rounds, then after 1, 2, 4, 8 and 16 minutes
    asked.stuck = set()
    grid.now += timedelta(hours=1)
    await director.run_once()
    assert grid.batch.collected == ["stamp0000"]


async def test_what_a_batch_system_does_not_give_back_fills_no_disk_and_is_not_forgotten(grid: DirectorGrid) -> None:
    folders = some_ended(grid, 1010)
    grid.batch.keeps_output = True
    director = grid.director(keep_ended=5)
    await director.run_once()
    assert len(list(folders.root.glob("*/pilot.json"))) == 1000
    grid.batch.keeps_output = False
    for _ in range(12):
        await director.run_once()
    assert len(set(grid.batch.collected)) == 1010
    assert len(list(folders.root.glob("stamp*"))) == 5


def test_a_folder_that_could_not_be_filled_is_gone_with_its_token(tmp_path: Path) -> None:
    class NoRecords(GlideinFolders):
        def save(self, record: GlideinRecord) -> None:
            raise WorldError("no space left on device", transient=True)

    folders = NoRecords(tmp_path / "pilots")
    folders.open()
    with pytest.raises(WorldError):
        folders.prepare(GlideinRecord("ab12", QUEUE, "local"), "secret", (), {})
    assert list(folders.root.iterdir()) == []


def test_a_file_that_is_for_all_and_is_not_there_is_named_and_leaves_no_folder(tmp_path: Path) -> None:
    folders = GlideinFolders(tmp_path / "pilots", {"ca.pem": tmp_path / "gone"})
    folders.open()
    with pytest.raises(WorldError, match="gone: No such file or directory"):
        folders.prepare(GlideinRecord("ab12", QUEUE, "local"), "secret", (), {})
    assert list(folders.root.iterdir()) == []


def test_a_folder_that_is_there_already_is_left_as_it_is(tmp_path: Path) -> None:
    folders = GlideinFolders(tmp_path / "pilots")
    folders.open()
    record = GlideinRecord("ab12", QUEUE, "local")
    folders.prepare(record, "first", (), {})
    with pytest.raises(WorldError, match="File exists"):
        folders.prepare(record, "second", (), {})
    assert (folders.path_of("ab12") / "token").read_text() == "first"


async def test_a_folder_over_which_a_director_was_stopped_goes_in_time(grid: DirectorGrid) -> None:
    folders = some_ended(grid, 1)
    for name, minutes in (("old", 61), ("young", 59)):
        (folders.root / name).mkdir()
        (folders.root / name / "token").write_text("secret")
        changed(folders.root / name, grid.now - timedelta(minutes=minutes))
    changed(folders.path_of("stamp0000"), grid.now - timedelta(days=1))
    await grid.director().run_once()
    assert sorted(path.name for path in folders.root.iterdir() if path.is_dir()) == ["stamp0000", "young"]


def changed(path: Path, then: datetime) -> None:
    os.utime(path, (then.timestamp(), then.timestamp()))
