"""Pilots from a bundle on a real Slurm whose nodes have a bare Python and no home."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from support.packages import BARE_PYTHON
from support.slurm import SlurmCluster
from support.slurm_site import Site, over_ssh, running_site
from support.sshd import SshServer


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    """Return the scratch folder of the batch jobs."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    return folder


@pytest.fixture(params=["shared folders", "node folders", "over ssh"])
def delivery(request: pytest.FixtureRequest, tmp_path: Path, scratch: Path, pilot_bundle: Path) -> str:
    """Return the settings for the delivery of files to pilots."""
    match request.param:
        case "over ssh":
            sshd: SshServer = request.getfixturevalue("sshd")
            return over_ssh(sshd.settings(folder=str(tmp_path / "there")))
        case "node folders":
            return f"node_folder = {json.dumps(str(scratch))}\nnode_bundle = {json.dumps(str(pilot_bundle))}"
        case _:
            return ""


@pytest.fixture
def site(slurm: SlurmCluster, tmp_path: Path, scratch: Path, pilot_bundle: Path, delivery: str) -> Iterator[Site]:
    bare = f"--export=PATH=/usr/bin:/bin,HOME=/nonexistent,TMPDIR={scratch}"
    more = f"""
sbatch_options = {json.dumps([bare])}
{delivery}
[[site_director.overrides]]
queues = ["*/*/*"]
python = {json.dumps(BARE_PYTHON[0])}
pilot_bundle = {json.dumps(str(pilot_bundle))}
"""
    with running_site(slurm, tmp_path, more) as running:
        yield running


def logs_are_complete(in_folders: Iterable[Path], on_nodes: Iterable[Path]) -> bool:
    """Return whether both pilots have a log, in their folders or on the nodes."""
    return (len(list(in_folders)), len(list(on_nodes))) in ((2, 0), (0, 2))


def test_pilots_run_from_the_bundle_on_bare_nodes(site: Site, scratch: Path) -> None:
    ids = site.submit(2)
    site.wait_until_running(ids)
    unpacked = list(scratch.glob("pilotage-pilot-*/bin/python"))
    assert len(unpacked) == 1
    site.open_gate()
    site.wait_until_done(ids)
    site.until(lambda: len(site.ended_pilots()) == site.submissions() == 2)
    assert set(site.ended_pilots()) == {"it had no job for 1 s"}
    site.until(
        lambda: logs_are_complete(site.folder.glob("director/pilots/*/pilot.log"), scratch.glob("pilotage-*.log"))
    )
    # Input files of pilots are removed from the nodes.
    assert {path.suffix for path in scratch.iterdir() if path.is_file()} <= {".log"}
