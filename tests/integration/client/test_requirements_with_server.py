"""Requirements of jobs against a running server: eligible parts of its tree, and what users see of their jobs."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from pilotage.errors import InvalidInputError
from pilotage_client.api import Client
from pilotage_server.core.identity import Role
from support.commands import KEYS, Command, environment_of
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


def test_dry_run_shows_what_would_help_and_stores_nothing(pilotage: Command, tmp_path: Path) -> None:
    file = tmp_path / "big.toml"
    file.write_text('executable = "/bin/true"\ncount = 5\n[requirements]\nMemory = 6000\nOS = "el9"\n')
    before = pilotage.json_objects("status", "--jobs", "--all", "--limit", 0)
    lines = pilotage("submit", "--dry-run", file).splitlines()
    assert lines[0] == "5 jobs would be submitted"
    assert lines[1].startswith("Quota: alice of the VO ")
    table = lines[lines.index("A single change that opens more queues:") + 2 :][:2]
    assert [line.split() for line in table] == [
        ["Memory", "6000", "MiB", "4000", "MiB", "+2", "CERN/ce01/long"],
        ["OS", "el9", "el9,", "el7", "+1", "CERN/ce02/long"],
    ]
    (tried,) = pilotage.json_objects("submit", "--validate-only", file)
    assert list(tried) == [*KEYS["submit"], "quotas", "outlooks"]
    (outlook,) = tried["outlooks"]
    assert (tried["jobs"], outlook["jobs"], outlook["start"]["why_none"]) == ([], 5, "no queue can run it")
    change = outlook["relaxations"][0]
    assert (change["field"], change["value"], change["opens"]) == ("requirements.Memory", 4000, 2)
    assert pilotage.json_objects("status", "--jobs", "--all", "--limit", 0) == before

    # The job that is edited so gets these queues.
    (job_id,) = pilotage.json_objects("submit", file)[0]["jobs"][:1]
    pilotage("edit", job_id, "--set", f"{change['field']}={change['value']}")
    assert len(pilotage.json_objects("why", job_id)[0]["eligible"]) == 2


@pytest.mark.parametrize(
    "options",
    [("--memory", "6 GB"), ("--require", "Memory=6000"), ("--site", "RAL"), ("--require", "OS=el8")],
    ids=" ".join,
)
def test_command_that_why_advises_opens_queues(pilotage: Command, options: Sequence[str]) -> None:
    (job_id,) = json.loads(pilotage("submit", "--json", *options, "--", "/bin/true"))["jobs"]
    (before,) = pilotage.json_objects("why", job_id)
    (advice,) = re.findall("To make the first change: `pilotage (.*)`", pilotage("why", job_id))
    pilotage(*shlex.split(advice))
    (after,) = pilotage.json_objects("why", job_id)
    assert len(after["eligible"]) - len(before["eligible"]) == before["relaxations"][0]["opens"]


def test_dry_run_of_a_tree_names_jobs_and_queues(pilotage: Command, grid: RunningServer, tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text('executable = "/bin/true"\nsites = ["FNAL"]\n[requirements]\nMemory = 3999\n')
    (job_id,) = pilotage.json_objects("submit", tmp_path / "job.toml")[0]["jobs"]
    smaller = json.loads(json.dumps(TREE))
    del smaller["sites"]["FNAL"]
    (tmp_path / "tree.json").write_text(json.dumps(smaller))
    token = grid.token(Role.OPERATOR, owner="olga")
    operator = Command(environment_of(tmp_path, PILOTAGE_SERVER=grid.address, PILOTAGE_TOKEN=token))
    (answer,) = operator.json_objects("tree", "put", tmp_path / "tree.json", "--dry-run")
    assert list(answer) == KEYS["tree put"]
    assert job_id in answer["first_stuck"]
    assert answer["jobs_stuck"] == len(answer["first_stuck"])
    change = next(each for each in answer["changes"] if each["requirements"] == {"Memory": 3999})
    assert (change["vo"], change["waiting"], change["lost"]) == (VO, 1, ["FNAL/ce/q"])
    shown = operator("tree", "put", tmp_path / "tree.json", "--dry-run")
    stuck = ", ".join(map(str, answer["first_stuck"]))
    assert f"waiting jobs that become stuck: {answer['jobs_stuck']} ({stuck})" in shown
    assert "1: FNAL/ce/q" in shown
    assert len(pilotage.json_objects("why", job_id)[0]["eligible"]) == 1
