"""The plug: a payload that fails too fast keeps its slot for a while, unless somebody wants that back."""

from __future__ import annotations

from datetime import timedelta

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
    """Return a pilot of one core whose only job has failed after a second."""
    bench = PilotBench(cpus=1, rules=PLUGGED)
    bench.run(ONE)
    bench.pass_time(1)
    bench.take(RequestJobs)
    assert StoreOutput(ONE.key) not in bench.exit(ONE, 1)
    return bench


def test_a_job_that_failed_fast_keeps_its_slot_until_it_has_been_there_for_so_long() -> None:
    bench = a_plugged_pilot()
    bench.pass_time(1198)
    assert bench.doing("slot1_1") == ["Claimed/Busy"]
    assert bench.take(RequestJobs) == []
    assert bench.take(StoreOutput) == []
    bench.pass_time(2)
    bench.one(StoreOutput)
    bench.feed(ev.OutputStored(ONE.key))
    assert bench.take(RequestJobs)


def test_what_is_told_of_it_is_how_it_ended_and_for_how_long_it_ran() -> None:
    bench = a_plugged_pilot()
    bench.pass_time(1200)
    bench.feed(ev.OutputStored(ONE.key))
    report = bench.reports()[-1]
    assert (report.outcome, report.exit_code, report.wall_s) == (Outcome.EXITED, 1, 1.0)


def told(bench: PilotBench) -> list[tuple[ReportedState, int | None, float]]:
    """Return what the server was told of the job, and when: its states with exit code and run time."""
    return [(report.state, report.exit_code, report.wall_s) for report in bench.reports() if report.key == ONE.key]


def test_the_server_is_told_once_and_soon_that_it_has_failed() -> None:
    bench = a_plugged_pilot()
    bench.pass_time(100)
    assert told(bench)[-1] == (ReportedState.PLUGGED, 1, 1.0)
    said = len(told(bench))
    bench.feed(ev.SuspendRequested())
    bench.pass_time(100)
    assert len(told(bench)) == said
    bench.feed(ev.ContinueRequested())
    bench.pass_time(1000)
    bench.feed(ev.OutputStored(ONE.key))
    assert told(bench)[-1] == (ReportedState.DONE, 1, 1.0)


def test_the_server_is_told_again_when_the_message_was_lost() -> None:
    bench = a_plugged_pilot()
    bench.hears = False
    bench.pass_time(10)
    (beat,) = bench.take(SendHeartbeat)
    bench.feed(ev.HeartbeatFailed(beat.request_id, transient()))
    bench.hears = True
    bench.pass_time(100)
    assert told(bench)[-1] == (ReportedState.PLUGGED, 1, 1.0)


def test_its_lease_is_kept_meanwhile() -> None:
    bench = a_plugged_pilot()
    bench.pass_time(600)
    assert ONE.key in bench.machine.payloads.leases()
    assert bench.take(KillPayload) == []


def test_what_ends_well_is_not_plugged_nor_what_fails_late() -> None:
    bench = PilotBench(cpus=2, rules=PilotRules(plug_s=10))
    bench.run(ONE, TWO)
    assert StoreOutput(ONE.key) in bench.exit(ONE, 0)
    bench.pass_time(10)
    assert StoreOutput(TWO.key) in bench.exit(TWO, 1)


def test_without_the_setting_nothing_is_plugged() -> None:
    bench = PilotBench()
    bench.run(ONE)
    assert StoreOutput(ONE.key) in bench.exit(ONE, 1)


def test_a_signal_is_a_failure_and_what_was_stopped_is_none() -> None:
    bench = PilotBench(cpus=2, rules=PLUGGED)
    bench.run(ONE, TWO)
    assert StoreOutput(ONE.key) not in bench.feed(ev.PayloadExited(ONE.key, None, 11))
    bench.hears = False
    bench.pass_time(30)
    assert StopPayload(TWO.key) in bench.answer_beat(commands=(ev.KillCommanded(TWO.key, "removed"),))
    bench.feed(ev.PayloadExited(TWO.key, None, 15))
    assert bench.outcome(TWO) is Outcome.KILLED


def test_a_job_that_is_taken_back_while_it_is_plugged_ends_at_once() -> None:
    bench = a_plugged_pilot()
    bench.hears = False
    bench.pass_time(30)
    said = bench.answer_beat(commands=(ev.KillCommanded(ONE.key, "removed by alice"),))
    assert StoreOutput(ONE.key) in said
    assert StopPayload(ONE.key) not in said


def test_a_pilot_that_drains_does_not_wait_for_the_plug() -> None:
    bench = a_plugged_pilot()
    bench.take(StoreOutput)
    bench.hears = False
    bench.pass_time(30)
    bench.answer_beat(commands=(ev.DrainCommanded("maintenance", evict=False),))
    bench.one(StoreOutput)


def test_a_plugged_job_is_suspended_and_goes_on_without_a_process() -> None:
    bench = a_plugged_pilot()
    assert SuspendPayload(ONE.key) not in bench.feed(ev.SuspendRequested())
    assert bench.doing("slot1_1") == ["Claimed/Suspended"]
    bench.feed(ev.ContinueRequested())
    bench.pass_time(1200)
    bench.one(StoreOutput)


def test_a_plugged_job_whose_wall_time_passes_is_not_stopped_for_it() -> None:
    bench = PilotBench(cpus=1, rules=PLUGGED)
    job = a_job(1, lease_s=100_000, wall_time=timedelta(seconds=100))
    bench.run(job)
    bench.exit(job, 1)
    bench.pass_time(1199)
    assert bench.take(StopPayload) == []
