"""A real Slurm whose nodes have a bare Python and no home: pilots run from the bundle that goes with them."""

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
    """Return the folder that the nodes' batch jobs have for scratch."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    return folder


@pytest.fixture(params=["in the pilots' folders", "nowhere that nodes see", "over ssh"])
def way(request: pytest.FixtureRequest, tmp_path: Path, scratch: Path, pilot_bundle: Path) -> str:
    """Return the director's settings of how pilots get to what they are given."""
    match request.param:
        case "over ssh":
            sshd: SshServer = request.getfixturevalue("sshd")
            return over_ssh(sshd.settings(folder=str(tmp_path / "there")))
        case "nowhere that nodes see":
            return f"node_folder = {json.dumps(str(scratch))}\nnode_bundle = {json.dumps(str(pilot_bundle))}"
        case _:
            return ""


@pytest.fixture
def site(slurm: SlurmCluster, tmp_path: Path, scratch: Path, pilot_bundle: Path, way: str) -> Iterator[Site]:
    bare = f"--export=PATH=/usr/bin:/bin,HOME=/nonexistent,TMPDIR={scratch}"
    more = f"""
sbatch_options = {json.dumps([bare])}
{way}
[[site_director.overrides]]
queues = ["*/*/*"]
python = {json.dumps(BARE_PYTHON[0])}
pilot_bundle = {json.dumps(str(pilot_bundle))}
"""
    with running_site(slurm, tmp_path, more) as found:
        yield found


def printed(in_folders: Iterable[Path], on_nodes: Iterable[Path]) -> bool:
    """Return whether both pilots' output is in their folders, or on the nodes."""
    return (len(list(in_folders)), len(list(on_nodes))) in ((2, 0), (0, 2))


def test_pilots_run_from_their_bundle_on_nodes_that_have_nothing(site: Site, scratch: Path) -> None:
    ids = site.submit(2)
    site.all_run(ids)
    unpacked = list(scratch.glob("pilotage-pilot-*/bin/python"))
    assert len(unpacked) == 1
    site.open_gate()
    site.all_done(ids)
    site.until(lambda: len(site.ended_pilots()) == site.submissions() == 2)
    assert set(site.ended_pilots()) == {"it had no job for 1 s"}
    site.until(lambda: printed(site.folder.glob("director/pilots/*/pilot.log"), scratch.glob("pilotage-*.log")))
    # A node keeps nothing that was given to a pilot.
    assert {path.suffix for path in scratch.iterdir() if path.is_file()} <= {".log"}
