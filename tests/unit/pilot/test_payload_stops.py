"""How a pilot warns, suspends, stops and kills payloads, and the transitions of an attempt."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from pilotage.values.attempts import Outcome, ReportedOutput
from pilotage_pilot.core import events as ev
from pilotage_pilot.core.attempts.attempt import TRANSITIONS, Attempt, Ending, IllegalStepError, Stage, Step
from pilotage_pilot.core.instructions import (
    ContinuePayload,
    KillPayload,
    SendHeartbeat,
    StartPayload,
    StopPayload,
    StoreOutput,
    SuspendPayload,
    WarnPayload,
)
from pilotage_pilot.core.rules import PilotRules
from support.pilot_bench import ONE, PilotBench, a_job

STDOUT = ReportedOutput("stdout", "0" * 64, 4, b"half")


def test_kill_command_gives_payload_its_grace_time() -> None:
    bench = PilotBench(rules=PilotRules(grace_s=10))
    bench.run(ONE)
    bench.answers_heartbeats = False
    bench.pass_time(1)
    assert StopPayload(ONE.key) in bench.answer_heartbeat(commands=(ev.KillCommanded(ONE.key, "removed by alice"),))
    bench.pass_time(9.9)
    assert bench.take(KillPayload) == []
    bench.pass_time(0.2)
    assert len(bench.take(KillPayload)) == 1
    bench.feed(ev.PayloadExited(ONE.key, None, 9))
    assert (bench.reports()[-1].outcome, bench.reports()[-1].reason) == (Outcome.KILLED, "removed by alice")


def test_kill_during_preparation_prevents_start() -> None:
    bench = PilotBench()
    bench.grant(ONE)
    bench.answers_heartbeats = False
    bench.pass_time(1)
    assert KillPayload(ONE.key) in bench.answer_heartbeat(commands=(ev.KillCommanded(ONE.key, "held"),))
    assert StartPayload(ONE.key) not in bench.feed(ev.JobPrepared(ONE.key))
    assert bench.outcome(ONE) is Outcome.KILLED


def test_wall_time_excludes_suspension() -> None:
    bench = PilotBench()
    job = a_job(1, lease_s=100_000, wall_time=timedelta(seconds=100))
    bench.run(job)
    bench.pass_time(60)
    assert SuspendPayload(job.key) in bench.feed(ev.SuspendRequested())
    bench.pass_time(500)
    assert ContinuePayload(job.key) in bench.feed(ev.ContinueRequested())
    bench.pass_time(39)
    assert bench.take(StopPayload) == []
    bench.pass_time(2)
    assert bench.one(StopPayload).key == job.key
    bench.feed(ev.PayloadExited(job.key, None, 15))
    bench.feed(ev.OutputStored(job.key))
    report = bench.reports()[-1]
    assert (report.outcome, report.suspended_s) == (Outcome.LIMIT_EXCEEDED, 500.0)
    assert report.wall_s == pytest.approx(100, abs=1.5)
    assert "wall time" in report.reason


def test_payloads_are_warned_then_evicted_before_glidein_ends() -> None:
    bench = PilotBench(ends_after_s=1000)
    job = a_job(1, lease_s=100_000)
    bench.run(job)
    bench.pass_time(699)
    assert bench.take(WarnPayload) == []
    bench.pass_time(2)
    assert bench.one(WarnPayload).left_s == pytest.approx(240)
    bench.pass_time(238)
    assert bench.take(StopPayload) == []
    bench.pass_time(2)
    assert bench.one(StopPayload).key == job.key
    bench.feed(ev.PayloadExited(job.key, None, 15))
    assert bench.outcome(job) is Outcome.EVICTED


def test_illegal_step_raises_and_changes_nothing() -> None:
    attempt = Attempt(ONE, 0.0)
    with pytest.raises(IllegalStepError, match=r"attempt 1\.1 is preparing: it cannot be stored"):
        attempt.step(Step.STORED)
    assert attempt.stage is Stage.PREPARING


def test_every_stage_except_reporting_has_transitions() -> None:
    assert {stage for stage, _ in TRANSITIONS} == set(Stage) - {Stage.REPORTING}


def test_drain_with_evict_evicts_running_jobs() -> None:
    bench = PilotBench()
    bench.run(ONE)
    bench.answers_heartbeats = False
    bench.pass_time(1)
    assert StopPayload(ONE.key) in bench.answer_heartbeat(commands=(ev.DrainCommanded("reboot", evict=True),))
    bench.feed(ev.PayloadExited(ONE.key, None, 15))
    assert [attempt.ending for attempt in bench.machine.payloads] == [Ending(Outcome.EVICTED, "reboot")]


def test_payload_that_exceeds_limit_is_stopped_and_output_stored() -> None:
    bench = PilotBench()
    bench.run(ONE)
    assert StopPayload(ONE.key) in bench.feed(ev.LimitPassed(ONE.key, "it used 90 MiB"))
    assert StoreOutput(ONE.key) in bench.feed(ev.PayloadExited(ONE.key, None, 15))
    bench.feed(ev.OutputStored(ONE.key, notes="output file a is not there"))
    report = bench.reports()[-1]
    assert (report.outcome, report.reason) == (Outcome.LIMIT_EXCEEDED, "it used 90 MiB; output file a is not there")


def test_payload_killed_for_memory_has_exceeded_limit() -> None:
    bench = PilotBench()
    bench.run(ONE)
    bench.feed(ev.PayloadExited(ONE.key, None, 9, limit="too much memory"))
    bench.feed(ev.OutputStored(ONE.key))
    assert bench.outcome(ONE) is Outcome.LIMIT_EXCEEDED


def test_payload_started_after_warning_time_is_warned_immediately() -> None:
    bench = PilotBench(ends_after_s=400)
    bench.pass_time(150)
    bench.run(replace(ONE, lease_s=100_000))
    assert bench.one(WarnPayload).left_s == pytest.approx(190)


def test_stopped_payload_keeps_what_it_has_written() -> None:
    bench = PilotBench()
    bench.stores_parts = False
    bench.run(ONE)
    bench.answers_heartbeats = False
    bench.pass_time(1)
    bench.answer_heartbeat(commands=(ev.KillCommanded(ONE.key, "removed by alice"),))
    bench.answers_heartbeats = True
    assert StoreOutput(ONE.key, is_partial=True) in bench.feed(ev.PayloadExited(ONE.key, None, 15))
    reports = len(bench.reports())
    bench.answer_heartbeat()
    bench.pass_time(40)
    beats = [each for each in bench.instructions if isinstance(each, SendHeartbeat)]
    assert beats[-1].leases == (), "the lease of a killed payload is not renewed"
    assert len(bench.reports()) == reports, "a killed payload is not reported as completing"
    bench.feed(ev.OutputStored(ONE.key, (STDOUT,)))
    report = bench.reports()[-1]
    assert (report.outcome, report.output_files) == (Outcome.KILLED, (STDOUT,))


def test_partial_output_that_cannot_be_stored_keeps_outcome() -> None:
    bench = PilotBench()
    bench.stores_parts = False
    bench.run(ONE)
    bench.feed(ev.StopRequested("reboot", at_once=False))
    bench.feed(ev.PayloadExited(ONE.key, None, 15))
    transient = ev.Failure(ev.FailureKind.TRANSIENT, "no answer")
    bench.feed(ev.OutputFailed(ONE.key, transient))
    assert bench.outcome(ONE) is None, "it is tried again"
    bench.boot_s += 61
    bench.feed(ev.OutputFailed(ONE.key, transient))
    report = bench.reports()[-1]
    assert (report.outcome, report.reason) == (Outcome.EVICTED, "reboot; its output could not be stored: no answer")
