"""Payload runners: the real one and the fake one of tests behave alike."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pilotage.jobs.files import JobFaultError
from pilotage_pilot.core.model import GrantedJob
from support.pilot_bench import a_job
from support.pilot_ports import FakePayloadRunner, FakeServerLink, PayloadBench, a_payload_runner

SLEEPS = a_job(1, executable="/bin/sleep", arguments="600")


@pytest.fixture(params=["real", "fake"])
async def bench(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[PayloadBench]:
    if request.param == "fake":
        yield PayloadBench(FakePayloadRunner(), FakeServerLink(), tmp_path)
        return
    async with a_payload_runner(tmp_path) as real:
        yield real


async def test_end_of_payload_is_reported_once_with_exit_code(bench: PayloadBench) -> None:
    end, files, notes = await bench.run(a_job(1, executable="/bin/true"))
    assert (end.key, end.exit_code, end.signal, notes) == (a_job(1).key, 0, None, "")
    assert set(files) == {"stdout", "stderr"}
    assert bench.events.empty()


async def test_missing_program_is_a_job_fault(bench: PayloadBench) -> None:
    job = a_job(1, executable="/no/such/program")
    await bench.prepare(job)
    with pytest.raises(JobFaultError, match="there is no program"):
        await bench.launch(job.key)


@pytest.mark.parametrize(("method", "number"), [("stop", 15), ("kill", 9)])
async def test_stopped_or_killed_payload_ends_by_signal(bench: PayloadBench, method: str, number: int) -> None:
    key = await bench.start(SLEEPS)
    getattr(bench.payload_runner, method)(key)
    end = await bench.next_exit()
    assert (end.exit_code, end.signal) == (None, number)


async def test_suspended_payload_can_be_resumed_and_killed(bench: PayloadBench) -> None:
    key = await bench.start(SLEEPS)
    bench.payload_runner.suspend(key)
    bench.payload_runner.resume(key)
    bench.payload_runner.suspend(key)
    bench.payload_runner.warn(key, 60.0)
    bench.payload_runner.kill(key)
    assert (await bench.next_exit()).signal == 9


async def test_two_payloads_run_in_parallel(bench: PayloadBench) -> None:
    other = a_job(2, executable="/bin/true")
    key = await bench.start(SLEEPS)
    await bench.start(other)
    assert (await bench.next_exit()).key == other.key
    bench.payload_runner.kill(key)
    assert (await bench.next_exit()).key == key


async def test_signals_to_ended_payload_do_nothing(bench: PayloadBench) -> None:
    job: GrantedJob = a_job(1, executable="/bin/true")
    await bench.run(job)
    for signal_payload in (
        bench.payload_runner.stop,
        bench.payload_runner.kill,
        bench.payload_runner.suspend,
        bench.payload_runner.resume,
    ):
        signal_payload(job.key)
    bench.payload_runner.remove(job.key)
    await asyncio.sleep(0)
    assert bench.events.empty()


async def test_close_kills_running_payloads(bench: PayloadBench) -> None:
    await bench.start(SLEEPS)
    await bench.payload_runner.close()
    assert (await bench.next_exit()).signal == 9
