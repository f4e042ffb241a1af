"""The handles of jobs in the Python API, with a whole installation."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

import pilotage_client
from pilotage.errors import InvalidInputError, StateConflictError
from pilotage_client import AsyncClient, Client, job
from support.commands import WAIT_TIMEOUT_S, UpCommand, up_command


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpCommand]:
    with up_command(tmp_path_factory.mktemp("up") / "data") as up:
        yield up.start()


@pytest.fixture
def client(up: UpCommand) -> Iterator[Client]:
    with up.client() as client:
        yield client


def test_everything_is_imported_from_one_package() -> None:
    for name in pilotage_client.__all__:
        assert getattr(importlib.import_module("pilotage_client"), name)
    with pytest.raises(AttributeError, match="Clinet"):
        pilotage_client.Clinet  # noqa: B018


def test_results_come_as_jobs_complete(client: Client, up: UpCommand) -> None:
    first = up.data.parent / "first"
    waits = f"until [ -e {first} ]; do sleep 0.05; done; echo $0"
    jobs = client.submit(
        [job("/bin/sh", "-c", waits, "slow"), job("/bin/sh", "-c", "echo quick $(Process); echo bad >&2", count=3)]
    )
    results = jobs.results(WAIT_TIMEOUT_S)
    quick = [next(results) for _ in range(3)]
    assert sorted(result.stdout for result in quick) == [f"quick {process}\n" for process in range(3)]
    assert {result.stderr for result in quick} == {"bad\n"}
    first.touch()
    (slow,) = results
    assert (slow.stdout, slow.status.state) == ("slow\n", "DONE")
    assert jobs.counts == {"DONE": 4}


def test_long_standard_output_is_in_the_result(client: Client) -> None:
    printed = client.submit(job("/bin/sh", "-c", "seq 20000"))[0].result(WAIT_TIMEOUT_S)
    assert [file.content for file in printed.output.files if file.name == "stdout"] == [None]
    assert printed.stdout.splitlines() == [str(number) for number in range(1, 20001)]


def test_result_of_a_job_that_cannot_run_is_an_error(client: Client, up: UpCommand) -> None:
    parent = client.submit(job("/bin/false"))
    child = client.submit(job("/bin/true", after_ok=str(parent.job_ids[0])))
    up.until(lambda: child[0].status.futile)
    with pytest.raises(StateConflictError, match=f"see `pilotage why {child.job_ids[0]}`"):
        child[0].result(WAIT_TIMEOUT_S)
    child.cancel()


def test_input_files_are_given_by_path(client: Client, tmp_path: Path) -> None:
    (tmp_path / "data.txt").write_text("12\n")
    submitted = client.submit(job("/bin/cat", "data.txt", folder=tmp_path, input_files="data.txt", memory="100 MB"))
    result = submitted[0].result(WAIT_TIMEOUT_S)
    assert result.stdout == "12\n"
    assert client.description(submitted[0].id).request_memory_mib == 100
    (path, *_) = submitted.fetch(tmp_path / "out")
    assert path.parent == tmp_path / "out" / str(submitted[0].id)
    with pytest.raises(InvalidInputError, match=r"nothing\.txt"):
        job("/bin/cat", input_files=["nothing.txt"], folder=tmp_path)


def test_set_is_waited_for_with_a_timeout_and_cancelled(client: Client) -> None:
    jobs = client.submit(job("/bin/true", require={"SoftwareTag": "nowhere"}, count=4))
    with pytest.raises(TimeoutError, match="4 of 4 jobs"):
        next(jobs.as_completed(timeout_s=0.5))
    assert [status.state for status in jobs.wait(timeout_s=0.1)] == ["WAITING"] * 4
    assert not any(result.refusal for result in jobs[:2].cancel("no longer needed"))
    assert jobs.counts == {"REMOVED": 2, "WAITING": 2}
    assert client.select(jobs[0].id).counts == jobs.counts, "a cluster is selected by its first job"
    assert "<td>REMOVED</td>" in jobs._repr_html_()
    jobs.cancel()
    assert [status.reason for status in jobs[:2].statuses] == ["no longer needed"] * 2


def test_html_of_a_set_escapes_what_users_wrote(client: Client) -> None:
    jobs = client.submit(job("/bin/true", name="<script>alert(1)</script>", hold=True))
    for shown in (jobs, jobs[0]):
        assert "<script>" not in shown._repr_html_()
        assert "&lt;script&gt;" in shown._repr_html_()
    jobs.cancel()


def test_queues_and_pilots_are_tables(client: Client) -> None:
    assert "<th>pilots</th>" in client.queues()._repr_html_()
    assert "<td>RUNNING</td>" in client.pilots()._repr_html_()
    assert client.queues(site="nowhere")._repr_html_() == "<p>none</p>"


async def test_async_client_waits_for_many_sets_at_once(up: UpCommand) -> None:
    async with AsyncClient(up.client()) as client:
        jobs = await client.submit(job("/bin/echo", "$(Process)", count=3))
        assert len(jobs.job_ids) == 3
        printed = {result.stdout async for result in jobs.results(WAIT_TIMEOUT_S)}
        assert printed == {"0\n", "1\n", "2\n"}
        assert await jobs.counts == {"DONE": 3}
        assert [(await each.status).exit_code for each in jobs[1:]] == [0, 0]
        (file,) = [each for each in await client.output_files(jobs[2].id) if each.name == "stdout"]
        assert [part async for part in client.stream_output(jobs[2].id, file)] == [b"2\n"]
        listed = [status.id async for status in client.list_jobs(newest_first=True)]
        assert set(jobs.job_ids) <= set(listed)
