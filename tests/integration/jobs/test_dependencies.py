"""Dependencies over the wire: a running server frees children by itself, and commands show what blocks them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pilotage.errors import InvalidInputError
from pilotage.job_description import JobDescription
from pilotage.v1 import job_service_pb2, jobs_pb2
from pilotage.values.dependencies import Dependency, DependencyKind
from pilotage.values.wire.dependencies import dependency_to_wire
from pilotage_client.api import Client
from pilotage_client.cli.main import main
from support.wire_grid import WireGrid, a_job, submission

AFTER_OK = job_service_pb2.DEPENDENCY_KIND_AFTER_OK
WORKFLOW = """
[[job]]
name = "prepare"
executable = "/bin/true"

[[job]]
name = "fit-{part}"
executable = "/bin/true"
parameters = {part = [1, 2]}
after_ok = "prepare"

[[job]]
name = "plot"
executable = "/bin/true"
after_ok = ["fit-1", "fit-2"]
"""
TWO_JOBS = '[[job]]\nexecutable = "/bin/true"\n' * 2
CIRCLE = """
[[job]]
name = "fit"
executable = "/bin/true"
after_ok = "plot"

[[job]]
name = "plot"
executable = "/bin/true"
after = "fit"
"""


def a_chain(length: int) -> job_service_pb2.SubmitJobsRequest:
    """Return a submission of jobs, each of which waits for the one before."""
    request = submission([a_job()] * length)
    for node in range(1, length):
        dependency = Dependency(node, DependencyKind.AFTER_OK, (), (node - 1,))
        request.dependencies.append(dependency_to_wire(dependency))
    return request


def test_pilot_that_waits_gets_each_job_of_a_chain(grid: WireGrid) -> None:
    pilot = grid.start_pilot()
    ids = grid.jobs.SubmitJobs(a_chain(4)).job_ids
    for job_id in ids:
        (match,) = pilot.request_jobs(wait_s=20).matches
        assert match.job_id == job_id
        pilot.finish(job_id)
    assert [grid.state_of(job_id) for job_id in ids] == ["DONE"] * 4


def test_repeated_submission_has_one_effect(grid: WireGrid) -> None:
    request = a_chain(2)
    first, again = (grid.jobs.SubmitJobs(request).job_ids for _ in range(2))
    assert first == again
    assert [grid.state_of(job_id) for job_id in first] == ["WAITING", "BLOCKED"]


@pytest.mark.parametrize(
    ("dependency", "fault"),
    [
        (
            job_service_pb2.Dependency(description=2, kind=AFTER_OK, descriptions=[0]),
            "dependencies[0].description: 2 ",
        ),
        (
            job_service_pb2.Dependency(description=0, kind=AFTER_OK, descriptions=[7]),
            "dependencies[0].descriptions[0]: 7 ",
        ),
        (job_service_pb2.Dependency(description=0, descriptions=[1]), "dependencies[0].kind: is missing"),
        (
            job_service_pb2.Dependency(description=0, kind=AFTER_OK, parents=[job_service_pb2.JobSelection(id=0)]),
            "dependencies[0].parents[0].id: 0 is not the id of a job",
        ),
        (
            job_service_pb2.Dependency(
                description=1, kind=AFTER_OK, parents=[job_service_pb2.JobSelection(id=10**12, first_process=3)]
            ),
            f"dependencies[0]: there is no job or cluster {10**12}.3",
        ),
        (
            job_service_pb2.Dependency(
                description=1, kind=AFTER_OK, parents=[job_service_pb2.JobSelection(id=2**63 - 1, first_process=1)]
            ),
            f"dependencies[0]: there is no job or cluster {2**63 - 1}.1",
        ),
        (
            job_service_pb2.Dependency(
                description=1, kind=AFTER_OK, parents=[job_service_pb2.JobSelection(id=2**63 - 1, workflow=True)]
            ),
            f"dependencies[0]: there is no job or cluster w{2**63 - 1}",
        ),
        (
            job_service_pb2.Dependency(
                description=1,
                kind=AFTER_OK,
                parents=[job_service_pb2.JobSelection(id=5, workflow=True, last_process=3)],
            ),
            "dependencies[0].parents[0]: processes are set, but a workflow has none",
        ),
        (
            job_service_pb2.Dependency(
                description=1, kind=AFTER_OK, description_ranges=[job_service_pb2.DescriptionRange(first=0, last=2)]
            ),
            "dependencies[0].description_ranges[0].last: 2 is not the index of a description (0 to 1)",
        ),
        (
            job_service_pb2.Dependency(
                description=1, kind=AFTER_OK, description_ranges=[job_service_pb2.DescriptionRange(first=1, last=0)]
            ),
            "dependencies[0].description_ranges[0]: 1 to 0 is not a range",
        ),
    ],
)
@pytest.mark.parametrize("validate_only", [False, True])
def test_bad_dependency_is_refused_with_its_place(
    grid: WireGrid, dependency: job_service_pb2.Dependency, fault: str, validate_only: bool
) -> None:
    request = submission([a_job(), a_job()])
    request.dependencies.append(dependency)
    request.validate_only = validate_only
    with pytest.raises(InvalidInputError) as refused:
        grid.jobs.SubmitJobs(request)
    assert fault in str(refused.value)


class ShellOfGrid:
    """The command line of a user of a grid."""

    def __init__(self, grid: WireGrid, folder: Path) -> None:
        self._folder = folder
        self._address = grid.server.address
        self.token = grid.server.token(owner="alice", vo=grid.vo)

    def run(self, *command: object) -> Result:
        token_file = self._folder / "my.token"
        token_file.write_text(self.token)
        options = ("--server", self._address, "--token-file", str(token_file))
        return CliRunner().invoke(main, [*map(str, command), *options])

    def submit(self, text: str, *options: object) -> Sequence[int]:
        file = self._folder / "jobs.toml"
        file.write_text(text)
        result = self.run("submit", file, "--json", *options)
        assert result.exit_code == 0, result.output
        ids: Sequence[int] = json.loads(result.stdout)["jobs"]
        return ids


def test_commands_submit_workflow_and_show_what_blocks_it(grid: WireGrid, tmp_path: Path) -> None:
    shell, pilot = ShellOfGrid(grid, tmp_path), grid.start_pilot()
    prepare, fit, _, plot = shell.submit(WORKFLOW)
    (later,) = shell.submit('executable = "/bin/true"', "--after-any", plot, "--after", f"{fit}.0")
    assert "waits for 2 of 2 parents" in shell.run("status", plot).stdout
    pilot.request_jobs()
    pilot.report(prepare, outcome=jobs_pb2.OUTCOME_EXITED, exit_code=3)

    explained = shell.run("why", plot).stdout.splitlines()
    assert explained[1:3] == [
        f"Job {plot} waits for job {fit} (after_ok), which is BLOCKED.",
        f"Job {fit} waits for job {prepare} (after_ok), which is FAILED: exit code 3.",
    ]
    blockers = json.loads(shell.run("why", later, "--json").stdout)["blockers"]
    assert [(each["kind"], each["id"], each["state"]) for each in blockers][-1] == ("after_ok", prepare, "FAILED")
    assert not any("futile" in each for each in blockers)
    refused = shell.run("release", plot)
    assert refused.exit_code == 1
    assert f"job {plot} is BLOCKED" in refused.stderr

    waited = shell.run("wait", f"{prepare}-{later}", "--patience", "1m")
    assert waited.exit_code == 1
    assert f"job {prepare} is FAILED: exit code 3\n" in waited.stderr
    assert f"job {later} is BLOCKED: waits for 2 of 2 parents; see `pilotage why {later}`\n" in waited.stderr

    assert [json.loads(shell.run("status", each, "--json").stdout)["futile"] for each in (prepare, later)] == [
        False,
        True,
    ]
    assert shell.run("events", later, "--follow").stderr.startswith(f"pilotage: job {later} cannot run")

    shell.run("reschedule", prepare)
    for _ in range(5):
        (match,) = pilot.request_jobs(wait_s=20).matches
        pilot.finish(match.job_id, match.attempt)
    assert {grid.state_of(job_id) for job_id in (prepare, fit, plot, later)} == {"DONE"}


@pytest.mark.parametrize(
    ("text", "options", "fault"),
    [
        (TWO_JOBS, ["--after-ok", 10**12], f"after_ok: there is no job or cluster {10**12}"),
        (TWO_JOBS, ["--after", "fit"], "fit: is not a job: give 12 for a cluster or a job"),
        (CIRCLE, [], "dependencies: wait for each other in a circle: fit → plot → fit"),
    ],
)
def test_fault_of_dependencies_is_named_as_the_user_wrote_it(
    grid: WireGrid, tmp_path: Path, text: str, options: list[object], fault: str
) -> None:
    (tmp_path / "jobs.toml").write_text(text)
    refused = ShellOfGrid(grid, tmp_path).run("submit", tmp_path / "jobs.toml", *options)
    assert refused.exit_code == 2
    (line,) = refused.stderr.splitlines()
    assert line.startswith(fault)


def test_python_names_parents_by_ids_and_names(grid: WireGrid, tmp_path: Path) -> None:
    shell = ShellOfGrid(grid, tmp_path)
    with Client(grid.server.address, shell.token) as client:
        (first,) = client.submit([JobDescription("/bin/true")]).job_ids
        one = JobDescription("/bin/true", name="one", after=first)  # type: ignore[arg-type]
        two = JobDescription("/bin/true", name="two", after_ok=("one",), after_any=("one", f"{first}.0"))
        ids = client.submit([two, one]).job_ids
        assert [(job.state, job.reason) for job in client.jobs(ids)] == [
            ("BLOCKED", "waits for 3 of 3 parents"),
            ("BLOCKED", "waits for 1 of 1 parent"),
        ]
        with pytest.raises(InvalidInputError, match=r"descriptions\[0\]\.after_ok: no job .*; did you mean one\?"):
            client.submit([JobDescription("/bin/true", after_ok=("on",)), one])
        with pytest.raises(InvalidInputError, match="after_ok: only a new job can be made to wait"):
            client.edit(ids[0], two)
