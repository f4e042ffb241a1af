"""Payload runners: the real one and the fake one of tests behave alike."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pilotage.jobs.files import JobFaultError
from pilotage_pilot.core.model import GrantedJob
from support.pilot_bench import a_job
from support.pilot_edges import Bench, FakeLink, FakeWorkshop, a_workshop

SLEEPS = a_job(1, executable="/bin/sleep", arguments="600")


@pytest.fixture(params=["real", "fake"])
async def bench(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Bench]:
    if request.param == "fake":
        yield Bench(FakeWorkshop(), FakeLink(), tmp_path)
        return
    async with a_workshop(tmp_path) as real:
        yield real


async def test_end_of_payload_is_reported_once_with_exit_code(bench: Bench) -> None:
    end, files, notes = await bench.run(a_job(1, executable="/bin/true"))
    assert (end.key, end.exit_code, end.signal, notes) == (a_job(1).key, 0, None, "")
    assert set(files) == {"stdout", "stderr"}
    assert bench.told.empty()


async def test_missing_program_is_a_job_fault(bench: Bench) -> None:
    job = a_job(1, executable="/no/such/program")
    await bench.prepare(job)
    with pytest.raises(JobFaultError, match="there is no program"):
        bench.workshop.start(job.key)


@pytest.mark.parametrize(("method", "number"), [("stop", 15), ("kill", 9)])
async def test_stopped_or_killed_payload_ends_by_signal(bench: Bench, method: str, number: int) -> None:
    key = await bench.start(SLEEPS)
    getattr(bench.workshop, method)(key)
    end = await bench.ends()
    assert (end.exit_code, end.signal) == (None, number)


async def test_suspended_payload_can_be_resumed_and_killed(bench: Bench) -> None:
    key = await bench.start(SLEEPS)
    bench.workshop.suspend(key)
    bench.workshop.resume(key)
    bench.workshop.suspend(key)
    bench.workshop.warn(key, 60.0)
    bench.workshop.kill(key)
    assert (await bench.ends()).signal == 9


async def test_two_payloads_run_in_parallel(bench: Bench) -> None:
    other = a_job(2, executable="/bin/true")
    key = await bench.start(SLEEPS)
    await bench.start(other)
    assert (await bench.ends()).key == other.key
    bench.workshop.kill(key)
    assert (await bench.ends()).key == key


async def test_signals_to_ended_payload_do_nothing(bench: Bench) -> None:
    job: GrantedJob = a_job(1, executable="/bin/true")
    await bench.run(job)
    for signal_payload in (bench.workshop.stop, bench.workshop.kill, bench.workshop.suspend, bench.workshop.resume):
        signal_payload(job.key)
    bench.workshop.remove(job.key)
    await asyncio.sleep(0)
    assert bench.told.empty()


async def test_close_kills_running_payloads(bench: Bench) -> None:
    await bench.start(SLEEPS)
    await bench.workshop.close()
    assert (await bench.ends()).signal == 9
