"""The folders of attempts and pilots go when they are over, whatever became of them."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pilotage_pilot.supervise.folders import PilotFolder, remove_leftovers
from support.payloads import shell
from support.real_workshop import a_workshop
from support.until import until


async def test_a_forgotten_attempt_leaves_nothing_whatever_it_did_to_its_folder(tmp_path: Path) -> None:
    async with a_workshop(tmp_path) as bench:
        job = shell("mkdir -p a/b/c; touch a/b/c/x; chmod 0 a/b/c a/b a; touch $TMPDIR/y")
        await bench.run(job)
        bench.workshop.forget(job.key)
        await until(lambda: not list(tmp_path.glob("*/jobs/*")))


def test_the_folder_of_a_dead_pilot_is_removed_by_the_next_and_that_of_a_living_one_stays(tmp_path: Path) -> None:
    living = PilotFolder(tmp_path)
    dead = PilotFolder(tmp_path)
    (dead.jobs / "1.1").mkdir()
    os.close(dead._lock)
    assert remove_leftovers(tmp_path) == (dead.path,)
    assert living.path.exists()
    living.remove()
    assert list(tmp_path.iterdir()) == []


def test_pilots_that_start_at_once_leave_each_other_their_folders(tmp_path: Path) -> None:
    def starts(_: int) -> tuple[tuple[Path, ...], PilotFolder]:
        return remove_leftovers(tmp_path), PilotFolder(tmp_path)

    with ThreadPoolExecutor(8) as pilots:
        started = list(pilots.map(starts, range(200)))
    assert [removed for removed, _ in started if removed] == []
    assert all(folder.jobs.is_dir() for _, folder in started)
    for _, folder in started:
        folder.remove()
