"""Stable interfaces for scripts: JSON keys, exit codes and environment, with the real command and stack."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pilotage_client.connection import UP_FILE
from support.commands import KEYS, Command, environment_of, up_command

TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?\+00:00")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return the data folder of a running stack."""
    with up_command(tmp_path_factory.mktemp("pinned") / "data") as up:
        yield up.start().data


@pytest.fixture
def pilotage(data: Path, tmp_path: Path) -> Command:
    """Return the command line of a user with a server address and a token."""
    up_file = json.loads((data / UP_FILE).read_text())
    token = Path(up_file["token_file"]).read_text()
    return Command(environment_of(tmp_path, PILOTAGE_SERVER=up_file["server"], PILOTAGE_TOKEN=token))


@pytest.fixture
def operator(data: Path, tmp_path: Path) -> Command:
    """Return the command line of the operator who started the stack."""
    return Command(environment_of(tmp_path, PILOTAGE_DATA=str(data)))


def submitted(pilotage: Command, folder: Path, script: str, *more: str) -> int:
    """Submit one job that runs a shell script; return its id."""
    file = folder / "job.toml"
    lines = ['executable = "/bin/sh"', f"arguments = {json.dumps(['-c', script])}", "request_cpus = 1", *more]
    file.write_text("\n".join(lines))
    (answer,) = pilotage.json_objects("submit", file)
    (job_id,) = answer["jobs"]
    assert isinstance(job_id, int)
    return job_id


def only_match(json_objects: list[dict[str, Any]], **fields: object) -> dict[str, Any]:
    (found,) = [entry for entry in json_objects if fields.items() <= entry.items()]
    return found


def test_keys_of_job_commands(pilotage: Command, tmp_path: Path) -> None:
    job = submitted(pilotage, tmp_path, "echo hello; echo 2 > two", 'stdout = "out"', 'output_files = ["two"]')

    assert pilotage("wait", job, "--timeout", 60) == ""
    (status,) = pilotage.json_objects("status", job)
    assert list(status) == KEYS["status"]
    assert (status["id"], status["state"], status["exit_code"], status["attempt"]) == (job, "DONE", 0, 1)
    assert all(TIME.fullmatch(status[key]) for key in ("submitted", "started", "ended"))
    assert all(status[key] for key in ("owner", "vo", "site", "ce", "queue", "node", "slot"))
    assert status["pool"] is None
    usage = "attempt cpus gpus wall_s suspended_s user_cpu_s system_cpu_s peak_memory_mib peak_disk_mib"
    assert list(status["usage"]) == usage.split()
    summed = pilotage.json_objects("usage", "--by", "owner,month")[0]
    assert list(summed) == ["owner", "month", *KEYS["usage"]]
    assert summed["done"] >= 1
    assert pilotage.json_objects("wait", job) == [status]

    assert pilotage("output", job) == "hello\n"
    assert pilotage("output", job, "--file", "two") == "2\n"
    files = pilotage.json_objects("output", job, "--list")
    assert {tuple(file) for file in files} == {tuple(KEYS["output"])}
    assert only_match(files, name="out") == {"name": "out", "size": 6, "truncated": False}
    assert {file["name"] for file in files} >= {"out", "two"}
    written = pilotage("output", job, "--to", tmp_path / "back").splitlines()
    assert sorted(written) == sorted(str(tmp_path / "back" / file["name"]) for file in files)
    assert (tmp_path / "back" / "out").read_text() == "hello\n"

    events = pilotage.json_objects("events", job)
    assert {tuple(event) for event in events} == {tuple(KEYS["events"])}
    assert (events[0]["from"], events[-1]["to"]) == ("RECEIVED", "DONE")
    assert "DONE" in pilotage("events", job, "--follow").splitlines()[-1]


def test_submit_prints_ids_and_warnings(pilotage: Command, tmp_path: Path) -> None:
    (tmp_path / "one.jdl").write_text('Executable = "/bin/true"; Nonsense = 1;')
    (tmp_path / "three.toml").write_text('executable = "/bin/true"\ncount = 3')
    (answer,) = pilotage.json_objects("submit", tmp_path / "one.jdl", tmp_path / "three.toml")
    assert list(answer) == KEYS["submit"]
    assert len(answer["jobs"]) == 4
    (warning,) = answer["warnings"]
    assert warning == f"{tmp_path}/one.jdl: Nonsense has no meaning here and is kept as an attribute"
    pilotage("wait", *answer["jobs"], "--timeout", 60)


def test_why_explains_a_job_without_eligible_queue(pilotage: Command, tmp_path: Path) -> None:
    job = submitted(pilotage, tmp_path, "exit", "[requirements]", 'Memory = "900 TB"')
    (why,) = pilotage.json_objects("why", job)
    assert list(why) == KEYS["why"]
    assert (why["state"], why["eligible"], why["requirements"]) == ("WAITING", [], {"Memory": "900 TB"})
    assert [list(entry) for entry in why["excluded"]] == [["parameter", "asked", "queues", "queues_alone", "example"]]
    assert TIME.fullmatch(why["pool_mapped"])
    pool = only_match(pilotage.json_objects("pools"), id=why["pool"])
    assert list(pool) == KEYS["pools"]
    assert (pool["waiting"], pool["queues"]) == (1, [])
    assert re.fullmatch("[0-9a-f]{64}", pool["id"])
    assert f"mapped {why['pool_mapped'][5:10]} " in pilotage("why", job)
    pilotage("remove", job)


def test_keys_of_grid_commands(pilotage: Command, operator: Command, data: Path, tmp_path: Path) -> None:
    job = submitted(pilotage, tmp_path, "exit")
    pilotage("wait", job)
    (queue,) = pilotage.json_objects("queues")
    assert list(queue) == KEYS["queues"]
    (pilot,) = operator.json_objects("pilots")
    assert list(pilot) == KEYS["pilots"]
    slots = operator.json_objects("slots")
    assert {tuple(slot) for slot in slots} == {tuple(KEYS["slots"])}
    assert {slot["pilot"] for slot in slots} == {pilot["stamp"]}
    (tree,) = operator.json_objects("tree", "show")
    assert list(tree) == KEYS["tree show"]
    assert (tree["format"], tree["text"]) == ("toml", (data / "tree.toml").read_text())
    assert TIME.fullmatch(tree["created"])
    (change,) = operator.json_objects("tree", "put", data / "tree.toml", "--dry-run")
    assert list(change) == KEYS["tree put"]
    place = "/".join(pilot[key] for key in ("site", "ce", "queue"))
    (credential,) = operator.json_objects("pilot-token", place, "--to", tmp_path / "token")
    assert list(credential) == KEYS["pilot-token"]
    (identity,) = pilotage.json_objects("whoami")
    assert list(identity) == KEYS["whoami"]


def test_keys_of_bans(operator: Command) -> None:
    operator("ban", "nowhere-else", "--reason", "flood", exits=2)
    operator("ban", "local", "--reason", "flood")
    (ban,) = operator.json_objects("bans")
    assert list(ban) == KEYS["bans"]
    assert (ban["node"], ban["site"], ban["ce"], ban["reason"], ban["until"]) == ("local", "local", None, "flood", None)
    operator("unban", "local")
    assert operator("unban", "local", exits=2) == ""


def test_exit_code_1_is_a_failure_of_the_request(pilotage: Command, tmp_path: Path) -> None:
    job = submitted(pilotage, tmp_path, "exit 7")
    (ended,) = pilotage.json_objects("wait", job, exits=1)
    assert (ended["state"], ended["exit_code"]) == ("FAILED", 7)
    assert pilotage("hold", job, exits=1) == ""
    waiting = submitted(pilotage, tmp_path, "exit", 'sites = ["elsewhere"]')
    pilotage("wait", waiting, "--timeout", 0.1, exits=1)
    (held,) = pilotage.json_objects("hold", waiting)
    assert (list(held), held["state"], held["refusal"]) == (KEYS["hold"], "HELD", None)
    pilotage("output", waiting, exits=1)
    pilotage("remove", waiting)


def test_exit_code_2_is_an_invalid_request(pilotage: Command, tmp_path: Path) -> None:
    (tmp_path / "broken.jdl").write_text("Executable = ")
    for arguments in (
        ("status", "999999"),
        ("status", "x"),
        ("why", "999999"),
        ("submit", tmp_path / "broken.jdl"),
        ("submit", tmp_path / "none.toml"),
        ("bans",),  # needs the role operator
        ("nonsense",),
        ("status", "--nonsense"),
    ):
        done = pilotage.run(*arguments)
        assert (done.returncode, done.stdout) == (2, ""), arguments
        assert done.stderr


def test_exit_code_3_is_an_unreachable_server(pilotage: Command) -> None:
    pilotage.environment["PILOTAGE_SERVER"] = "127.0.0.1:1"
    for arguments in (("status", 1), ("wait", 1, "--patience", 0), ("events", 1, "-f", "--patience", 0), ("pools",)):
        done = pilotage.run(*arguments)
        assert (done.returncode, done.stdout) == (3, ""), arguments
        assert done.stderr == "pilotage: no server answers at 127.0.0.1:1: Connection refused\n"


def test_options_override_the_environment(pilotage: Command, data: Path, tmp_path: Path) -> None:
    up_file = json.loads((data / UP_FILE).read_text())
    pilotage.environment |= {"PILOTAGE_SERVER": "127.0.0.1:1", "PILOTAGE_TOKEN": "nobody's"}
    options = ("--server", up_file["server"], "--token-file", up_file["operator_token_file"])
    (identity,) = pilotage.json_objects("whoami", *options)
    assert "operator" in identity["roles"]
