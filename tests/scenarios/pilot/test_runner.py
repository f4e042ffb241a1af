"""A pilot from its start to its end, with a server in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from pilotage import clock
from pilotage.errors import ServerUnreachableError, UnauthenticatedError
from pilotage.job_description import InputFile
from pilotage.values.amounts import Amounts
from pilotage.values.attempts import Outcome
from pilotage_pilot.core.events import (
    ContinueRequested,
    DrainCommanded,
    KillCommanded,
    PoolsRead,
    StopRequested,
    SuspendRequested,
)
from pilotage_pilot.core.instructions import EndPilot
from pilotage_pilot.core.lifetime import ExitCode
from pilotage_pilot.core.machine import PilotMachine
from pilotage_pilot.core.model import GrantedJob, Now, Report, ReportedState
from pilotage_pilot.core.rules import Lifetime, PilotRules
from pilotage_pilot.link.base import NodeDescription
from pilotage_pilot.runner import PilotPorts, PilotRunner
from pilotage_pilot.supervise.base import PayloadRunner
from pilotage_pilot.supervise.folders import PilotFolder
from pilotage_pilot.supervise.payload_runner import LocalPayloadRunner, PayloadRules
from support.pilot_bench import a_job, built_in_slots
from support.pilot_edges import SITE, FakeLink, FakeNode, FakeWorkshop, OddWorkshop
from support.processes import until

SHARE = Amounts(2, 1000, 1000)
QUICK = PilotRules(wait_s=5, heartbeat_s=0.2, grace_s=0.5, goodbye_timeout_s=2)


@dataclass
class Running:
    """A pilot that runs, and its server."""

    link: FakeLink
    runner: PilotRunner
    end: asyncio.Task[EndPilot]

    async def outcome(self, job: GrantedJob) -> Report:
        """Return the outcome of a job as soon as the server has it."""
        await until(lambda: any(report.key == job.key and report.outcome for report in self.link.reports))
        return next(report for report in self.link.reports if report.key == job.key and report.outcome)

    async def says(self, job: GrantedJob, state: ReportedState) -> None:
        """Return as soon as the server has heard that the job is in this state."""
        await until(lambda: any(report.key == job.key and report.state is state for report in self.link.reports))


def a_runner(
    link: FakeLink, workshop: PayloadRunner, rules: PilotRules = QUICK, *faults: str, lifetime: Lifetime | None = None
) -> PilotRunner:
    now = Now(clock.now(), clock.boot_time_s())
    machine = PilotMachine("pilot", built_in_slots(SHARE, now), rules, lifetime or Lifetime(), now)

    async def pools(fresh: bool) -> PoolsRead:
        return await link.read_pools() if fresh else PoolsRead(True, ("a" * 64,))

    edges = PilotPorts(link, workshop, FakeNode(SHARE, *faults), clock.now, clock.boot_time_s)
    return PilotRunner(machine, edges, NodeDescription("node1", SHARE), pools)


@asynccontextmanager
async def a_pilot(
    workshop: PayloadRunner, rules: PilotRules = QUICK, link: FakeLink | None = None
) -> AsyncIterator[Running]:
    server = link or FakeLink()
    runner = a_runner(server, workshop, rules)
    task = asyncio.create_task(runner.run())
    try:
        yield Running(server, runner, task)
    finally:
        task.cancel()
        await asyncio.wait([task])


@pytest.fixture(params=["real", "fake"])
def workshop(request: pytest.FixtureRequest, tmp_path: Path) -> object:
    if request.param == "fake":
        return FakeWorkshop
    # Made inside the event loop, as it wants to be.
    return lambda: LocalPayloadRunner(PilotFolder(tmp_path), FakeLink(), SITE, PayloadRules(watch_s=0.05), None)


async def test_jobs_run_and_their_outcomes_are_told(workshop: type[FakeWorkshop]) -> None:
    async with a_pilot(workshop()) as pilot:
        jobs = [a_job(number, executable="/bin/true") for number in range(1, 21)]
        await pilot.link.put(*jobs)
        outcomes = [await pilot.outcome(job) for job in jobs]
        assert {(report.outcome, report.exit_code) for report in outcomes} == {(Outcome.EXITED, 0)}
        assert all(len(report.output_files) == 2 for report in outcomes)


async def test_jobs_that_are_over_in_no_time_take_few_requests_and_each_is_told_of_once() -> None:
    async with a_pilot(FakeWorkshop()) as pilot:
        jobs = [a_job(number, executable="/bin/true") for number in range(1, 201)]
        await pilot.link.put(*jobs)
        outcomes = [await pilot.outcome(job) for job in jobs]
        assert {(report.outcome, report.exit_code) for report in outcomes} == {(Outcome.EXITED, 0)}
        assert len([report for report in pilot.link.reports if report.outcome]) == len(jobs)
        assert len(pilot.link.requests) < len(jobs) / 4


async def test_a_job_that_cannot_be_started_is_refused_with_its_reason(workshop: type[FakeWorkshop]) -> None:
    async with a_pilot(workshop()) as pilot:
        job = a_job(1, executable="no-such-program")
        await pilot.link.put(job)
        report = await pilot.outcome(job)
        assert report.outcome is Outcome.REFUSED_BY_JOB
        assert "there is no program no-such-program" in report.reason


async def test_a_removed_job_is_stopped(workshop: type[FakeWorkshop]) -> None:
    async with a_pilot(workshop()) as pilot:
        job = a_job(1, executable="/bin/sleep", arguments="600")
        await pilot.link.put(job)
        await pilot.says(job, ReportedState.RUNNING)
        await pilot.link.command(KillCommanded(job.key, "removed by alice"))
        report = await pilot.outcome(job)
        assert (report.outcome, report.reason) == (Outcome.KILLED, "removed by alice")


async def test_a_pilot_that_is_told_to_stop_gives_its_jobs_back_and_says_good_bye(
    workshop: type[FakeWorkshop],
) -> None:
    async with a_pilot(workshop()) as pilot:
        job = a_job(1, executable="/bin/sleep", arguments="600")
        await pilot.link.put(job)
        await pilot.says(job, ReportedState.RUNNING)
        pilot.runner.feed(StopRequested("SIGTERM"))
        end = await asyncio.wait_for(pilot.end, 10)
        assert (end.reason, end.exit_code) == ("SIGTERM", ExitCode.AS_PLANNED)
        assert (await pilot.outcome(job)).outcome is Outcome.EVICTED
        assert pilot.link.beats[-1].ending


async def test_an_idle_pilot_told_to_stop_ends_at_once_though_its_request_waits() -> None:
    async with a_pilot(FakeWorkshop(), PilotRules(wait_s=600)) as pilot:
        await until(lambda: bool(pilot.link.requests))
        pilot.runner.feed(StopRequested("SIGTERM"))
        async with asyncio.timeout(5):
            await pilot.end
        assert [call.wait_s for call in pilot.link.requests] == [600, 0]


async def test_a_payload_is_suspended_and_goes_on_with_its_glidein() -> None:
    workshop = FakeWorkshop()
    async with a_pilot(workshop) as pilot:
        job = a_job(1, executable="sleep")
        await pilot.link.put(job)
        await pilot.says(job, ReportedState.RUNNING)
        pilot.runner.feed(SuspendRequested())
        await pilot.says(job, ReportedState.SUSPENDED)
        assert workshop.suspended == {job.key}
        pilot.runner.feed(ContinueRequested())
        assert workshop.suspended == set()


async def test_calls_that_fail_are_made_again_and_nothing_is_lost() -> None:
    link = FakeLink()
    link.failures.extend(ServerUnreachableError("no server") for _ in range(4))
    async with a_pilot(FakeWorkshop(), link=link) as pilot:
        job = a_job(1, executable="true")
        await pilot.link.put(job)
        assert (await pilot.outcome(job)).outcome is Outcome.EXITED


async def test_a_refused_credential_ends_the_pilot() -> None:
    link = FakeLink()
    link.failures.extend(UnauthenticatedError("the token has expired") for _ in range(50))
    async with a_pilot(FakeWorkshop(), link=link) as pilot:
        end = await asyncio.wait_for(pilot.end, 10)
        assert end.exit_code is ExitCode.NO_SERVER
        assert "the token has expired" in end.reason


async def test_a_pilot_without_work_ends_and_closes_its_workshop() -> None:
    workshop = FakeWorkshop()
    async with a_pilot(workshop, PilotRules(max_idle_s=0)) as pilot:
        await pilot.link.put(a_job(1, executable="true"))
        end = await asyncio.wait_for(pilot.end, 10)
        assert "no job" in end.reason
        assert workshop.closed
        assert [report.outcome for report in pilot.link.reports if report.outcome] == [Outcome.EXITED]


async def test_a_drained_pilot_lets_its_job_end() -> None:
    workshop = FakeWorkshop()
    async with a_pilot(workshop) as pilot:
        job = a_job(1, executable="sleep")
        await pilot.link.put(job)
        await pilot.says(job, ReportedState.RUNNING)
        await pilot.link.command(DrainCommanded("maintenance"))
        await until(lambda: any(beat.draining for beat in pilot.link.beats))
        assert job.key in workshop.running
        workshop.stop(job.key)
        assert (await asyncio.wait_for(pilot.end, 10)).reason == "maintenance"


async def test_an_unfit_node_ends_its_pilot_before_it_asks_for_work() -> None:
    link = FakeLink()
    end = await asyncio.wait_for(a_runner(link, FakeWorkshop(), QUICK, "disk full").run(), 10)
    assert (end.exit_code, link.requests) == (ExitCode.NODE_UNFIT, [])


async def test_jobs_are_evicted_before_the_glidein_ends() -> None:
    link, workshop = FakeLink(), FakeWorkshop()
    lifetime = Lifetime(clock.boot_time_s() + 6, warn_before_s=4.8, stop_margin_s=3.2, least_useful_s=0.4)
    task = asyncio.create_task(a_runner(link, workshop, lifetime=lifetime).run())
    job = a_job(1, executable="sleep")
    await link.put(job)
    end = await asyncio.wait_for(task, 60)
    assert job.key in workshop.warned
    assert [report.outcome for report in link.reports if report.outcome] == [Outcome.EVICTED]
    assert "glidein" in end.reason


async def test_an_error_of_the_pilots_own_is_not_hidden_and_leaves_nothing_running() -> None:
    class BrokenWorkshop(FakeWorkshop):
        def suspend(self, key: object) -> None:
            raise RuntimeError("a fault in the code")

    workshop = BrokenWorkshop()
    async with a_pilot(workshop) as pilot:
        job = a_job(1, executable="sleep")
        await pilot.link.put(job)
        await pilot.says(job, ReportedState.RUNNING)
        pilot.runner.feed(SuspendRequested())
        with pytest.raises(ExceptionGroup) as raised:
            await asyncio.wait_for(pilot.end, 10)
        assert raised.group_contains(RuntimeError, match="a fault in the code")
        assert workshop.closed


@pytest.mark.parametrize(
    ("breaks", "outcome"),
    [
        ("prepare", Outcome.START_FAILED),
        ("fetch", Outcome.START_FAILED),
        ("start", Outcome.START_FAILED),
        ("collect", Outcome.OUTPUT_LOST),
        ("bring", Outcome.OUTPUT_LOST),
    ],
)
async def test_what_nobody_has_foreseen_fails_for_its_own_attempt_alone(breaks: str, outcome: Outcome) -> None:
    file = InputFile("in", None, "ab" * 32, 1)
    odd, beside = (
        a_job(number, executable=program, input_files=(file,)) for number, program in ((1, "true"), (2, "sleep"))
    )
    workshop = OddWorkshop(breaks)
    with capture_logs() as logs:
        async with a_pilot(workshop, replace(QUICK, store_timeout_s=0.0)) as pilot:
            await pilot.link.put(beside)
            await pilot.says(beside, ReportedState.RUNNING)
            await pilot.link.put(odd)
            report = await pilot.outcome(odd)
            assert report.outcome is outcome
            assert "internal error of the pilot: RecursionError('a path without end')" in report.reason
            assert beside.key in workshop.running
            workshop.stop(beside.key)
            assert (await pilot.outcome(beside)).outcome is Outcome.EXITED
    (line,) = [line for line in logs if line["event"] == "internal error while handling an attempt"]
    assert (line["log_level"], line["job"]) == ("error", str(odd.key))
    assert isinstance(line["exc_info"], RecursionError)
