"""Commands of `pilotage` against a real server: what they print, and how they exit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pilotage.job_description import JobDescription, JobPolicy
from pilotage_client.api import Client
from pilotage_client.cli.jobs import DEFAULT_LIMIT
from pilotage_client.cli.main import main
from pilotage_server.core.identity import Role
from support.processes import free_address
from support.server import RunningServer


class Shell:
    """Somebody who types commands, with a token of roles for one owner."""

    def __init__(self, server: RunningServer, folder: Path, owner: str, *roles: Role) -> None:
        self.folder = folder
        self.token = server.token(*roles, owner=owner)
        self.address = server.address

    def run(self, *command: str) -> Result:
        token_file = self.folder / "my.token"
        token_file.write_text(self.token)
        return CliRunner().invoke(main, [*command, "--server", self.address, "--token-file", str(token_file)])

    def submit(self, description: JobDescription) -> tuple[int, ...]:
        with Client(self.address, self.token) as client:
            return client.submit([description]).job_ids


def test_status_shows_the_newest_of_many_jobs_and_says_so(
    shared_server: RunningServer, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    shell = Shell(shared_server, tmp_path, request.node.name, Role.USER)
    ids = shell.submit(JobDescription("/bin/true", count=DEFAULT_LIMIT + 5))

    shown = shell.run("status")
    assert [int(line.split()[0]) for line in shown.stdout.splitlines()[1:]] == list(ids[5:])
    assert "--limit 0 shows all" in shown.stderr
    everything = shell.run("status", "--limit", "0")
    assert len(everything.stdout.splitlines()) == 1 + len(ids)
    assert everything.stderr == ""
    assert [json.loads(line)["id"] for line in shell.run("status", "--json").stdout.splitlines()] == list(ids)
    assert [json.loads(line)["id"] for line in shell.run("status", "--json", "--limit", "2").stdout.splitlines()] == [
        *ids[-2:]
    ]


def test_a_change_that_is_refused_is_told_once(shared_server: RunningServer, tmp_path: Path) -> None:
    shell = Shell(shared_server, tmp_path, "alice", Role.USER)
    (job_id,) = map(str, shell.submit(JobDescription("/bin/true")))
    assert shell.run("hold", job_id).stdout == f"job {job_id} is HELD\n"

    again = shell.run("hold", job_id)

    assert again.exit_code == 1
    assert again.stderr == f"pilotage: job {job_id} is already HELD; it cannot be held\n"
    assert "held by alice\n" in shell.run("logs", job_id).stdout
    assert "held by alice: held by alice" not in shell.run("logs", job_id).stdout


def test_an_administrator_makes_a_token_for_a_user_of_the_same_vo(shared_server: RunningServer, tmp_path: Path) -> None:
    made = tmp_path / "bob.token"
    shell = Shell(shared_server, tmp_path, "root", Role.ADMIN)

    assert shell.run("token", "--owner", "bob", "--role", "user", "--to", str(made)).exit_code == 0

    with Client(shared_server.address, made.read_text().strip()) as client:
        bob = client.who_am_i()
    with Client(shared_server.address, shell.token) as client:
        assert (bob.owner, list(bob.roles), bob.vo) == ("bob", ["user"], client.who_am_i().vo)


def test_a_server_that_is_not_there_is_one_line_and_exit_code_3(shared_server: RunningServer, tmp_path: Path) -> None:
    shell = Shell(shared_server, tmp_path, "alice", Role.USER)
    shell.address = free_address()

    refused = shell.run("status")

    assert refused.exit_code == 3
    assert refused.stderr == f"pilotage: no server answers at {shell.address}: Connection refused\n"


def test_a_template_is_put_on_top_of_a_submitted_job_and_its_ad_shows_it(
    shared_server: RunningServer, tmp_path: Path
) -> None:
    shell = Shell(shared_server, tmp_path, "alice", Role.USER)
    job = tmp_path / "job.sub"
    job.write_text("executable = /bin/true\ntransfer_executable = false\nrequirements = Memory > 10\nqueue\n")

    submitted = json.loads(shell.run("submit", str(job), "--template", "bologna-short", "--json").stdout)
    (job_id,) = map(str, submitted["jobs"])

    ad = json.loads(shell.run("ad", job_id, "--json").stdout)
    assert ad["Requirements"] == "(Memory > 10) && (TARGET.BolognaBatchServer == true)"
    assert ad["PeriodicRemove"] == "LongRunningJob isnt true && RemoteWallClockTime >= 60 * 60"
    assert (ad["BolognaBatchJob"], ad["Owner"], ad["JobStatus"], ad["NumJobStarts"]) == (True, "alice", 1, 0)
    lines = shell.run("ad", job_id).stdout.splitlines()
    assert 'Owner = "alice"' in lines
    assert lines == sorted(lines, key=lambda line: line.partition(" = ")[0].lower())


def test_nobody_sees_the_ad_of_anothers_job(shared_server: RunningServer, tmp_path: Path) -> None:
    (job_id,) = Shell(shared_server, tmp_path, "alice", Role.USER).submit(JobDescription("/bin/true"))
    refused = Shell(shared_server, tmp_path, "bob", Role.USER).run("ad", str(job_id))
    assert refused.exit_code == 2
    assert f"there is no job {job_id}" in refused.stderr


def test_a_job_is_held_by_its_policy_within_seconds(shared_server: RunningServer, tmp_path: Path) -> None:
    shell = Shell(shared_server, tmp_path, "alice", Role.USER)
    policy = JobPolicy(periodic_hold="JobStatus == 1", periodic_hold_reason='"because"')
    (job_id,) = shell.submit(JobDescription("/bin/true", policy=policy))

    with Client(shared_server.address, shell.token) as client:
        causes = (event.cause for event in client.follow([job_id]))
        assert next(cause for cause in causes if cause == "held")
        (held,) = client.jobs([job_id])
    assert (held.state, held.reason) == ("HELD", "because")
    assert "because" in shell.run("logs", str(job_id)).stdout
