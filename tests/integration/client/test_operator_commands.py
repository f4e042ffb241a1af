"""Commands of operators against a running server."""

from __future__ import annotations

import json
import shlex
import subprocess
from datetime import datetime
from pathlib import Path

import pytest

from pilotage.job_description import JobDescription
from pilotage.v1 import pilot_service_pb2, pilot_service_pb2_grpc
from pilotage_client.api import Client
from pilotage_client.cli.pilots import pilot_command
from pilotage_server.core.identity import Role
from support.commands import Command, environment_of
from support.server import VO, RunningServer

TREE = '{"sites": {"S": {"ces": {"C": {"queues": {"Q": {"Memory": 4000}}}}}}}'


@pytest.fixture
def pilotage(server: RunningServer, tmp_path: Path) -> Command:
    token = server.token(Role.OPERATOR, owner="olga")
    return Command(environment_of(tmp_path, PILOTAGE_SERVER=server.address, PILOTAGE_TOKEN=token))


def test_faults_of_an_uploaded_tree_name_the_file(pilotage: Command, tmp_path: Path) -> None:
    file = tmp_path / "tree.json"
    for text in ('{"sites": {"S": {"Enabled": "no", "ces": {"C": []}}}}', '{"sites": {,}}', "{}"):
        file.write_text(text)
        uploaded, resolved = pilotage.run("tree", "put", file), pilotage.run("tree", "resolve", file)
        assert (uploaded.returncode, uploaded.stdout) == (2, "")
        assert uploaded.stderr.startswith(f"{file}: ")
        assert sorted(uploaded.stderr.splitlines()) == sorted(resolved.stderr.splitlines())


def test_tree_show_prints_the_active_tree(pilotage: Command, tmp_path: Path) -> None:
    assert pilotage.json_objects("tree", "show") == [
        {"version": 0, "format": None, "created": None, "created_by": None, "text": ""}
    ]
    none = pilotage.run("tree", "show")
    assert (none.returncode, none.stdout, "there is no tree yet" in none.stderr) == (0, "", True)
    (tmp_path / "tree.json").write_text(TREE)
    pilotage("tree", "put", tmp_path / "tree.json")
    (shown,) = pilotage.json_objects("tree", "show")
    assert (shown["version"], shown["format"], shown["text"]) == (1, "json", TREE)
    assert "olga" in shown["created_by"]
    assert pilotage("tree", "show") == TREE


def test_queues_count_the_jobs_of_all_vos_for_operators(
    pilotage: Command, server: RunningServer, tmp_path: Path
) -> None:
    (tmp_path / "tree.json").write_text(TREE)
    pilotage("tree", "put", tmp_path / "tree.json")
    for vo in ("lhcb", "cms"):
        with Client(server.address, server.token(Role.USER, vo=vo)) as user:
            user.submit([JobDescription("/bin/true")])
    counts = [pilotage.json_objects("queues", *options)[0]["waiting"] for options in ((), ("--vo", "*"))]
    assert counts == [2, 2]
    assert pilotage.json_objects("queues", "--vo", "cms")[0]["waiting"] == 1
    assert pilotage("queues").rstrip().endswith("no site director serves this queue")


def test_pilots_are_shown_with_the_ids_of_their_batch_jobs(
    pilotage: Command, server: RunningServer, tmp_path: Path
) -> None:
    (tmp_path / "tree.json").write_text(TREE)
    pilotage("tree", "put", tmp_path / "tree.json")
    stamp = pilotage.run("pilot-token", "S/C/Q", "--to", tmp_path / "token").stderr.split()[1]
    report = pilot_service_pb2.GlideinReport(
        stamp=stamp, glidein_id=f"71.{stamp}", state=pilot_service_pb2.PILOT_STATE_SUBMITTED
    )
    with server.channel(server.token(Role.DIRECTOR)) as channel:
        pilot_service_pb2_grpc.PilotServiceStub(channel).ReportGlideins(
            pilot_service_pb2.ReportGlideinsRequest(request_id="r1", reports=[report])
        )
    assert pilotage("pilots").splitlines()[1].split()[:4] == [stamp, "71", "S/C/Q", "SUBMITTED"]
    assert pilotage.json_objects("pilots")[0]["glidein_id"] == f"71.{stamp}"


def test_command_printed_by_pilot_token_starts_a_pilot(
    pilotage: Command, server: RunningServer, tmp_path: Path
) -> None:
    folder = tmp_path / "a folder"
    folder.mkdir()
    (tmp_path / "tree.json").write_text(TREE)
    pilotage("tree", "put", tmp_path / "tree.json")
    printed = pilotage.run("pilot-token", "S/C/Q", "--to", folder / "pilot's token", "--lifetime", "1 h")
    assert printed.returncode == 0
    stamp = printed.stderr.split()[1]
    environment = pilotage.environment | {"TMPDIR": str(tmp_path)}
    with (
        Client(server.address, server.token(vo=VO)) as client,
        subprocess.Popen(f"exec {printed.stdout}", shell=True, env=environment, stderr=subprocess.PIPE) as pilot,
    ):
        try:
            (job_id,) = client.submit([JobDescription("/bin/true")]).job_ids
            (job,) = client.wait([job_id], 60)
            assert (job.state, job.site, job.ce, job.queue) == ("DONE", "S", "C", "Q")
            assert [info["stamp"] for info in pilotage.json_objects("pilots")] == [stamp]
            pilotage("drain", stamp)
            pilot.communicate(timeout=60)
        finally:
            pilot.kill()
    assert pilot.returncode == 0


def test_pilot_token_json_has_the_command_as_a_list(pilotage: Command, server: RunningServer, tmp_path: Path) -> None:
    (tmp_path / "tree.json").write_text(TREE)
    pilotage("tree", "put", tmp_path / "tree.json")
    (printed,) = pilotage.json_objects("pilot-token", "S/C/Q", "--to", tmp_path / "token")
    assert printed["token_file"] == str(tmp_path / "token")
    assert printed["command"][-4:] == ["--server", server.address, "--token-file", str(tmp_path / "token")]
    assert (tmp_path / "token").stat().st_mode & 0o777 == 0o600


def test_pilots_show_their_set_of_queues(pilotage: Command, server: RunningServer, tmp_path: Path) -> None:
    (tmp_path / "tree.json").write_text(TREE)
    pilotage("tree", "put", tmp_path / "tree.json")
    made = pilotage.run("pilot-token", "S/*/*", "T/C/Q", "--to", tmp_path / "token")
    assert " for S/*/* or T/C/Q: " in made.stderr
    assert "one of S/*/*, T/C/Q" in pilotage("pilots")
    assert [pilot["queue"] for pilot in pilotage.json_objects("pilots")] == [None]
    command = f"exec {made.stdout.strip()} --queue-name S/C/Q --max-idle-s 0 --scratch {tmp_path}"
    assert subprocess.run(command, shell=True, env=pilotage.environment, check=False).returncode == 0
    (shown,) = pilotage.json_objects("pilots", "--ended")
    assert (shown["site"], shown["queue"], shown["queue_set"]) == ("S", "Q", ["S/*/*", "T/C/Q"])


def test_pilot_command_has_every_server_address() -> None:
    command = pilot_command("one:1, two:2", Path("/t"))
    assert shlex.join(command[1:]) == "run --server one:1 --server two:2 --token-file /t"


def test_whoami_prints_json(pilotage: Command, server: RunningServer) -> None:
    identity = json.loads(pilotage("whoami", "--json"))
    assert (identity["owner"], identity["vo"], identity["roles"], identity["server"]) == (
        "olga",
        VO,
        ["operator"],
        server.address,
    )
    ends = datetime.fromisoformat(identity["expires"]).astimezone()
    assert f"roles operator, until {ends:%Y-%m-%d %H:%M}\n" in pilotage("whoami")
