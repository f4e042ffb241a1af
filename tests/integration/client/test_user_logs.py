"""User logs of jobs behind a running server: all that happened, in one file or in several, added once."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from click.testing import CliRunner, Result

from pilotage.job_description import JobDescription
from pilotage.v1 import job_service_pb2, jobs_pb2
from pilotage_client.api import Client
from pilotage_client.cli.main import main
from pilotage_client.retry import RetryBudget
from pilotage_client.user_log.follower import find_user_logs, write_user_logs
from support.user_logs import numbers, read_events
from support.wire_grid import WireGrid, WirePilot


def a_logged_job(path: Path, **fields: object) -> JobDescription:
    return JobDescription("/bin/true", attributes={"UserLog": str(path)}, **fields)  # type: ignore[arg-type]


def report(pilot: WirePilot, job_id: int, *states: jobs_pb2.JobState.ValueType, attempt: int = 1) -> None:
    for state in states:
        assert pilot.report(job_id, attempt, state=state).accepted


def run(grid: WireGrid, folder: Path, *command: object) -> Result:
    token_file = folder / "my.token"
    token_file.write_text(grid.server.token(owner="alice", vo=grid.vo))
    options = ("--server", grid.server.address, "--token-file", token_file)
    return CliRunner().invoke(main, [str(each) for each in (*command, *options)])


def client_of(grid: WireGrid) -> Client:
    return Client(grid.server.address, grid.server.token(owner="alice", vo=grid.vo))


def test_log_has_the_whole_story_of_a_job(grid: WireGrid, tmp_path: Path) -> None:
    grid.put_tree()
    (job_id,) = grid.submit(a_logged_job(tmp_path / "$(Cluster).$(Process).log"))
    pilot = grid.start_pilot()
    assert [match.job_id for match in pilot.request_jobs().matches] == [job_id]
    running, suspended = jobs_pb2.JOB_STATE_RUNNING, jobs_pb2.JOB_STATE_SUSPENDED
    report(pilot, job_id, running, suspended, running)
    grid.change(job_service_pb2.JOB_CHANGE_HOLD, job_id)
    pilot.report(job_id, outcome=jobs_pb2.OUTCOME_KILLED)
    grid.change(job_service_pb2.JOB_CHANGE_RELEASE, job_id)
    pilot.request_jobs()
    report(pilot, job_id, running, attempt=2)
    pilot.finish(job_id, 2)

    done = run(grid, tmp_path, "userlog", job_id)

    assert (done.exit_code, done.output) == (0, "")
    events = read_events(tmp_path / f"{job_id}.0.log")
    assert [event["number"] for event in events] == [0, 1, 10, 11, 4, 12, 13, 1, 5]
    held = events[5]
    assert (held["HoldReason"], held["HoldReasonCode"]) == ("because", 1)
    assert (events[7]["ExecuteHost"], events[8]["ReturnValue"]) == ("<node1>", 0)
    before = (tmp_path / f"{job_id}.0.log").read_bytes()
    assert run(grid, tmp_path, "userlog", job_id).exit_code == 0
    assert (tmp_path / f"{job_id}.0.log").read_bytes() == before


def test_jobs_share_a_log_or_have_their_own(grid: WireGrid, tmp_path: Path) -> None:
    ids = grid.submit(
        a_logged_job(tmp_path / "$(Process).log", count=3), a_logged_job(tmp_path / "all.log"), JobDescription("/bin/a")
    )
    grid.change(job_service_pb2.JOB_CHANGE_REMOVE, *ids)

    ended = run(grid, tmp_path, "userlog", f"{ids[0]}-{ids[-1]}", "--json")

    assert ended.exit_code == 1
    assert [json.loads(line)["state"] for line in ended.stdout.splitlines()] == ["REMOVED"] * 4
    assert all(numbers(tmp_path / f"{name}.log") == [0, 9] for name in ("0", "1", "2", "all"))
    assert read_events(tmp_path / "2.log")[1]["process"] == 2
    assert run(grid, tmp_path, "userlog", *ids, "--log", tmp_path / "one.log").exit_code == 1
    assert sorted(numbers(tmp_path / "one.log")) == [0] * 5 + [9] * 5


def test_job_without_log_is_refused(grid: WireGrid, tmp_path: Path) -> None:
    (job_id,) = grid.submit(JobDescription("/bin/true", attributes={"UserLog": "/dev/null"}))
    refused = run(grid, tmp_path, "userlog", job_id)
    assert (refused.exit_code, refused.stderr) == (
        2,
        f"{job_id}: no job names a user log (log = FILE); give --log FILE\n",
    )


def test_submission_names_the_command_that_writes_its_logs(grid: WireGrid, tmp_path: Path) -> None:
    grid.put_tree()
    file = tmp_path / "job.sub"
    file.write_text("executable = /bin/true\ntransfer_executable = false\nlog = job.log\nhold = true\nqueue\n")
    refused = run(grid, tmp_path, "submit", "--follow", "--dry-run", file)
    assert (refused.exit_code, refused.stderr) == (2, "--follow: cannot be combined with --dry-run\n")

    submitted = run(grid, tmp_path, "submit", file, "--json")

    (job_id,) = json.loads(submitted.stdout)["jobs"]
    assert submitted.stderr == f"pilotage: to write the user logs: pilotage userlog {job_id}\n"
    grid.change(job_service_pb2.JOB_CHANGE_REMOVE, job_id)
    written = run(grid, tmp_path, *submitted.stderr.split()[-2:])
    assert (written.exit_code, written.stderr) == (1, f"job {job_id} is REMOVED: because\n")
    assert [event["number"] for event in read_events(tmp_path / "job.log")] == [0, 12, 9]


def test_submission_is_followed_to_its_end(grid: WireGrid, tmp_path: Path) -> None:
    grid.put_tree()
    file = tmp_path / "job.toml"
    file.write_text('executable = "/bin/true"\nlog = "job.log"\n')
    pilot = grid.start_pilot()
    with ThreadPoolExecutor() as threads:
        followed = threads.submit(run, grid, tmp_path, "submit", "--follow", file, "--json")
        (match,) = pilot.request_jobs(wait_s=30).matches
        report(pilot, match.job_id, jobs_pb2.JOB_STATE_RUNNING)
        pilot.finish(match.job_id)
    assert followed.result().exit_code == 0
    submitted, ended = map(json.loads, followed.result().stdout.splitlines())
    assert (submitted["jobs"], ended["id"], ended["state"]) == ([match.job_id], match.job_id, "DONE")
    assert numbers(tmp_path / "job.log") == [0, 1, 5]


def test_follower_writes_events_as_they_happen(grid: WireGrid, tmp_path: Path) -> None:
    """A client that acts on each page sees that it is in the log before the next one comes."""
    path = tmp_path / "log"
    (job_id,) = grid.submit(a_logged_job(path))
    steps = [job_service_pb2.JOB_CHANGE_HOLD, job_service_pb2.JOB_CHANGE_REMOVE]
    seen: list[list[int]] = []
    with client_of(grid) as client:
        follow = client.event_pages

        def stepping(*args: object, **options: object):  # type: ignore[no-untyped-def]
            for page in follow(*args, **options):  # type: ignore[arg-type]
                yield page
                if page:
                    seen.append(numbers(path))
                    grid.change(steps.pop(0), job_id)

        client.event_pages = stepping  # type: ignore[method-assign]
        jobs = client.jobs([job_id])
        (ended,) = write_user_logs(client, jobs, find_user_logs(client, jobs), RetryBudget(30, print))
    assert ended.state == "REMOVED"
    assert seen == [[0], [0, 12]]
    assert numbers(path) == [0, 12, 9]
