"""The bundles that a site director sends its pilots with."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from pilotage.resource_tree import QueueId
from pilotage_agents.settings import read_settings
from support.director_grid import DirectorGrid, a_queue


@pytest.fixture
def grid(tmp_path: Path) -> DirectorGrid:
    return DirectorGrid(tmp_path / "director")


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    path = tmp_path / "pilot-cp311.pyz"
    path.write_text("the pilot")
    return path


async def test_a_bundle_goes_with_each_pilot_and_is_run_in_its_folder(grid: DirectorGrid, bundle: Path) -> None:
    grid.link.waiting = 2
    await grid.director(pilot_bundle=bundle, python="python3.11").run_once()
    first, second = grid.batch.requests.values()
    assert first.command == ("python3.11", "pilot-cp311.pyz", "run", "--config", "pilot.json")
    assert (first.folder / "pilot-cp311.pyz").read_text() == "the pilot"
    # However many pilots are sent, the disk holds it once.
    assert (first.folder / "pilot-cp311.pyz").samefile(second.folder / "pilot-cp311.pyz")


async def test_a_new_bundle_goes_with_the_next_pilots_and_changes_none_that_was_sent(
    grid: DirectorGrid, bundle: Path
) -> None:
    director = grid.director(pilot_bundle=bundle)
    grid.link.waiting = 1
    await director.run_once()
    await asyncio.to_thread(bundle.write_text, "the pilot of tomorrow")
    grid.link.waiting = 2
    await director.run_once()
    sent = [(request.folder / bundle.name).read_text() for request in grid.batch.requests.values()]
    assert sent == ["the pilot", "the pilot of tomorrow"]


async def test_queues_may_have_bundles_of_their_own(grid: DirectorGrid, bundle: Path, tmp_path: Path) -> None:
    arm = tmp_path / "pilot-aarch64.pyz"
    arm.write_text("for arm")
    grid.link.tree = (a_queue(), a_queue(QueueId("Lyon", "ce1", "arm")))
    grid.link.waiting = 2
    override = {"queues": ["*/*/arm"], "pilot_bundle": arm, "python": "/opt/python/bin/python3"}
    await grid.director(pilot_bundle=bundle, overrides=[override]).run_once()
    commands = {request.queue: request.command[:2] for request in grid.batch.requests.values()}
    assert commands == {
        "short": ("python3", "pilot-cp311.pyz"),
        "arm": ("/opt/python/bin/python3", "pilot-aarch64.pyz"),
    }


async def test_a_bundle_that_is_not_there_is_named_and_nothing_is_left_of_the_pilots(
    grid: DirectorGrid, tmp_path: Path
) -> None:
    grid.link.waiting = 1
    await grid.director(pilot_bundle=tmp_path / "none.pyz").run_once()
    assert grid.link.ended == {"stamp0": f"{tmp_path}/none.pyz: No such file or directory"}
    assert list((grid.folder / "pilots").glob("stamp*")) == []


def test_relative_paths_of_bundles_start_from_the_folder_of_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "agents.toml").write_text("""
server = "127.0.0.1:1"
token = "t"
[site_director]
folder = "director"
pilot_bundle = "pilot.pyz"
batch_systems = { here = { type = "local" } }
overrides = [{ queues = ["*/*/arm"], pilot_bundle = "arm/pilot.pyz" }, { queues = ["*/*/old"] }]
""")
    director = read_settings(tmp_path / "agents.toml").site_director
    assert director is not None
    assert director.pilot_bundle == tmp_path / "pilot.pyz"
    assert [each.pilot_bundle for each in director.overrides] == [tmp_path / "arm" / "pilot.pyz", None]
