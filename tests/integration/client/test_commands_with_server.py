"""Commands of `pilotage` against a running server: output, exit codes and retries."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pilotage.job_description import JobDescription, JobPolicy
from pilotage.v1 import identity_service_pb2
from pilotage_client.api import Client
from pilotage_client.cli.main import main
from pilotage_client.cli.status import DEFAULT_LIMIT
from pilotage_server.core.identity import Role
from support.commands import Command, environment_of
from support.processes import free_address
from support.server import RunningServer


class Shell:
    """A command line with the token of one owner."""

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


def test_status_shows_the_newest_jobs_and_mentions_the_limit(
    shared_server: RunningServer, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    shell = Shell(shared_server, tmp_path, request.node.name, Role.USER)
    ids = shell.submit(JobDescription("/bin/true", count=DEFAULT_LIMIT + 5))

    limited = shell.run("status", "--jobs")
    assert [int(line.split()[0]) for line in limited.stdout.splitlines()[1:]] == list(ids[5:])
    assert "--limit 0 shows all" in limited.stderr
    unlimited = shell.run("status", "--jobs", "--limit", "0")
    assert len(unlimited.stdout.splitlines()) == 1 + len(ids)
    assert unlimited.stderr == ""
    as_json = shell.run("status", "--jobs", "--json").stdout
    assert [json.loads(line)["id"] for line in as_json.splitlines()] == list(ids)
    newest = shell.run("status", "--jobs", "--json", "--limit", "2").stdout
    assert [json.loads(line)["id"] for line in newest.splitlines()] == [*ids[-2:]]


def test_fault_found_by_the_server_names_the_file(shared_server: RunningServer, tmp_path: Path) -> None:
    shell = Shell(shared_server, tmp_path, "alice", Role.USER)
    one, two = tmp_path / "one.toml", tmp_path / "two.toml"
    one.write_text('executable = "/bin/true"\nstdout = "../out"')
    two.write_text('executable = "/bin/true"\nstdout = "{x}"\nparameters = {x = ["out", "a\\u0000"]}')
    done = shell.run("submit", str(one), str(two))
    assert done.exit_code == 2
    assert [line.rpartition(": ")[0] for line in done.stderr.splitlines()] == [f"{two}: job 2: stdout"]


def test_validation_needs_no_uploaded_input(shared_server: RunningServer, tmp_path: Path) -> None:
    shell = Shell(shared_server, tmp_path, "alice", Role.USER)
    (tmp_path / "never.dat").write_text(f"never uploaded {tmp_path}")
    file = tmp_path / "job.toml"
    file.write_text('executable = "/bin/true"\ninput_files = ["never.dat"]')
    done = shell.run("submit", "--validate-only", str(file))
    assert (done.exit_code, done.stdout, done.stderr) == (0, "1 job would be submitted\n", "")


def test_status_of_given_jobs_has_filters_but_no_limit(shared_server: RunningServer, tmp_path: Path) -> None:
    shell = Shell(shared_server, tmp_path, "alice", Role.USER)
    held, waiting = (shell.submit(JobDescription("/bin/true"))[0] for _ in range(2))
    assert shell.run("hold", "--reason", "x", str(held)).exit_code == 0
    shown = shell.run("status", "--json", "--state", "HELD", str(held), str(waiting)).stdout
    assert [json.loads(line)["id"] for line in shown.splitlines()] == [held]
    shown = shell.run("status", "--json", "--clusters", "--state", "HELD", str(held), str(waiting)).stdout
    assert [json.loads(line)["id"] for line in shown.splitlines()] == [held]
    assert shell.run("status", "--owner", "bob", str(held)).stdout == "no jobs\n"
    for option, why in (
        (("--pool", "x"), "--pool: no pool begins with x"),
        (("--limit", "1"), "cannot restrict given IDs"),
    ):
        refused = shell.run("status", *option, str(held))
        assert (refused.exit_code, why in refused.stderr) == (2, True)


def test_ignored_statements_are_shown(shared_server: RunningServer, tmp_path: Path) -> None:
    shell = Shell(shared_server, tmp_path, "alice", Role.USER)
    file = tmp_path / "job.sub"
    file.write_text(
        "executable = /bin/sh\ntransfer_executable = false\nnice_user = true\nconcurrency_limits = a\nqueue\n"
    )
    assert shell.run("submit", str(file)).exit_code == 2
    submitted = json.loads(shell.run("submit", "--ignore-unsupported", "--json", str(file)).stdout)
    (job_id,) = submitted["jobs"]
    assert [warning.split(": ")[1] for warning in submitted["warnings"]] == [
        "nice_user is ignored",
        "concurrency_limits is ignored",
    ]
    ignored = ["nice_user = true", "concurrency_limits = a"]
    for command in ("status", "why"):
        assert json.loads(shell.run(command, "--json", str(job_id)).stdout)["ignored"] == ignored
    assert f"Ignored in its job file: {'; '.join(ignored)}\n" in shell.run("why", str(job_id)).stdout


def test_rejected_hold_is_reported_once(shared_server: RunningServer, tmp_path: Path) -> None:
    shell = Shell(shared_server, tmp_path, "alice", Role.USER)
    (job_id,) = map(str, shell.submit(JobDescription("/bin/true")))
    assert shell.run("hold", job_id).stdout == f"job {job_id} is HELD\n"

    repeated = shell.run("hold", job_id)

    assert repeated.exit_code == 1
    assert repeated.stderr == f"pilotage: job {job_id} is already HELD; it cannot be held\n"
    assert "held by alice\n" in shell.run("events", job_id).stdout
    assert "held by alice: held by alice" not in shell.run("events", job_id).stdout


def test_admin_makes_a_token_for_a_user_of_the_same_vo(shared_server: RunningServer, tmp_path: Path) -> None:
    token_file = tmp_path / "bob.token"
    shell = Shell(shared_server, tmp_path, "root", Role.ADMIN)

    assert shell.run("token", "--owner", "bob", "--role", "user", "--to", str(token_file)).exit_code == 0

    with Client(shared_server.address, token_file.read_text().strip()) as client:
        bob = client.who_am_i()
    with Client(shared_server.address, shell.token) as client:
        assert (bob.owner, list(bob.roles), bob.vo) == ("bob", ["user"], client.who_am_i().vo)


def test_join_token_at_loopback_needs_the_address_for_others(shared_server: RunningServer, tmp_path: Path) -> None:
    shell = Shell(shared_server, tmp_path, "root", Role.ADMIN)
    refused = shell.run("token", "join")
    assert refused.exit_code == 2
    assert "is loopback: start the server with `pilotage up --listen`" in refused.stderr
    printed = shell.run("token", "join", "--address", "queue.example.org", "--owner", "bob").stdout
    *line, token = printed.removesuffix("\n").split(" ")
    assert line == ["pilotage", "join", "queue.example.org:4711", "--token"]
    with Client(shared_server.address, token) as client:
        me = client.who_am_i()
        joined = client.join(identity_service_pb2.JoinRequest(machine="laptop", cpus=1))
    assert (me.owner, list(me.groups), list(me.roles), joined.director_token) == ("bob", [], ["join"], "")


def test_unreachable_server_is_one_error_line_and_exit_code_3(shared_server: RunningServer, tmp_path: Path) -> None:
    shell = Shell(shared_server, tmp_path, "alice", Role.USER)
    shell.address = free_address()

    rejected = shell.run("status")

    assert rejected.exit_code == 3
    assert rejected.stderr == f"pilotage: no server answers at {shell.address}: Connection refused\n"


def test_template_is_applied_to_a_submitted_job(shared_server: RunningServer, tmp_path: Path) -> None:
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


def test_ad_of_another_users_job_is_not_found(shared_server: RunningServer, tmp_path: Path) -> None:
    (job_id,) = Shell(shared_server, tmp_path, "alice", Role.USER).submit(JobDescription("/bin/true"))
    rejected = Shell(shared_server, tmp_path, "bob", Role.USER).run("ad", str(job_id))
    assert rejected.exit_code == 2
    assert f"there is no job {job_id}" in rejected.stderr


def test_periodic_hold_is_applied_within_seconds(shared_server: RunningServer, tmp_path: Path) -> None:
    shell = Shell(shared_server, tmp_path, "alice", Role.USER)
    policy = JobPolicy(periodic_hold="JobStatus == 1", periodic_hold_reason='"because"')
    (job_id,) = shell.submit(JobDescription("/bin/true", policy=policy))

    with Client(shared_server.address, shell.token) as client:
        causes = (event.cause for event in client.follow([job_id]))
        assert next(cause for cause in causes if cause == "held")
        (held,) = client.jobs([job_id])
    assert (held.state, held.reason) == ("HELD", "because")
    assert "because" in shell.run("events", str(job_id)).stdout


@pytest.mark.parametrize("end_server", [RunningServer.stop, RunningServer.kill])
def test_wait_and_logs_survive_a_server_restart(
    server: RunningServer, tmp_path: Path, end_server: Callable[[RunningServer], object]
) -> None:
    with Client(server.address, server.token()) as client:
        (job_id,) = client.submit([JobDescription("/bin/true")]).job_ids
    pilotage = Command(environment_of(tmp_path, PILOTAGE_SERVER=server.address, PILOTAGE_TOKEN=server.token()))
    with ExitStack() as stack:
        logs = stack.enter_context(pilotage.start("events", job_id, "--follow", "--json"))
        wait = stack.enter_context(pilotage.start("wait", job_id, "--timeout", 100, "--json"))
        for command in (logs, wait):
            stack.callback(command.kill)
        assert logs.stdout
        assert wait.stderr
        assert logs.stderr
        lines = [logs.stdout.readline()]

        end_server(server)
        for stream in (wait.stderr, logs.stderr):
            assert "trying again for up to" in stream.readline()
        server.start()

        with Client(server.address, server.token()) as client:
            client.hold([job_id])
            client.release([job_id])
            client.remove([job_id])
        output, errors = wait.communicate(timeout=60)
        assert (wait.returncode, json.loads(output)["state"], errors) == (1, "REMOVED", "")
        rest, errors = logs.communicate(timeout=60)
        assert (logs.returncode, errors) == (0, "")
        lines += rest.splitlines()
    with Client(server.address, server.token()) as client:
        assert [json.loads(line)["position"] for line in lines] == [event.position for event in client.events(job_id)]
    assert json.loads(lines[-1])["to"] == "REMOVED"


def test_timeout_of_wait_limits_its_retries(server: RunningServer, tmp_path: Path) -> None:
    pilotage = Command(environment_of(tmp_path, PILOTAGE_SERVER=server.address, PILOTAGE_TOKEN=server.token()))
    server.stop()
    done = pilotage.run("wait", 1, "--timeout", 10)
    assert (done.returncode, done.stdout) == (3, "")
    assert len(done.stderr.splitlines()) == 2


def test_logs_follow_a_rescheduled_job_to_its_next_end(server: RunningServer, tmp_path: Path) -> None:
    with Client(server.address, server.token()) as client:
        (job_id,) = client.submit([JobDescription("/bin/true")]).job_ids
        client.remove([job_id])
        client.reschedule([job_id])
        pilotage = Command(environment_of(tmp_path, PILOTAGE_SERVER=server.address, PILOTAGE_TOKEN=server.token()))
        with pilotage.start("events", job_id, "-f", "--json") as logs:
            assert logs.stdout
            for line in logs.stdout:
                if json.loads(line)["cause"] == "rescheduled":
                    client.remove([job_id], "enough")
            assert json.loads(line)["reason"].endswith("enough")
            assert logs.wait(60) == 0


def test_submission_is_repeated_with_the_printed_request_id(shared_server: RunningServer, tmp_path: Path) -> None:
    shell = Shell(shared_server, tmp_path, "alice", Role.USER)
    job = tmp_path / "job.toml"
    job.write_text('executable = "/bin/true"\n')
    address, shell.address = shell.address, free_address()
    failed = shell.run("submit", str(job))
    assert failed.exit_code == 3
    request_id = failed.stderr.split("--request-id ")[1].split(",")[0]
    shell.address = address
    printed = [shell.run("submit", "--json", "--request-id", request_id, str(job)).stdout for _ in range(2)]
    first, second = (json.loads(each)["jobs"] for each in printed)
    assert first == second
    assert len(first) == 1
