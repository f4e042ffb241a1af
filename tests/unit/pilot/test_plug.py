"""The plug: a payload that fails fast keeps its slot for a minimum time, unless it is stopped."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from pilotage.values.attempts import Outcome
from pilotage_pilot.core import events as ev
from pilotage_pilot.core.instructions import (
    KillPayload,
    RequestJobs,
    SendHeartbeat,
    StopPayload,
    StoreOutput,
    SuspendPayload,
)
from pilotage_pilot.core.model import ReportedState
from pilotage_pilot.core.rules import PilotRules
from support.pilot_bench import ONE, TWO, PilotBench, a_job, transient

PLUGGED = PilotRules(plug_s=1200)


def a_plugged_pilot() -> PilotBench:
    """Return a pilot with one core whose only job failed after one second."""
    bench = PilotBench(cpus=1, rules=PLUGGED)
    bench.run(ONE)
    bench.pass_time(1)
    bench.take(RequestJobs)
    assert StoreOutput(ONE.key) not in bench.exit(ONE, 1)
    return bench


def test_fast_failure_keeps_slot_for_plug_time() -> None:
    bench = a_plugged_pilot()
    bench.pass_time(1198)
    assert bench.state_and_activity("slot1_1") == ["Claimed/Busy"]
    assert bench.take(RequestJobs) == []
    assert bench.take(StoreOutput) == []
    bench.pass_time(2)
    bench.one(StoreOutput)
    bench.feed(ev.OutputStored(ONE.key))
    assert bench.take(RequestJobs)


def test_report_of_plugged_job_has_exit_code_and_run_time() -> None:
    bench = a_plugged_pilot()
    bench.pass_time(1200)
    bench.feed(ev.OutputStored(ONE.key))
    report = bench.reports()[-1]
    assert (report.outcome, report.exit_code, report.wall_s) == (Outcome.EXITED, 1, 1.0)


def reported(bench: PilotBench) -> list[tuple[ReportedState, int | None, float]]:
    """Return state, exit code and run time of each report about the job."""
    return [(report.state, report.exit_code, report.wall_s) for report in bench.reports() if report.key == ONE.key]


def test_plugged_state_is_reported_once() -> None:
    bench = a_plugged_pilot()
    bench.pass_time(100)
    assert reported(bench)[-1] == (ReportedState.PLUGGED, 1, 1.0)
    count = len(reported(bench))
    bench.feed(ev.SuspendRequested())
    bench.pass_time(100)
    assert len(reported(bench)) == count
    bench.feed(ev.ContinueRequested())
    bench.pass_time(1000)
    bench.feed(ev.OutputStored(ONE.key))
    assert reported(bench)[-1] == (ReportedState.DONE, 1, 1.0)


def test_plugged_state_is_reported_again_after_failed_heartbeat() -> None:
    bench = a_plugged_pilot()
    bench.answers_heartbeats = False
    bench.pass_time(10)
    (beat,) = bench.take(SendHeartbeat)
    bench.feed(ev.HeartbeatFailed(beat.request_id, transient()))
    bench.answers_heartbeats = True
    bench.pass_time(100)
    assert reported(bench)[-1] == (ReportedState.PLUGGED, 1, 1.0)


def test_plugged_job_keeps_its_lease() -> None:
    bench = a_plugged_pilot()
    bench.pass_time(600)
    assert ONE.key in bench.machine.payloads.leases()
    assert bench.take(KillPayload) == []


def test_success_and_late_failure_are_not_plugged() -> None:
    bench = PilotBench(cpus=2, rules=PilotRules(plug_s=10))
    bench.run(ONE, TWO)
    assert StoreOutput(ONE.key) in bench.exit(ONE, 0)
    bench.pass_time(10)
    assert StoreOutput(TWO.key) in bench.exit(TWO, 1)


def test_nothing_is_plugged_by_default() -> None:
    bench = PilotBench()
    bench.run(ONE)
    assert StoreOutput(ONE.key) in bench.exit(ONE, 1)


@pytest.mark.parametrize(("exit_code", "is_plugged"), [(0, True), (3, False), (4, True)])
def test_exit_code_that_means_success_is_not_plugged(exit_code: int, is_plugged: bool) -> None:
    job = replace(ONE, description=replace(ONE.description, success_exit_code=3))
    bench = PilotBench(rules=PLUGGED)
    bench.run(job)
    assert (StoreOutput(job.key) not in bench.exit(job, exit_code)) is is_plugged


def test_payload_ended_by_signal_is_plugged_unless_stopped() -> None:
    bench = PilotBench(cpus=2, rules=PLUGGED)
    bench.run(ONE, TWO)
    assert StoreOutput(ONE.key) not in bench.feed(ev.PayloadExited(ONE.key, None, 11))
    bench.answers_heartbeats = False
    bench.pass_time(30)
    assert StopPayload(TWO.key) in bench.answer_heartbeat(commands=(ev.KillCommanded(TWO.key, "removed"),))
    bench.feed(ev.PayloadExited(TWO.key, None, 15))
    assert bench.outcome(TWO) is Outcome.KILLED


def test_killed_plugged_job_ends_immediately() -> None:
    bench = a_plugged_pilot()
    bench.answers_heartbeats = False
    bench.pass_time(30)
    instructions = bench.answer_heartbeat(commands=(ev.KillCommanded(ONE.key, "removed by alice"),))
    assert StoreOutput(ONE.key) in instructions
    assert StopPayload(ONE.key) not in instructions


def test_draining_pilot_ends_plug() -> None:
    bench = a_plugged_pilot()
    bench.take(StoreOutput)
    bench.answers_heartbeats = False
    bench.pass_time(30)
    bench.answer_heartbeat(commands=(ev.DrainCommanded("maintenance", evict=False),))
    bench.one(StoreOutput)


def test_plugged_job_is_suspended_and_continued_without_process() -> None:
    bench = a_plugged_pilot()
    assert SuspendPayload(ONE.key) not in bench.feed(ev.SuspendRequested())
    assert bench.state_and_activity("slot1_1") == ["Claimed/Suspended"]
    bench.feed(ev.ContinueRequested())
    bench.pass_time(1200)
    bench.one(StoreOutput)


def test_plugged_job_exceeds_no_wall_time() -> None:
    bench = PilotBench(cpus=1, rules=PLUGGED)
    job = a_job(1, lease_s=100_000, wall_time=timedelta(seconds=100))
    bench.run(job)
    bench.exit(job, 1)
    bench.pass_time(1199)
    assert bench.take(StopPayload) == []
