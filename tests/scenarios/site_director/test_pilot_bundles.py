"""Pilot bundles that a site director submits with its glideins."""

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
from pilotage.settings import load_settings
from pilotage_agents.settings import AgentSettings
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


async def test_each_glidein_has_the_bundle_in_its_folder(grid: DirectorGrid, bundle: Path) -> None:
    grid.link.waiting = 2
    await grid.director(pilot_bundle=bundle, python="python3.11").run_once()
    first, second = grid.batch.requests.values()
    assert first.command == ("python3.11", "pilot-cp311.pyz", "run", "--config", "pilot.json")
    assert pilot_in(first.folder / "pilot-cp311.pyz") == "the pilot"
    # The folders share one file on disk.
    assert (first.folder / "pilot-cp311.pyz").samefile(second.folder / "pilot-cp311.pyz")


async def test_new_bundle_is_used_for_later_glideins_only(grid: DirectorGrid, bundle: Path) -> None:
    director = grid.director(pilot_bundle=bundle)
    grid.link.waiting = 1
    await director.run_once()
    await asyncio.to_thread(put_bundle, bundle, "the new pilot")
    grid.link.waiting = 2
    await director.run_once()
    sent = [pilot_in(request.folder / bundle.name) for request in grid.batch.requests.values()]
    assert sent == ["the pilot", "the new pilot"]


async def test_overrides_select_bundles_for_queues(grid: DirectorGrid, bundle: Path, tmp_path: Path) -> None:
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


async def test_missing_bundle_is_named_and_no_pilot_registered(grid: DirectorGrid, tmp_path: Path) -> None:
    grid.link.waiting = 1
    director = grid.director(pilot_bundle=tmp_path / "none.pyz")
    await director.run_once()
    assert "register_pilots" not in grid.link.calls
    (line,) = await director.dry_run()
    assert f"{tmp_path}/none.pyz: No such file or directory" in line


async def test_half_written_bundle_is_not_used_and_pauses_no_queue(grid: DirectorGrid, bundle: Path) -> None:
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


def test_copies_of_a_frequently_written_bundle_are_whole(tmp_path: Path) -> None:
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


def test_bundle_replaced_during_its_copy_is_rejected(
    tmp_path: Path, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = BundleStore(tmp_path / "bundles")
    os.utime(bundle, (1, 1))
    copy_times = shutil.copystat

    def overwrite_then_copy(*arguments: Any, **options: Any) -> None:
        put_bundle(bundle, "the new pilot")
        copy_times(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copystat", overwrite_then_copy)
        with pytest.raises(UnfinishedBundleError):
            store.stored_copy(bundle)
    assert pilot_in(store.stored_copy(bundle)) == "the new pilot"


def write_slowly(path: Path, versions: Iterable[bytes]) -> None:
    for version in versions:
        with path.open("wb", buffering=0) as file:
            for start in range(0, len(version), 4096):
                file.write(version[start : start + 4096])


def test_relative_bundle_paths_start_from_the_configuration_folder(tmp_path: Path) -> None:
    (tmp_path / "agents.toml").write_text("""
server = "127.0.0.1:1"
token = "t"
[site_director]
folder = "director"
pilot_bundle = "pilot.pyz"
batch_systems = { here = { type = "local" } }
overrides = [{ queues = ["*/*/arm"], pilot_bundle = "arm/pilot.pyz" }, { queues = ["*/*/old"] }]
""")
    director = load_settings(AgentSettings, tmp_path / "agents.toml", {}).site_director
    assert director is not None
    assert director.pilot_bundle == tmp_path / "pilot.pyz"
    assert [override.pilot_bundle for override in director.overrides] == [tmp_path / "arm" / "pilot.pyz", None]


def a_slurm(**settings: str) -> dict[str, object]:
    return {"local": {"type": "slurm", "ce_types": ["local"], **settings}}


async def test_nodes_without_shared_folder_get_everything_in_the_script(grid: DirectorGrid, bundle: Path) -> None:
    grid.link.waiting, grid.link.pools = 1, ("p1", "p2")
    slurm = a_slurm(node_folder="/tmp", node_bundle="/opt/pilot.pyz")
    await grid.director(pilot_bundle=bundle, batch_systems=slurm).run_once()
    (request,) = grid.batch.requests.values()
    sha256 = hashlib.sha256(await asyncio.to_thread(bundle.read_bytes)).hexdigest()
    assert request.self_contained is not None
    assert request.self_contained.command == ("python3", "/opt/pilot.pyz", "run", "--config", "-")
    assert (request.self_contained.program, request.self_contained.sha256) == ("/opt/pilot.pyz", sha256)
    config = json.loads(request.self_contained.input_text)
    assert (config["token"], config["pools"], config["server"]) == ("token of stamp0", ["p1", "p2"], ["127.0.0.1:1"])
    assert not [name for name in config if name.endswith("_file")]
    assert not (request.folder / bundle.name).exists()


async def test_nodes_without_bundle_use_the_pilot_command(grid: DirectorGrid) -> None:
    grid.link.waiting = 1
    await grid.director(pilot_command=("/opt/pilot",), batch_systems=a_slurm(node_folder="/tmp")).run_once()
    (request,) = grid.batch.requests.values()
    assert request.self_contained is not None
    assert request.self_contained.command == ("/opt/pilot", "run", "--config", "-")
    assert request.self_contained.program == ""


def test_inline_config_contains_the_certificates_of_authorities(tmp_path: Path) -> None:
    (tmp_path / "authorities").write_text("PEM")
    folders = GlideinFolders(tmp_path / "pilots", {"ca.pem": tmp_path / "authorities"})
    assert json.loads(folders.inline_config("t", (), {"ca_file": "ca.pem"})) == {"ca": "PEM", "pools": [], "token": "t"}


@pytest.mark.parametrize(
    ("slurm", "message"),
    [
        ({"node_folder": "/tmp"}, "batch_systems.local needs a node_bundle"),
        ({"node_bundle": "/opt/pilot.pyz"}, "node_bundle needs a node_folder"),
    ],
    ids=["no bundle", "no folder"],
)
def test_incomplete_node_settings_are_rejected(
    grid: DirectorGrid, bundle: Path, slurm: dict[str, str], message: str
) -> None:
    with pytest.raises(ValidationError, match=message):
        grid.director(pilot_bundle=bundle, batch_systems=a_slurm(**slurm))
