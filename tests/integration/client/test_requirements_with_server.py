"""Requirements of jobs against a running server: eligible parts of its tree, and what users see of their jobs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from pilotage.errors import InvalidInputError
from pilotage_client.api import Client
from pilotage_server.core.identity import Role
from support.commands import Command, environment_of
from support.server import VO, RunningServer, running_server

TREE = {
    "sites": {
        "CERN": {
            "ces": {
                "ce01": {"OS": "el9", "queues": {"long": {"Memory": 4000, "Tags": ["GPU", "arm"]}, "short": {}}},
                "ce02": {"OS": "el7", "queues": {"long": {"Memory": 8000}}},
            }
        },
        "FNAL": {"ces": {"ce": {"OS": "el9", "queues": {"q": {"Memory": 4000}}}}},
        "Elsewhere": {"VOs": ["lhcb"], "ces": {"ce": {"OS": "el9", "queues": {"q": {"Memory": 9000}}}}},
    }
}


KEYWORD = "is a keyword of the job: state it beside the Requirements section, not in it"


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Return a server with the tree."""
    with running_server(tmp_path_factory.mktemp("server-data")) as server:
        with Client(server.address, server.token(Role.OPERATOR, owner="olga")) as operator:
            operator.put_tree(json.dumps(TREE), "json")
        yield server


@pytest.fixture
def client(grid: RunningServer) -> Iterator[Client]:
    with Client(grid.address, grid.token(Role.USER, owner="alice")) as client:
        yield client


@pytest.fixture
def pilotage(grid: RunningServer, tmp_path: Path) -> Command:
    token = grid.token(Role.USER, owner="alice")
    return Command(environment_of(tmp_path, PILOTAGE_SERVER=grid.address, PILOTAGE_TOKEN=token))


def test_eligible_nodes_have_the_depth_of_their_level(client: Client) -> None:
    big = {"Memory": 3000}
    assert client.eligible_nodes(queue_select=big) == {
        "CERN": {"ce01": ["long"], "ce02": ["long"]},
        "FNAL": {"ce": ["q"]},
    }
    assert client.eligible_nodes(level="CE", queue_select=big) == {"CERN": ["ce01", "ce02"], "FNAL": ["ce"]}
    assert client.eligible_nodes(level="Site", queue_select=big) == ["CERN", "FNAL"]
    assert client.eligible_nodes(level="site", ce_select={"OS": {"el7", "el8"}}) == ["CERN"]
    assert client.eligible_nodes(ce_select={"OS": ["el9"]}, queue_select={"Tags": ["gpu", "ARM"]}) == {
        "CERN": {"ce01": ["long"]}
    }
    assert client.eligible_nodes(level="Site", queue_select={"Memory": 10**6}) == []


def test_invalid_selection_of_nodes_names_its_field(client: Client) -> None:
    with pytest.raises(InvalidInputError, match="level: 'rack' is not a level of the tree: Site, CE, Queue"):
        client.eligible_nodes(level="rack")
    with pytest.raises(InvalidInputError, match=r"ce_select\.OS: None is neither a number"):
        client.eligible_nodes(ce_select={"OS": None})
    with pytest.raises(InvalidInputError, match="Memory: an empty list"):
        client.eligible_nodes(queue_select={"Memory": []})


def test_eligible_parts_of_the_servers_tree_are_printed(pilotage: Command, tmp_path: Path) -> None:
    eligible = ("tree", "eligible", "--require", "Memory=3000")

    assert pilotage(*eligible) == "CERN/ce01/long\nCERN/ce02/long\nFNAL/ce/q\n"
    assert pilotage(*eligible, "--level", "ce") == "CERN/ce01\nCERN/ce02\nFNAL/ce\n"
    assert pilotage(*eligible, "--level", "Site", "--require-ce", "OS=el7") == "CERN\n"

    file = tmp_path / "tree.json"
    file.write_text(json.dumps(TREE))
    for level in ("Site", "CE", "Queue"):
        of_server = pilotage.json_objects(*eligible, "--level", level)
        assert of_server == pilotage.json_objects(*eligible, "--level", level, file, "--vo", VO)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("job.jdl", 'Executable = "/bin/true";\nRequirements = [\n  Memory = 4000;\n  Site = "CERN";\n];\n'),
        ("job.cfg", "Executable = /bin/true\nRequirements\n{\n  Site = CERN\n}\n"),
    ],
)
def test_keyword_among_requirements_is_refused_with_its_line(
    name: str, text: str, pilotage: Command, tmp_path: Path
) -> None:
    file = tmp_path / name
    file.write_text(text)

    for command in ("submit", "convert"):
        refused = pilotage.run(command, file)
        assert (refused.returncode, refused.stdout) == (2, "")
        assert refused.stderr == f"{file}:4: Site {KEYWORD}\n"


def test_job_in_cfg_is_submitted_with_its_requirements(pilotage: Command, client: Client, tmp_path: Path) -> None:
    file = tmp_path / "job.cfg"
    file.write_text("Executable = /bin/true\nSite = CERN\nRequirements\n{\n  Tags = GPU, arm\n  Memory = 3000\n}\n")

    (submitted,) = pilotage.json_objects("submit", file)

    assert submitted["warnings"] == []
    description = client.description(submitted["jobs"][0])
    assert (description.sites, description.requirements) == (("CERN",), {"Tags": ("GPU", "arm"), "Memory": 3000})
    (explained,) = pilotage.json_objects("why", submitted["jobs"][0])
    assert [(each["site"], each["queue"]) for each in explained["eligible"]] == [("CERN", "long")]


def test_why_blames_the_ban_of_the_wanted_site(pilotage: Command, grid: RunningServer, tmp_path: Path) -> None:
    (tmp_path / "job.jdl").write_text('Executable = "/bin/true"; Site = "FNAL";')
    job_id = pilotage.json_objects("submit", tmp_path / "job.jdl")[0]["jobs"][0]
    with Client(grid.address, grid.token(Role.OPERATOR, owner="olga")) as operator:
        operator.ban(["FNAL"], reason="power cut")
        explained = pilotage("why", job_id)
        operator.unban(["FNAL"])

    summary, *lines = explained.splitlines()
    assert summary.endswith("the 1 queue that could run it is banned: FNAL/ce/q: Ban: FNAL is banned: power cut.")
    exclusions = lines[lines.index("Excluded queues:") + 2 :][:2]
    assert [line.split()[0] for line in exclusions] == ["Ban", "Site"]


def test_sites_of_a_pool_are_shown_with_its_jobs(pilotage: Command, grid: RunningServer, tmp_path: Path) -> None:
    (tmp_path / "job.jdl").write_text('Executable = "/bin/true"; Requirements = [ Memory = 3000 ];')
    (tmp_path / "plain.jdl").write_text('Executable = "/bin/true";')
    (job_id,), (plain,) = (
        pilotage.json_objects("submit", tmp_path / f"{name}.jdl")[0]["jobs"] for name in ("job", "plain")
    )

    for command in ("status", "why"):
        shown = [pilotage.json_objects(command, each)[0]["pool_sites"] for each in (job_id, plain)]
        assert shown == [["CERN", "FNAL"], []]
    assert f"job {job_id}: sites of its pool: CERN, FNAL\n" in pilotage("status", job_id)
    assert "\nSites of the pool: CERN, FNAL\n" in pilotage("why", job_id)
    pilotage("remove", job_id)
    assert pilotage.json_objects("status", job_id)[0]["pool_sites"] == []
