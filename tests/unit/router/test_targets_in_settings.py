"""What a job router's settings say of the places that copies go to."""

from __future__ import annotations

from pathlib import Path

import pytest

from pilotage.errors import InvalidInputError
from pilotage_agents.router.places.remote_server import ServerAccess
from pilotage_agents.router.settings import JobRouterSettings
from pilotage_agents.settings import read_settings


def settings(folder: Path, text: str) -> JobRouterSettings:
    path = folder / "agents.toml"
    begin = 'server = "localhost:1"\ntoken = "x"\n[job_router]\nfolder = "router"\ntable = "routes"\n'
    path.write_text(begin + text)
    found = read_settings(path).job_router
    assert found is not None
    return found


def test_other_servers_are_found_by_their_addresses_and_files_start_from_the_settings(tmp_path: Path) -> None:
    said = settings(
        tmp_path,
        '[job_router.servers."a.org:1, b.org:2"]\ntoken_file = "lyon.token"\n[job_router.servers."c.org:3"]\n',
    )
    assert said.server_access == {
        "a.org:1,b.org:2": ServerAccess(tmp_path / "lyon.token"),
        "c.org:3": ServerAccess(),
    }


@pytest.mark.parametrize(
    "text",
    [
        '[job_router.servers."a.org"]\n',
        '[job_router.servers."a.org:1"]\ntoken = "secret"\n',
    ],
)
def test_a_server_that_has_no_address_or_says_too_much_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(InvalidInputError, match="job_router"):
        settings(tmp_path, text)


@pytest.mark.parametrize(
    "text",
    ['node_folder = "/scratch"', 'ssh = { host = "gate", folder = "/scratch" }'],
)
def test_copies_are_not_pushed_where_nothing_of_theirs_would_come_back(tmp_path: Path, text: str) -> None:
    with pytest.raises(InvalidInputError, match="jobs return their output by a folder that the nodes see"):
        settings(tmp_path, f'[job_router.batch_systems.here]\ntype = "slurm"\n{text}\n')


def test_a_cluster_behind_ssh_that_sees_the_folder_takes_copies(tmp_path: Path) -> None:
    said = settings(tmp_path, '[job_router.batch_systems.here]\ntype = "slurm"\nssh = { host = "gate" }\n')
    assert [*said.batch_systems] == ["here"]
