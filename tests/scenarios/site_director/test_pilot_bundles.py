"""The bundles that a site director sends its pilots with."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
import threading
import zipfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from pilotage.resources.tree import QueueId
from pilotage_agents.settings import read_settings
from pilotage_agents.site_director.glideins import BundleStore, GlideinFolders, UnfinishedBundleError
from support.director_grid import DirectorGrid, a_queue


@pytest.fixture
def grid(tmp_path: Path) -> DirectorGrid:
    return DirectorGrid(tmp_path / "director")


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    path = tmp_path / "pilot-cp311.pyz"
    put_bundle(path, "the pilot")
    return path


def put_bundle(path: Path, pilot: str) -> None:
    with zipfile.ZipFile(path, "w") as bundle:
        bundle.writestr("pilot", pilot)


def pilot_in(path: Path) -> str:
    with zipfile.ZipFile(path) as bundle:
        return bundle.read("pilot").decode()


async def test_a_bundle_goes_with_each_pilot_and_is_run_in_its_folder(grid: DirectorGrid, bundle: Path) -> None:
    grid.link.waiting = 2
    await grid.director(pilot_bundle=bundle, python="python3.11").run_once()
    first, second = grid.batch.requests.values()
    assert first.command == ("python3.11", "pilot-cp311.pyz", "run", "--config", "pilot.json")
    assert pilot_in(first.folder / "pilot-cp311.pyz") == "the pilot"
    # However many pilots are sent, the disk holds it once.
    assert (first.folder / "pilot-cp311.pyz").samefile(second.folder / "pilot-cp311.pyz")


async def test_a_new_bundle_goes_with_the_next_pilots_and_changes_none_that_was_sent(
    grid: DirectorGrid, bundle: Path
) -> None:
    director = grid.director(pilot_bundle=bundle)
    grid.link.waiting = 1
    await director.run_once()
    await asyncio.to_thread(put_bundle, bundle, "the pilot of tomorrow")
    grid.link.waiting = 2
    await director.run_once()
    sent = [pilot_in(request.folder / bundle.name) for request in grid.batch.requests.values()]
    assert sent == ["the pilot", "the pilot of tomorrow"]


async def test_queues_may_have_bundles_of_their_own(grid: DirectorGrid, bundle: Path, tmp_path: Path) -> None:
    arm = tmp_path / "pilot-aarch64.pyz"
    put_bundle(arm, "for arm")
    grid.link.tree = (a_queue(), a_queue(QueueId("Lyon", "ce1", "arm")))
    grid.link.waiting = 2
    override = {"queues": ["*/*/arm"], "pilot_bundle": arm, "python": "/opt/python/bin/python3"}
    await grid.director(pilot_bundle=bundle, overrides=[override]).run_once()
    commands = {request.queue: request.command[:2] for request in grid.batch.requests.values()}
    assert commands == {
        "short": ("python3", "pilot-cp311.pyz"),
        "arm": ("/opt/python/bin/python3", "pilot-aarch64.pyz"),
    }


async def test_a_bundle_that_is_not_there_is_named_and_no_pilot_registered(grid: DirectorGrid, tmp_path: Path) -> None:
    grid.link.waiting = 1
    director = grid.director(pilot_bundle=tmp_path / "none.pyz")
    await director.run_once()
    assert "register_pilots" not in grid.link.calls
    (line,) = await director.dry_run()
    assert f"{tmp_path}/none.pyz: No such file or directory" in line


async def test_a_bundle_that_is_half_written_goes_with_no_pilot_and_its_queue_is_not_to_blame(
    grid: DirectorGrid, bundle: Path
) -> None:
    grid.link.waiting = 1
    whole = await asyncio.to_thread(bundle.read_bytes)
    await asyncio.to_thread(bundle.write_bytes, whole[: len(whole) // 2])
    director = grid.director(pilot_bundle=bundle)
    await director.run_once()
    assert "register_pilots" not in grid.link.calls
    assert [path.name for path in (grid.folder / "bundles").glob("*/*")] == []
    await asyncio.to_thread(bundle.write_bytes, whole)
    await director.run_once()
    (request,) = grid.batch.requests.values()
    assert pilot_in(request.folder / bundle.name) == "the pilot"


def test_of_a_bundle_that_is_written_again_and_again_every_copy_is_whole(tmp_path: Path) -> None:
    bundle, store = tmp_path / "pilot.pyz", BundleStore(tmp_path / "bundles")
    versions = []
    for size in range(30):  # each longer than the one before
        put_bundle(bundle, "x" * (200_000 + 1000 * size))
        versions.append(bundle.read_bytes())
    bundle.write_bytes(versions[0])
    writer = threading.Thread(target=write_slowly, args=(bundle, versions))
    writer.start()
    copies: set[bytes] = set()
    while writer.is_alive():
        with suppress(UnfinishedBundleError):
            copies.add(store.stored_copy(bundle).read_bytes())
    assert copies <= set(versions)
    assert store.stored_copy(bundle).read_bytes() == versions[-1]


def test_a_bundle_that_another_takes_the_place_of_as_it_is_copied_is_not_kept_for_that_one(
    tmp_path: Path, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = BundleStore(tmp_path / "bundles")
    os.utime(bundle, (1, 1))
    copy_times = shutil.copystat

    def overwritten_before(*arguments: Any, **options: Any) -> None:
        put_bundle(bundle, "the other")
        copy_times(*arguments, **options)

    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(shutil, "copystat", overwritten_before)
        with pytest.raises(UnfinishedBundleError):
            store.stored_copy(bundle)
    assert pilot_in(store.stored_copy(bundle)) == "the other"


def write_slowly(path: Path, versions: Iterable[bytes]) -> None:
    for version in versions:
        with path.open("wb", buffering=0) as file:
            for start in range(0, len(version), 4096):
                file.write(version[start : start + 4096])


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


def a_slurm(**settings: str) -> dict[str, object]:
    return {"local": {"type": "slurm", "ce_types": ["local"], **settings}}


async def test_where_nodes_see_no_folder_of_the_directors_a_pilot_gets_all_in_its_script(
    grid: DirectorGrid, bundle: Path
) -> None:
    grid.link.waiting, grid.link.pools = 1, ("p1", "p2")
    slurm = a_slurm(node_folder="/tmp", node_bundle="/opt/pilot.pyz")
    await grid.director(pilot_bundle=bundle, batch_systems=slurm).run_once()
    (request,) = grid.batch.requests.values()
    sha256 = hashlib.sha256(await asyncio.to_thread(bundle.read_bytes)).hexdigest()
    assert request.self_contained is not None
    assert request.self_contained.command == ("python3", "/opt/pilot.pyz", "run", "--config", "-")
    assert (request.self_contained.program, request.self_contained.sha256) == ("/opt/pilot.pyz", sha256)
    given = json.loads(request.self_contained.input_text)
    assert (given["token"], given["pools"], given["server"]) == ("token of stamp0", ["p1", "p2"], ["127.0.0.1:1"])
    assert not [name for name in given if name.endswith("_file")]
    assert not (request.folder / bundle.name).exists()


async def test_without_a_bundle_such_nodes_have_the_pilots_command(grid: DirectorGrid) -> None:
    grid.link.waiting = 1
    await grid.director(pilot_command=("/opt/pilot",), batch_systems=a_slurm(node_folder="/tmp")).run_once()
    (request,) = grid.batch.requests.values()
    assert request.self_contained is not None
    assert request.self_contained.command == ("/opt/pilot", "run", "--config", "-")
    assert request.self_contained.program == ""


def test_the_certificates_of_the_authorities_are_among_what_such_a_pilot_is_given(tmp_path: Path) -> None:
    (tmp_path / "authorities").write_text("PEM")
    folders = GlideinFolders(tmp_path / "pilots", {"ca.pem": tmp_path / "authorities"})
    assert json.loads(folders.inline_config("t", (), {"ca_file": "ca.pem"})) == {"ca": "PEM", "pools": [], "token": "t"}


@pytest.mark.parametrize(
    ("slurm", "words"),
    [
        ({"node_folder": "/tmp"}, "batch_systems.local needs a node_bundle"),
        ({"node_bundle": "/opt/pilot.pyz"}, "node_bundle needs a node_folder"),
    ],
    ids=["no bundle there", "nowhere to start it"],
)
def test_half_of_what_such_nodes_need_is_refused(
    grid: DirectorGrid, bundle: Path, slurm: dict[str, str], words: str
) -> None:
    with pytest.raises(ValidationError, match=words):
        grid.director(pilot_bundle=bundle, batch_systems=a_slurm(**slurm))
