"""A whole pilot, from start to end, with a server in memory."""

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
    Event,
    JobPrepared,
    KillCommanded,
    PayloadExited,
    PayloadStarted,
    PoolsRead,
    StopRequested,
    SuspendRequested,
)
from pilotage_pilot.core.instructions import EndPilot, KillPayload, StartPayload
from pilotage_pilot.core.lifetime import ExitCode
from pilotage_pilot.core.machine import PilotMachine
from pilotage_pilot.core.model import GrantedJob, Now, Report, ReportedState
from pilotage_pilot.core.rules import Lifetime, PilotRules
from pilotage_pilot.link.base import NodeDescription
from pilotage_pilot.runner import PayloadTasks, PilotPorts, PilotRunner
from pilotage_pilot.supervise.base import PayloadRunner
from pilotage_pilot.supervise.folders import PilotFolder
from pilotage_pilot.traces import AttemptTraces
from support.pilot_bench import a_job, built_in_slots
from support.pilot_ports import (
    BrokenPayloadRunner,
    FakeNode,
    FakePayloadRunner,
    FakeServerLink,
    a_local_payload_runner,
    a_prepare_job,
)
from support.processes import until

SHARE = Amounts(2, 1000, 1000)
QUICK = PilotRules(wait_s=5, heartbeat_s=0.2, grace_s=0.5, goodbye_timeout_s=2)


@dataclass
class RunningPilot:
    """A running pilot and its server."""

    link: FakeServerLink
    runner: PilotRunner
    end: asyncio.Task[EndPilot]

    async def outcome(self, job: GrantedJob) -> Report:
        """Wait for the outcome of a job; return its report."""
        await until(lambda: any(report.key == job.key and report.outcome for report in self.link.reports))
        return next(report for report in self.link.reports if report.key == job.key and report.outcome)

    async def wait_for_state(self, job: GrantedJob, state: ReportedState) -> None:
        """Wait until the pilot has reported this state of a job."""
        await until(lambda: any(report.key == job.key and report.state is state for report in self.link.reports))


def a_runner(
    link: FakeServerLink,
    payload_runner: PayloadRunner,
    rules: PilotRules = QUICK,
    *faults: str,
    lifetime: Lifetime | None = None,
) -> PilotRunner:
    now = Now(clock.now(), clock.boot_time_s())
    machine = PilotMachine("pilot", built_in_slots(SHARE, now), rules, lifetime or Lifetime(), now)

    async def pools(fresh: bool) -> PoolsRead:
        return await link.read_pools() if fresh else PoolsRead(True, ("a" * 64,))

    ports = PilotPorts(link, payload_runner, FakeNode(SHARE, *faults), clock.now, clock.boot_time_s)
    return PilotRunner(machine, ports, NodeDescription("node1", SHARE), pools)


@asynccontextmanager
async def a_pilot(
    payload_runner: PayloadRunner, rules: PilotRules = QUICK, link: FakeServerLink | None = None
) -> AsyncIterator[RunningPilot]:
    server = link or FakeServerLink()
    runner = a_runner(server, payload_runner, rules)
    task = asyncio.create_task(runner.run())
    try:
        yield RunningPilot(server, runner, task)
    finally:
        task.cancel()
        await asyncio.wait([task])


@pytest.fixture(params=["real", "fake"])
def payload_runner(request: pytest.FixtureRequest, tmp_path: Path) -> object:
    if request.param == "fake":
        return FakePayloadRunner
    # It has to be made inside the event loop.
    return lambda: a_local_payload_runner(PilotFolder(tmp_path), FakeServerLink())


async def test_jobs_run_and_their_outcomes_are_reported(payload_runner: type[FakePayloadRunner]) -> None:
    async with a_pilot(payload_runner()) as pilot:
        jobs = [a_job(number, executable="/bin/true") for number in range(1, 21)]
        await pilot.link.put(*jobs)
        outcomes = [await pilot.outcome(job) for job in jobs]
        assert {(report.outcome, report.exit_code) for report in outcomes} == {(Outcome.EXITED, 0)}
        assert all(len(report.output_files) == 2 for report in outcomes)


async def test_short_jobs_take_few_requests_and_are_reported_once() -> None:
    async with a_pilot(FakePayloadRunner()) as pilot:
        jobs = [a_job(number, executable="/bin/true") for number in range(1, 201)]
        await pilot.link.put(*jobs)
        outcomes = [await pilot.outcome(job) for job in jobs]
        assert {(report.outcome, report.exit_code) for report in outcomes} == {(Outcome.EXITED, 0)}
        assert len([report for report in pilot.link.reports if report.outcome]) == len(jobs)
        assert len(pilot.link.requests) < len(jobs) / 4


async def test_job_that_cannot_start_is_refused_with_the_reason(payload_runner: type[FakePayloadRunner]) -> None:
    async with a_pilot(payload_runner()) as pilot:
        job = a_job(1, executable="no-such-program")
        await pilot.link.put(job)
        report = await pilot.outcome(job)
        assert report.outcome is Outcome.REFUSED_BY_JOB
        assert "there is no program no-such-program" in report.reason


async def test_removed_job_is_killed(payload_runner: type[FakePayloadRunner]) -> None:
    async with a_pilot(payload_runner()) as pilot:
        job = a_job(1, executable="/bin/sleep", arguments="600")
        await pilot.link.put(job)
        await pilot.wait_for_state(job, ReportedState.RUNNING)
        await pilot.link.command(KillCommanded(job.key, "removed by alice"))
        report = await pilot.outcome(job)
        assert (report.outcome, report.reason) == (Outcome.KILLED, "removed by alice")


async def test_stopped_pilot_evicts_its_jobs_and_reports_its_end(
    payload_runner: type[FakePayloadRunner],
) -> None:
    async with a_pilot(payload_runner()) as pilot:
        job = a_job(1, executable="/bin/sleep", arguments="600")
        await pilot.link.put(job)
        await pilot.wait_for_state(job, ReportedState.RUNNING)
        pilot.runner.feed(StopRequested("SIGTERM"))
        end = await asyncio.wait_for(pilot.end, 10)
        assert (end.reason, end.exit_code) == ("SIGTERM", ExitCode.AS_PLANNED)
        assert (await pilot.outcome(job)).outcome is Outcome.EVICTED
        assert pilot.link.beats[-1].ending


async def test_idle_pilot_stops_at_once_during_a_waiting_request() -> None:
    async with a_pilot(FakePayloadRunner(), PilotRules(wait_s=600)) as pilot:
        await until(lambda: bool(pilot.link.requests))
        pilot.runner.feed(StopRequested("SIGTERM"))
        async with asyncio.timeout(5):
            await pilot.end
        assert [call.wait_s for call in pilot.link.requests] == [600, 0]


async def test_payload_is_suspended_and_continued_with_its_glidein() -> None:
    payload_runner = FakePayloadRunner()
    async with a_pilot(payload_runner) as pilot:
        job = a_job(1, executable="sleep")
        await pilot.link.put(job)
        await pilot.wait_for_state(job, ReportedState.RUNNING)
        pilot.runner.feed(SuspendRequested())
        await pilot.wait_for_state(job, ReportedState.SUSPENDED)
        assert payload_runner.suspended == {job.key}
        pilot.runner.feed(ContinueRequested())
        assert payload_runner.suspended == set()


async def test_failed_calls_are_retried_without_loss() -> None:
    link = FakeServerLink()
    link.failures.extend(ServerUnreachableError("no server") for _ in range(4))
    async with a_pilot(FakePayloadRunner(), link=link) as pilot:
        job = a_job(1, executable="true")
        await pilot.link.put(job)
        assert (await pilot.outcome(job)).outcome is Outcome.EXITED


async def test_rejected_credential_ends_the_pilot() -> None:
    link = FakeServerLink()
    link.failures.extend(UnauthenticatedError("the token has expired") for _ in range(50))
    async with a_pilot(FakePayloadRunner(), link=link) as pilot:
        end = await asyncio.wait_for(pilot.end, 10)
        assert end.exit_code is ExitCode.NO_SERVER
        assert "the token has expired" in end.reason


async def test_pilot_without_jobs_ends_and_closes_its_payload_runner() -> None:
    payload_runner = FakePayloadRunner()
    async with a_pilot(payload_runner, PilotRules(max_idle_s=0)) as pilot:
        await pilot.link.put(a_job(1, executable="true"))
        end = await asyncio.wait_for(pilot.end, 10)
        assert "no job" in end.reason
        assert payload_runner.closed
        assert [report.outcome for report in pilot.link.reports if report.outcome] == [Outcome.EXITED]


async def test_drained_pilot_lets_its_job_end() -> None:
    payload_runner = FakePayloadRunner()
    async with a_pilot(payload_runner) as pilot:
        job = a_job(1, executable="sleep")
        await pilot.link.put(job)
        await pilot.wait_for_state(job, ReportedState.RUNNING)
        await pilot.link.command(DrainCommanded("maintenance"))
        await until(lambda: any(beat.draining for beat in pilot.link.beats))
        assert job.key in payload_runner.running
        payload_runner.stop(job.key)
        assert (await asyncio.wait_for(pilot.end, 10)).reason == "maintenance"


async def test_unfit_node_ends_its_pilot_before_the_first_request() -> None:
    link = FakeServerLink()
    end = await asyncio.wait_for(a_runner(link, FakePayloadRunner(), QUICK, "disk full").run(), 10)
    assert (end.exit_code, link.requests) == (ExitCode.NODE_UNFIT, [])


async def test_jobs_are_evicted_before_the_glidein_ends() -> None:
    link, payload_runner = FakeServerLink(), FakePayloadRunner()
    lifetime = Lifetime(clock.boot_time_s() + 6, warn_before_s=4.8, stop_margin_s=3.2, least_useful_s=0.4)
    task = asyncio.create_task(a_runner(link, payload_runner, lifetime=lifetime).run())
    job = a_job(1, executable="sleep")
    await link.put(job)
    end = await asyncio.wait_for(task, 60)
    assert job.key in payload_runner.warned
    assert [report.outcome for report in link.reports if report.outcome] == [Outcome.EVICTED]
    assert "glidein" in end.reason


async def test_internal_error_ends_the_pilot_and_closes_its_payload_runner() -> None:
    class BrokenPayloadRunner(FakePayloadRunner):
        def suspend(self, key: object) -> None:
            raise RuntimeError("a fault in the code")

    payload_runner = BrokenPayloadRunner()
    async with a_pilot(payload_runner) as pilot:
        job = a_job(1, executable="sleep")
        await pilot.link.put(job)
        await pilot.wait_for_state(job, ReportedState.RUNNING)
        pilot.runner.feed(SuspendRequested())
        with pytest.raises(ExceptionGroup) as raised:
            await asyncio.wait_for(pilot.end, 10)
        assert raised.group_contains(RuntimeError, match="a fault in the code")
        assert payload_runner.closed


@pytest.mark.parametrize(
    ("method", "outcome"),
    [
        ("prepare", Outcome.START_FAILED),
        ("fetch", Outcome.START_FAILED),
        ("start", Outcome.START_FAILED),
        ("collect", Outcome.OUTPUT_LOST),
        ("search", Outcome.OUTPUT_LOST),
        ("bring", Outcome.OUTPUT_LOST),
    ],
)
async def test_unexpected_error_fails_only_its_own_attempt(method: str, outcome: Outcome) -> None:
    file = InputFile("in", None, "ab" * 32, 1)
    failing, healthy = (
        a_job(number, executable=program, input_files=(file,)) for number, program in ((1, "true"), (2, "sleep"))
    )
    payload_runner = BrokenPayloadRunner(method)
    with capture_logs() as logs:
        async with a_pilot(payload_runner, replace(QUICK, store_timeout_s=0.0)) as pilot:
            await pilot.link.put(healthy)
            await pilot.wait_for_state(healthy, ReportedState.RUNNING)
            await pilot.link.put(failing)
            report = await pilot.outcome(failing)
            assert report.outcome is outcome
            assert "internal error of the pilot: RecursionError('a path without end')" in report.reason
            assert healthy.key in payload_runner.running
            payload_runner.stop(healthy.key)
            assert (await pilot.outcome(healthy)).outcome is Outcome.EXITED
    (entry,) = [entry for entry in logs if entry["event"] == "internal error while handling an attempt"]
    assert (entry["log_level"], entry["job"]) == ("error", str(failing.key))
    assert isinstance(entry["exc_info"], RecursionError)


async def test_payload_whose_lease_passes_at_its_start_is_killed() -> None:
    job = a_job(input_files=(InputFile("data", None, "0" * 64, 1),))
    payloads, events = FakePayloadRunner(), list[Event]()

    def feed(event: Event) -> None:
        events.append(event)
        if isinstance(event, JobPrepared):
            tasks.do(StartPayload(job.key))
        elif isinstance(event, PayloadStarted):
            tasks.do(KillPayload(job.key))

    def now() -> Now:
        return Now(clock.now(), clock.boot_time_s())

    async with asyncio.TaskGroup() as group:
        tasks = PayloadTasks(payloads, group.create_task, feed, AttemptTraces({}, clock.now), now)
        payloads.subscribe(feed)
        tasks.do(a_prepare_job(job))
        await until(lambda: len(events) == 3)
    assert [type(event) for event in events] == [JobPrepared, PayloadStarted, PayloadExited]
