"""What every workshop does, be it real or a test's."""

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


async def test_a_payload_that_ends_is_told_once_with_its_exit_code(bench: Bench) -> None:
    end, files, notes = await bench.run(a_job(1, executable="/bin/true"))
    assert (end.key, end.exit_code, end.signal, notes) == (a_job(1).key, 0, None, "")
    assert set(files) == {"stdout", "stderr"}
    assert bench.told.empty()


async def test_a_program_that_is_not_there_is_the_jobs_fault(bench: Bench) -> None:
    job = a_job(1, executable="/no/such/program")
    await bench.prepare(job)
    with pytest.raises(JobFaultError, match="there is no program"):
        bench.workshop.start(job.key)


@pytest.mark.parametrize(("how", "number"), [("stop", 15), ("kill", 9)])
async def test_a_payload_that_is_stopped_or_killed_ends_by_that_signal(bench: Bench, how: str, number: int) -> None:
    key = await bench.start(SLEEPS)
    getattr(bench.workshop, how)(key)
    end = await bench.ends()
    assert (end.exit_code, end.signal) == (None, number)


async def test_a_suspended_payload_can_go_on_and_be_killed(bench: Bench) -> None:
    key = await bench.start(SLEEPS)
    bench.workshop.suspend(key)
    bench.workshop.resume(key)
    bench.workshop.suspend(key)
    bench.workshop.warn(key, 60.0)
    bench.workshop.kill(key)
    assert (await bench.ends()).signal == 9


async def test_two_payloads_run_side_by_side(bench: Bench) -> None:
    other = a_job(2, executable="/bin/true")
    key = await bench.start(SLEEPS)
    await bench.start(other)
    assert (await bench.ends()).key == other.key
    bench.workshop.kill(key)
    assert (await bench.ends()).key == key


async def test_signals_for_what_has_ended_do_nothing(bench: Bench) -> None:
    job: GrantedJob = a_job(1, executable="/bin/true")
    await bench.run(job)
    for act in (bench.workshop.stop, bench.workshop.kill, bench.workshop.suspend, bench.workshop.resume):
        act(job.key)
    bench.workshop.remove(job.key)
    await asyncio.sleep(0)
    assert bench.told.empty()


async def test_closing_ends_what_runs(bench: Bench) -> None:
    await bench.start(SLEEPS)
    await bench.workshop.close()
    assert (await bench.ends()).signal == 9
