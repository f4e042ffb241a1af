"""A pilot as people start it, with a real server: jobs, files, commands, and the deaths of either."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from pilotage.v1 import jobs_pb2
from pilotage_agents.server_link import AgentServerLink
from pilotage_server.core.identity import Role
from support.process_grid import QUEUE, ProcessGrid, a_process_grid, read_text
from support.processes import is_running, until

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def shared_grid(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessGrid]:
    with a_process_grid(tmp_path_factory.mktemp("grid")) as grid:
        yield grid


@pytest.fixture
def grid(shared_grid: ProcessGrid, tmp_path: Path) -> ProcessGrid:
    return shared_grid.of_another_vo(tmp_path)


@pytest.fixture
def new_grid(tmp_path: Path) -> Iterator[ProcessGrid]:
    """Return a grid whose server has seen no pilot yet."""
    with a_process_grid(tmp_path) as grid:
        yield grid


async def test_a_job_runs_with_its_files_and_its_owner_gets_what_it_leaves(grid: ProcessGrid, tmp_path: Path) -> None:
    async with grid.pilot():
        content = b"line\n" * 50_000
        checksum = grid.upload(content)
        in_file = jobs_pb2.InputFile(name="data/in", checksum=checksum, size=len(content))
        job_id = grid.submit(
            script="sort -u data/in; cp data/in out.dat; echo warn >&2; exit 4",
            input_files=[in_file],
            output_files=["*.dat"],
        )
        job = await grid.done(job_id)
    assert (job.state, job.exit_code, job.slot[:5]) == (jobs_pb2.JOB_STATE_FAILED, 4, "slot1")
    assert grid.output(job_id) == {"stdout": b"line\n", "stderr": b"warn\n", "out.dat": content}


async def test_what_is_said_of_the_node_in_the_pilots_settings_is_matched_with_jobs_expressions(
    grid: ProcessGrid,
) -> None:
    async with grid.pilot(node_attributes={"Colour": "red", "Zones": ["a", "b"]}):
        blue = grid.submit(executable="/bin/true", requirements_expression='TARGET.Colour == "blue"')
        red = grid.submit(
            executable="/bin/true", requirements_expression='TARGET.Colour == "RED" && member("b", TARGET.Zones)'
        )
        assert (await grid.done(red)).state == jobs_pb2.JOB_STATE_DONE
        assert grid.job(blue).state == jobs_pb2.JOB_STATE_WAITING


async def test_a_job_that_no_pilot_can_read_fails_alone(grid: ProcessGrid) -> None:
    checksum = grid.upload(b"x")
    before = grid.submit(executable="/bin/true")
    names = ("data$(Cluster)", f"data{before + 1}")
    files = [jobs_pb2.InputFile(name=name, checksum=checksum, size=1) for name in names]
    odd = grid.submit(executable="/bin/true", input_files=files)
    assert odd == before + 1
    after = grid.submit(executable="/bin/true")
    async with grid.pilot(cpus=1):
        assert [(await grid.done(each)).state for each in (before, after)] == [jobs_pb2.JOB_STATE_DONE] * 2
        failed = await grid.done(odd)
    assert failed.state == jobs_pb2.JOB_STATE_FAILED
    assert f"there are two files data{odd}" in failed.reason


async def test_a_removed_job_is_killed_and_the_slot_takes_the_next(grid: ProcessGrid, tmp_path: Path) -> None:
    async with grid.pilot(cpus=1):
        mark = tmp_path / "pid"
        job_id = grid.submit(script=f"echo $$ > {mark}; sleep 600")
        await until(lambda: mark.exists() and mark.read_text().endswith("\n"))
        grid.remove(job_id)
        assert (await grid.done(grid.submit(script="echo next"))).state == jobs_pb2.JOB_STATE_DONE
        assert not is_running(int(read_text(mark)))
        assert grid.job(job_id).state == jobs_pb2.JOB_STATE_REMOVED


async def test_a_job_that_a_batch_system_asks_to_end_with_its_pilot_goes_back_and_has_not_failed(
    grid: ProcessGrid, tmp_path: Path
) -> None:
    async with grid.pilot() as pilot:
        mark = tmp_path / "pid"
        job_id = grid.submit(script=f"echo $$ > {mark}; sleep 600")
        await until(lambda: mark.exists() and mark.read_text().endswith("\n"))
        payload = int(read_text(mark))
        # It is asked itself before it hears of the payload's end, however slow this test is.
        os.kill(pilot.process.pid, signal.SIGSTOP)
        os.kill(payload, signal.SIGTERM)
        await until(lambda: not is_running(payload))
        pilot.process.terminate()
        os.kill(pilot.process.pid, signal.SIGCONT)
        code, _ = await pilot.ends()
    assert (code, grid.job(job_id).state) == (0, jobs_pb2.JOB_STATE_WAITING)


async def test_a_job_that_ends_itself_by_the_signal_to_end_has_failed(grid: ProcessGrid) -> None:
    async with grid.pilot():
        job = await grid.done(grid.submit(script="kill $$; sleep 600"))
    assert job.state == jobs_pb2.JOB_STATE_FAILED


async def test_a_pilot_that_is_told_to_end_gives_its_job_back_and_leaves_nothing(
    grid: ProcessGrid, tmp_path: Path
) -> None:
    async with grid.pilot() as pilot:
        mark = tmp_path / "pid"
        job_id = grid.submit(script=f"echo $$ > {mark}; sleep 600")
        await until(lambda: mark.exists() and mark.read_text().endswith("\n"))
        pilot.process.send_signal(signal.SIGTERM)
        code, last = await pilot.ends()
        assert (code, last["event"], last["exit_code"]) == (0, "pilot ends", 0)
        assert "SIGTERM" in last["reason"]
        assert grid.job(job_id).state == jobs_pb2.JOB_STATE_WAITING
        assert "evicted" in grid.causes(job_id)
        assert not is_running(int(read_text(mark)))
        assert os.listdir(pilot.scratch) == []
    async with grid.pilot():
        await until(lambda: grid.job(job_id).state == jobs_pb2.JOB_STATE_RUNNING)
        assert grid.job(job_id).attempt == 2


async def test_an_idle_pilot_ends_at_once_when_told(grid: ProcessGrid) -> None:
    async with grid.pilot() as pilot:
        await until(lambda: "pilot starts" in read_text(pilot.log))
        pilot.process.send_signal(signal.SIGTERM)
        code, _ = await pilot.ends()
        assert code == 0


async def test_a_pilot_without_work_ends_by_itself(grid: ProcessGrid) -> None:
    job_id = grid.submit(script="echo only")
    async with grid.pilot(max_idle_s=0) as pilot:
        code, last = await pilot.ends()
    assert (code, grid.job(job_id).state) == (0, jobs_pb2.JOB_STATE_DONE)
    assert "no job" in last["reason"]


async def test_a_site_director_hears_of_a_pilot_that_never_ran_a_job(new_grid: ProcessGrid) -> None:
    async with new_grid.pilot(max_idle_s=0) as pilot:
        await pilot.ends()
    async with new_grid.server.async_channel(new_grid.server.token(Role.AGENT)) as channel:
        (supply,) = (await AgentServerLink(channel).demand([QUEUE])).supplies
    assert supply.empty_returns is not None
    assert (supply.empty_returns.pilots, supply.empty_returns.sendings) == (1, 1)


async def test_the_payloads_of_a_killed_pilot_die_and_the_next_pilot_clears_up(
    grid: ProcessGrid, tmp_path: Path
) -> None:
    async with grid.pilot() as pilot:
        mark = tmp_path / "pid"
        grid.submit(script=f"setsid sleep 600 & echo $! $$ > {mark}; wait")
        await until(lambda: mark.exists() and mark.read_text().endswith("\n"))
        pilot.process.kill()
        pids = [int(pid) for pid in read_text(mark).split()]
        await until(lambda: not any(is_running(pid) for pid in pids))
        await pilot.process.wait()
        assert len(os.listdir(pilot.scratch)) == 1
    async with grid.pilot(max_idle_s=0) as following:
        await following.ends()
        assert os.listdir(following.scratch) == []


async def test_a_job_outlives_the_death_of_its_server(grid: ProcessGrid, tmp_path: Path) -> None:
    async with grid.pilot():
        started, go_on = tmp_path / "started", tmp_path / "go-on"
        job_id = grid.submit(script=f"touch {started}; while [ ! -e {go_on} ]; do sleep 0.05; done; echo through")
        await until(started.exists)
        grid.server.kill()
        go_on.touch()
        await asyncio.to_thread(grid.server.start)
        job = await grid.done(job_id)
    assert (job.state, job.attempt) == (jobs_pb2.JOB_STATE_DONE, 1)
    assert grid.output(job_id)["stdout"] == b"through\n"


async def test_a_pilot_whose_credential_is_refused_says_so(grid: ProcessGrid) -> None:
    async with grid.pilot() as pilot:
        await until(lambda: "pilot starts" in read_text(pilot.log))
    forged = grid.pilot_token().rsplit(".", 1)[0] + ".AAAA"
    async with grid.pilot(token=forged, token_file=None) as pilot:
        code, last = await pilot.ends()
    assert (code, "refuses" in last["reason"]) == (3, True)


async def test_a_payload_that_failed_fast_keeps_its_slot_for_the_time_of_the_plug(grid: ProcessGrid) -> None:
    async with grid.pilot(cpus=1, plug_s=1):
        failed, good = grid.submit(script="exit 4"), grid.submit(script="echo next")
        job, after = await grid.done(failed), await grid.done(good)
    assert (job.state, job.exit_code) == (jobs_pb2.JOB_STATE_FAILED, 4)
    assert after.started.ToDatetime() - job.started.ToDatetime() >= timedelta(seconds=1)
    assert after.state == jobs_pb2.JOB_STATE_DONE


async def test_an_owner_sees_at_once_that_a_payload_has_failed_that_is_plugged(grid: ProcessGrid) -> None:
    async with grid.pilot(cpus=1, plug_s=600):
        failed = grid.submit(script="exit 4")
        await until(lambda: "plugged" in grid.causes(failed))
        job = grid.job(failed)
        assert job.state == jobs_pb2.JOB_STATE_RUNNING
        assert job.reason.startswith("exit code 4 after ")
        grid.remove(failed)
        await until(lambda: grid.job(failed).state == jobs_pb2.JOB_STATE_REMOVED)
