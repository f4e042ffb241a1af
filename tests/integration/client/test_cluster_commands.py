"""Commands on clusters and ranges of jobs: which jobs they select, and what `status` shows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pilotage.job_description import JobDescription
from pilotage_client.api import Client
from pilotage_client.cli.main import main
from pilotage_server.core.identity import Role
from support.server import RunningServer

JOB = JobDescription("/bin/true", requirements={"OS": "none"})
"""A job that waits."""


class User:
    """A user with the command line and the Python API of a running server."""

    def __init__(self, server: RunningServer, owner: str) -> None:
        self._address, self._token = server.address, server.token(Role.USER, owner=owner)

    def run(self, *command: object) -> Result:
        environment = {"PILOTAGE_SERVER": self._address, "PILOTAGE_TOKEN": self._token}
        return CliRunner().invoke(main, list(map(str, command)), env=environment)

    def objects(self, *command: object) -> list[dict[str, object]]:
        done = self.run(*command, "--json")
        assert done.exit_code == 0, done.output
        return [json.loads(line) for line in done.stdout.splitlines()]

    def submit(self, *descriptions: JobDescription, cluster: bool = False) -> tuple[int, ...]:
        with Client(self._address, self._token) as client:
            return client.submit(descriptions, cluster=cluster).job_ids

    def states(self, ids: Sequence[int]) -> list[str]:
        with Client(self._address, self._token) as client:
            return [job.state for job in client.jobs(ids)]


@pytest.fixture
def user(shared_server: RunningServer, request: pytest.FixtureRequest) -> User:
    return User(shared_server, request.node.name)


def test_queue_statement_is_one_cluster(user: User, tmp_path: Path) -> None:
    file, other = tmp_path / "job.sub", tmp_path / "other.toml"
    file.write_text(
        "executable = /bin/echo\ntransfer_executable = false\narguments = $(Cluster).$(Process) $(x)\n"
        'requirements = OpSys == "none"\nqueue 2 x from (\na\nb\n)\n'
    )
    other.write_text('executable = "/bin/true"\ncount = 3\n')
    line = user.run("submit", file, other).stdout
    jobs = user.objects("status", "--jobs")
    first = jobs[0]["id"]
    assert isinstance(first, int)
    assert line == f"7 jobs submitted: {first}.0-3 {first + 4}.0-2\n"
    assert [(job["cluster"], job["process"]) for job in jobs] == [
        *((first, process) for process in range(4)),
        *((first + 4, process) for process in range(3)),
    ]
    ads = user.objects("ad", first)
    assert [(ad["ClusterId"], ad["ProcId"]) for ad in ads] == [(first, process) for process in range(4)]
    assert [ad["Arguments"] for ad in ads] == [f"{first}.{process} {'aabb'[process]}" for process in range(4)]


def test_each_form_selects_its_jobs(user: User) -> None:
    ids = user.submit(replace(JOB, count=3), replace(JOB, arguments="x"), cluster=True)
    single, *_ = user.submit(JOB)
    cluster = ids[0]
    for form, expected in (
        ([cluster], [*ids]),
        ([f"{cluster}.0"], [cluster]),
        ([f"{cluster}.3"], [cluster + 3]),
        ([f"{cluster}.1-2"], [cluster + 1, cluster + 2]),
        ([f"{cluster}-{cluster + 1}"], [cluster, cluster + 1]),
        ([cluster + 1], [cluster + 1]),
        ([single], [single]),
        ([f"{cluster}.2", single, cluster], [cluster + 2, single, cluster, cluster + 1, cluster + 3]),
        (ids, [*ids]),
    ):
        assert [job["id"] for job in user.objects("status", *form)] == expected, form


def test_no_command_cuts_a_range(user: User) -> None:
    ids = user.submit(replace(JOB, count=3))
    cluster = ids[0]
    for form in (cluster, f"{cluster}.0-2", f"{cluster}-{ids[-1]}"):
        assert [each["id"] for each in user.objects("why", form)] == [*ids]
        assert [each["ProcId"] for each in user.objects("ad", form)] == [0, 1, 2]
        assert list(dict.fromkeys(each["job"] for each in user.objects("events", form))) == [*ids]
        assert [each["job"] for each in user.objects("routes", "explain", form)] == [*ids]
        edited = user.run("edit", form, "--set", "priority=5").stdout
        assert edited == "".join(f"job {job} is WAITING\n" for job in ids)
        without_output = user.run("output", form)
        assert without_output.exit_code == 1
        assert [f"job {job} has no output file stdout" in without_output.stderr for job in ids] == [True] * 3
    assert [each["JobPrio"] for each in user.objects("ad", cluster)] == [5, 5, 5]
    for command in ("why", "ad", "events"):
        assert [user.run(command, cluster).stdout.count(f"{job}") > 0 for job in ids] == [True] * 3, command
    refused = user.run("events", "-f", cluster)
    assert (refused.exit_code, refused.stderr) == (2, f"--follow: follows one job, and {cluster} are 3 jobs\n")


def test_edit_goes_on_after_a_job_that_cannot_be_edited(user: User) -> None:
    first, second, third = user.submit(replace(JOB, count=3))
    user.run("remove", second)
    assert user.run("edit", first, "--set", "priority=1").stdout == f"job {first} is WAITING\njob {third} is WAITING\n"
    edited = user.run("edit", f"{first}.0-2", "--set", "priority=1")
    assert edited.exit_code == 1
    assert edited.stdout == f"job {first} is WAITING\njob {third} is WAITING\n"
    assert f"job {second} is REMOVED" in edited.stderr


def test_changes_of_a_whole_cluster_leave_out_other_states(user: User) -> None:
    ids = user.submit(replace(JOB, count=25))
    cluster = ids[0]
    assert user.run("hold", f"{cluster}.3-4").stdout == f"job {ids[3]} is HELD\njob {ids[4]} is HELD\n"
    held = user.run("hold", cluster)
    assert (held.exit_code, held.stderr) == (0, "")
    assert held.stdout == f"23 jobs are HELD: {ids[0]}-{ids[2]} {ids[5]}-{ids[-1]}\n"
    assert user.run("release", cluster).stdout == f"25 jobs are WAITING: {ids[0]}-{ids[-1]}\n"
    none = user.run("release", cluster)
    assert (none.exit_code, none.stdout) == (1, "")
    assert none.stderr == f"pilotage: cluster {cluster} has no job that `release` can change\n"
    assert user.run("remove", f"{cluster}.0").exit_code == 0
    assert user.run("remove", cluster).exit_code == 0
    assert set(user.states(ids)) == {"REMOVED"}
    assert user.run("wait", cluster, "--timeout", 10).exit_code == 1


def test_status_shows_active_clusters_with_counts(user: User) -> None:
    assert user.run("status").stdout == "no active clusters; --all shows those that have ended\n"
    ids = user.submit(replace(JOB, count=10, name="sim-$(Process)"))
    ended, *_ = user.submit(JOB)
    user.run("remove", ended)
    user.run("remove", f"{ids[0]}.0-4")
    user.run("hold", f"{ids[0]}.5-6")

    _, line = user.run("status").stdout.splitlines()
    assert line.split()[:6] == [str(ids[0]), "sim-$(Process)", "10", "5", "2", "3"]
    assert "[----------!!!!......]" in line
    assert user.run("status", ids[0]).stdout.splitlines()[1] == line
    (cluster,) = user.objects("status")
    assert cluster["states"] == {"WAITING": 3, "HELD": 2, "REMOVED": 5}
    assert list(cluster) == ["id", "name", "owner", "vo", "group", "jobs", "submitted", "states", "workflow"]
    assert user.objects("status", f"{ids[0]}.7", "--clusters") == [cluster]

    assert [each["id"] for each in user.objects("status", "--all")] == [ids[0], ended]
    assert [each["id"] for each in user.objects("status", "--state", "removed")] == [ids[0], ended]
    assert [each["id"] for each in user.objects("status", "--all", "--limit", 1)] == [ended]
    assert [each["id"] for each in user.objects("status", "--jobs")] == [*ids[5:]]
    assert [each["id"] for each in user.objects("status", "--jobs", "--all")] == [*ids, ended]
    assert [each["id"] for each in user.objects("status", ids[0], "--state", "HELD")] == [*ids[5:7]]
    assert len(user.run("status", ids[0], ended, "--jobs").stdout.splitlines()) == 1 + 11
    mixed = user.run("status", ids[0], ended).stdout
    assert mixed.startswith("CLUSTER")
    assert f"\n\nID{' ' * len(str(ended))}" in mixed
    assert user.run("status", ended, "--owner", "bob").stdout == "no jobs\n"


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ("{0}.3", "pilotage: there is no job {0}.3; cluster {0} has 3 jobs, the last is {0}.2"),
        ("{0}.0-3", "pilotage: there is no job {0}.3; cluster {0} has 3 jobs, the last is {0}.2"),
        ("{1}.0", "pilotage: there is no job {1}.0"),
        ("999999999", "pilotage: there is no job 999999999"),
        ("{0}.2-1", "{0}.2-1: is not a range of at most 1000000 jobs"),
    ],
)
def test_unknown_jobs_are_named(user: User, form: str, message: str) -> None:
    ids = user.submit(replace(JOB, count=3))
    refused = user.run("hold", form.format(*ids))
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert refused.stderr == message.format(*ids) + "\n"
    assert set(user.states(ids)) == {"WAITING"}


def test_workflow_is_one_line_and_its_commands_leave_out_other_states(
    user: User, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "flow.toml"
    job = '[[job]]\nexecutable = "/bin/true"\nrequirements = {OS = "none"}\n'
    file.write_text(f'{job}name = "a"\n{job}name = "b"\ncount = 3\nafter_ok = "a"\n{job}after_settled = "b"\n')
    submission = ("submit", file, "--workflow", "flow", "--request-id", "flow")
    line = user.run(*submission).stdout
    flow = line.split()[-1]
    first = int(flow.removeprefix("w"))
    assert line == f"5 jobs submitted: w{first}\n"
    assert user.run(*submission).stdout == line

    (shown,) = user.objects("status")
    assert (shown["id"], shown["name"], shown["jobs"], shown["workflow"]) == (first, "flow", 5, True)
    _, line = user.run("status").stdout.splitlines()
    assert line.split()[:5] == [flow, "flow", "5", "1", "4"]
    _, *lines = user.run("status", flow).stdout.splitlines()
    assert [each.split()[0] for each in lines] == [flow, *map(str, (first, first + 1, first + 4))]
    assert [job["id"] for job in user.objects("status", flow)] == [*range(first, first + 5)]
    assert [each["workflow"] for each in user.objects("status", flow, "--clusters")] == [True, False, False, False]

    assert user.run("remove", first).exit_code == 0
    table = user.run("status", flow)
    assert [each.split()[0] for each in table.stdout.splitlines()[1:]] == [flow, *map(str, (first + 1, first + 4))]
    assert table.stderr == f"Jobs of {flow} in other clusters: 1; --all shows these too.\n"
    assert len(user.run("status", flow, "--all").stdout.splitlines()) == 5
    assert len(user.objects("status", flow, "--clusters")) == 4
    assert user.run("reschedule", flow).stdout == f"job {first} is WAITING\n"
    monkeypatch.setattr("pilotage_client.cli.status.DEFAULT_LIMIT", 2)
    table = user.run("status", flow)
    assert [each.split()[0] for each in table.stdout.splitlines()[1:]] == [flow, *map(str, (first, first + 4))]
    assert table.stderr == f"Jobs of {flow} in other clusters: 3; --all shows these too.\n"
    none = user.run("reschedule", flow)
    assert none.stderr == f"pilotage: workflow {flow} has no job that `reschedule` can change\n"
    assert user.run("remove", flow).exit_code == 0
    assert set(user.states(range(first, first + 5))) == {"REMOVED"}
    assert user.run("wait", flow, "--timeout", 10).exit_code == 1
    assert user.run("status", "w999999").stderr == "pilotage: there is no workflow w999999\n"
    refused = user.run("submit", file, "--workflow", "x" * 256)
    assert (refused.exit_code, refused.stderr) == (2, "workflow.name: has 256 characters, more than 255\n")
