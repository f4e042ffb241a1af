"""Pilot processes with a real server: jobs, files, signals, and crashes of either side."""

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
from pilotage_client.api import Client
from pilotage_server.core.identity import Role
from support.process_grid import QUEUE, ProcessGrid, a_process_grid, read_text
from support.processes import is_running, processes_with, until
from support.server import request_id

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
    """Return a grid whose server has had no pilot."""
    with a_process_grid(tmp_path) as grid:
        yield grid


async def test_job_runs_with_input_and_returns_output(grid: ProcessGrid, tmp_path: Path) -> None:
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


async def test_job_is_retried_after_its_exit_code_and_after_its_memory_limit(grid: ProcessGrid) -> None:
    hog = "import time; a = bytearray(80 << 20); print(len(a), flush=True); time.sleep(0 if small else 600)"
    script = f"""
        [ $PILOTAGE_ATTEMPT_NUMBER = 1 ] && exit 3
        small=$([ $PILOTAGE_ATTEMPT_NUMBER = 3 ] && echo True || echo False)
        exec python3 -c "small = $small; {hog}"
    """
    job_id = grid.submit(script=script, retries=1, retry_memory=4, request_memory_mib=50)
    async with grid.pilot(cpus=1, memory_mib=60):
        await until(lambda: "MiB" in grid.job(job_id).reason)
    async with grid.pilot(cpus=1, memory_mib=300):
        job = await grid.done(job_id)
    assert (job.state, job.exit_code, job.attempt) == (jobs_pb2.JOB_STATE_DONE, 0, 3)
    assert grid.output(job_id)["stdout"] == b"83886080\n"
    exited, exceeded, succeeded = grid.attempts(job_id)
    assert (exited.outcome, exited.exit_code) == ("exited", 3)
    assert (exceeded.outcome, exceeded.pilot_stamp) == ("limit exceeded", exited.pilot_stamp)
    assert exceeded.usage.peak_memory_mib > 0
    assert exceeded.reason.endswith("MiB used, 50 MiB requested")
    assert (succeeded.outcome, succeeded.pilot_stamp != exited.pilot_stamp) == ("exited", True)


async def test_node_attributes_are_matched_with_requirements_expressions(
    grid: ProcessGrid,
) -> None:
    async with grid.pilot(node_attributes={"Colour": "red", "Zones": ["a", "b"]}):
        blue = grid.submit(executable="/bin/true", requirements_expression='TARGET.Colour == "blue"')
        red = grid.submit(
            executable="/bin/true", requirements_expression='TARGET.Colour == "RED" && member("b", TARGET.Zones)'
        )
        assert (await grid.done(red)).state == jobs_pb2.JOB_STATE_DONE
        assert grid.job(blue).state == jobs_pb2.JOB_STATE_WAITING


async def test_invalid_job_fails_alone(grid: ProcessGrid) -> None:
    checksum = grid.upload(b"x")
    before = grid.submit(executable="/bin/true")
    names = ("data$(Cluster)", f"data{before + 1}")
    files = [jobs_pb2.InputFile(name=name, checksum=checksum, size=1) for name in names]
    invalid = grid.submit(executable="/bin/true", input_files=files)
    assert invalid == before + 1
    after = grid.submit(executable="/bin/true")
    async with grid.pilot(cpus=1):
        assert [(await grid.done(job_id)).state for job_id in (before, after)] == [jobs_pb2.JOB_STATE_DONE] * 2
        failed = await grid.done(invalid)
    assert failed.state == jobs_pb2.JOB_STATE_FAILED
    assert f"there are two files data{invalid}" in failed.reason


async def test_removed_job_is_killed_and_its_slot_reused(grid: ProcessGrid) -> None:
    async with grid.pilot(cpus=1) as pilot:
        job_id = grid.submit(script="sleep 600")
        await until(lambda: bool(pilot.payload_pids(job_id)))
        grid.remove(job_id)
        assert (await grid.done(grid.submit(script="echo next"))).state == jobs_pb2.JOB_STATE_DONE
        assert not pilot.payload_pids(job_id)
        assert grid.job(job_id).state == jobs_pb2.JOB_STATE_REMOVED


async def test_job_terminated_together_with_its_pilot_is_requeued(grid: ProcessGrid) -> None:
    async with grid.pilot() as pilot:
        job_id = grid.submit(script="exec sleep 600")
        await until(lambda: bool(processes_with(f"/jobs/{job_id}.", f"{pilot.scratch}/", "sleep\x00600")))
        (payload,) = pilot.payload_pids(job_id)
        # Stop the pilot, so that it receives its own SIGTERM before it sees the payload's end.
        os.kill(pilot.pid, signal.SIGSTOP)
        os.kill(payload, signal.SIGTERM)
        await until(lambda: not is_running(payload))
        pilot.process.terminate()
        os.kill(pilot.pid, signal.SIGCONT)
        code, _ = await pilot.ends()
    assert (code, grid.job(job_id).state) == (0, jobs_pb2.JOB_STATE_WAITING)


async def test_job_that_terminates_itself_has_failed(grid: ProcessGrid) -> None:
    async with grid.pilot():
        job = await grid.done(grid.submit(script="kill $$; sleep 600"))
    assert job.state == jobs_pb2.JOB_STATE_FAILED


async def test_terminated_pilot_returns_its_job_and_cleans_up(grid: ProcessGrid) -> None:
    async with grid.pilot() as pilot:
        job_id = grid.submit(script="sleep 600")
        await until(lambda: bool(pilot.payload_pids(job_id)))
        pilot.process.send_signal(signal.SIGTERM)
        code, last = await pilot.ends()
        assert (code, last["event"], last["exit_code"]) == (0, "pilot ends", 0)
        assert "SIGTERM" in last["reason"]
        assert grid.job(job_id).state == jobs_pb2.JOB_STATE_WAITING
        assert "evicted" in grid.causes(job_id)
        assert not pilot.payload_pids(job_id)
        assert os.listdir(pilot.scratch) == []
    async with grid.pilot():
        await until(lambda: grid.job(job_id).state == jobs_pb2.JOB_STATE_RUNNING)
        assert grid.job(job_id).attempt == 2


async def test_idle_pilot_ends_on_sigterm(grid: ProcessGrid) -> None:
    async with grid.pilot() as pilot:
        await until(lambda: "pilot starts" in read_text(pilot.log))
        pilot.process.send_signal(signal.SIGTERM)
        code, _ = await pilot.ends()
        assert code == 0


async def test_pilot_ends_after_the_idle_timeout(grid: ProcessGrid) -> None:
    job_id = grid.submit(script="echo only")
    async with grid.pilot(max_idle_s=0) as pilot:
        code, last = await pilot.ends()
    assert (code, grid.job(job_id).state) == (0, jobs_pb2.JOB_STATE_DONE)
    assert "no job" in last["reason"]


async def test_supply_counts_pilots_that_ran_no_job(new_grid: ProcessGrid) -> None:
    async with new_grid.pilot(max_idle_s=0) as pilot:
        await pilot.ends()
    async with new_grid.server.async_channel(new_grid.server.token(Role.DIRECTOR)) as channel:
        (supply,) = (await AgentServerLink(channel).demand([QUEUE])).supplies
    assert supply.empty_returns is not None
    assert (supply.empty_returns.pilots, supply.empty_returns.sendings) == (1, 1)


async def test_payloads_of_killed_pilot_die_and_next_pilot_cleans_up(grid: ProcessGrid) -> None:
    async with grid.pilot() as pilot:
        job_id = grid.submit(script="setsid sleep 600 & wait")
        await until(lambda: len(pilot.payload_pids(job_id)) == 2)
        pilot.kill()
        await until(lambda: not pilot.payload_pids(job_id))
        await pilot.process.wait()
        assert len(os.listdir(pilot.scratch)) == 1
    async with grid.pilot(max_idle_s=0) as next_pilot:
        await next_pilot.ends()
        assert os.listdir(next_pilot.scratch) == []


async def test_job_survives_a_server_crash(grid: ProcessGrid, tmp_path: Path) -> None:
    async with grid.pilot():
        started, go = tmp_path / "started", tmp_path / "go-on"
        job_id = grid.submit(script=f"touch {started}; while [ ! -e {go} ]; do sleep 0.05; done; echo through")
        await until(started.exists)
        grid.server.kill()
        go.touch()
        await asyncio.to_thread(grid.server.start)
        job = await grid.done(job_id)
    assert (job.state, job.attempt) == (jobs_pb2.JOB_STATE_DONE, 1)
    assert grid.output(job_id)["stdout"] == b"through\n"


async def test_pilot_with_rejected_credential_ends(grid: ProcessGrid) -> None:
    async with grid.pilot() as pilot:
        await until(lambda: "pilot starts" in read_text(pilot.log))
    forged = grid.pilot_token().rsplit(".", 1)[0] + ".AAAA"
    async with grid.pilot(token=forged, token_file=None) as pilot:
        code, last = await pilot.ends()
    assert (code, "refuses" in last["reason"]) == (3, True)


async def test_fast_failing_payload_plugs_its_slot(grid: ProcessGrid) -> None:
    async with grid.pilot(cpus=1, plug_s=1):
        failed, good = grid.submit(script="exit 4"), grid.submit(script="echo next")
        job, after = await grid.done(failed), await grid.done(good)
    assert (job.state, job.exit_code) == (jobs_pb2.JOB_STATE_FAILED, 4)
    assert after.started.ToDatetime() - job.started.ToDatetime() >= timedelta(seconds=1)
    assert after.state == jobs_pb2.JOB_STATE_DONE


async def test_failure_of_plugged_payload_is_visible_at_once(grid: ProcessGrid) -> None:
    async with grid.pilot(cpus=1, plug_s=600):
        failed = grid.submit(script="exit 4")
        await until(lambda: "plugged" in grid.causes(failed))
        job = grid.job(failed)
        assert job.state == jobs_pb2.JOB_STATE_RUNNING
        assert job.reason.startswith("exit code 4 after ")
        grid.remove(failed)
        await until(lambda: grid.job(failed).state == jobs_pb2.JOB_STATE_REMOVED)


async def test_idle_pilot_reports_its_slots_on_request(tmp_path: Path) -> None:
    with a_process_grid(tmp_path, heartbeat_s=3600) as grid:
        node = ("SITE", "node1")
        async with grid.pilot(node_name="node1") as pilot:
            with Client(grid.server.address, grid.user_token()) as client:
                await until(lambda: bool(client.slots(node=node)))
                asked = await asyncio.to_thread(client.request_reports, node)
                await until(lambda: all(slot.answered for slot in client.slots(node=node)))
    assert list(asked.pilot_stamps) == [pilot.stamp]


async def test_job_of_revoked_pilot_returns_when_its_payload_is_dead(tmp_path: Path) -> None:
    settings = {"lease_s": 10, "shortest_lease_s": 1, "expire_every_s": 0.1}
    with a_process_grid(tmp_path, **settings) as grid:
        async with grid.pilot() as pilot:
            seconds = f"600.{request_id()[:8].translate(str.maketrans('abcdef', '012345'))}"
            job_id = grid.submit(script=f"exec sleep {seconds}")
            await until(lambda: is_argument(seconds))
            with Client(grid.server.address, grid.server.token(Role.OPERATOR)) as client:
                assert client.revoke_pilots([pilot.stamp], reason="stolen").count == 1
            await until(lambda: grid.job(job_id).state == jobs_pb2.JOB_STATE_WAITING)
            assert not is_argument(seconds)
            _, last = await pilot.ends()
        assert grid.causes(job_id)[-1] == "lease lost"
    assert last["event"] == "pilot ends"


def is_argument(text: str) -> bool:
    """Return whether a process has this argument."""
    for folder in Path("/proc").iterdir():
        try:
            arguments = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:  # no process, or one that has just ended
            continue
        if text.encode() in arguments:
            return True
    return False
