"""How a pilot drains, stops and ends: its reasons, its last messages and its exit code."""

from __future__ import annotations

from datetime import timedelta

import pytest

from pilotage.values.attempts import Outcome, ReportResult
from pilotage_pilot.core import events as ev
from pilotage_pilot.core.instructions import (
    EndPilot,
    KillPayload,
    ReadPools,
    RecallRequest,
    RequestJobs,
    SendHeartbeat,
    StopPayload,
)
from pilotage_pilot.core.lifetime import ExitCode, Phase
from pilotage_pilot.core.rules import PilotRules
from support.pilot_bench import ONE, TWO, PilotBench, a_job, transient


def test_validating_pilot_does_not_report_draining() -> None:
    bench = PilotBench(opened=False, answers_heartbeats=False)
    assert not bench.one(SendHeartbeat).draining


def test_pilot_with_too_little_time_reports_draining() -> None:
    bench = PilotBench(ends_after_s=90, answers_heartbeats=False)
    assert bench.one(SendHeartbeat).draining


def test_drained_pilot_declines_jobs_and_ends_after_last_job() -> None:
    bench = PilotBench()
    bench.run(ONE)
    waiting = bench.one(RequestJobs)
    bench.answers_heartbeats = False
    bench.pass_time(1)
    bench.answer_heartbeat(commands=(ev.DrainCommanded("maintenance"),))
    assert bench.one(RecallRequest).request_id == waiting.request_id
    bench.feed(ev.JobsGranted(waiting.request_id, (TWO,)))
    bench.answer_heartbeat()
    assert bench.outcome(TWO) is Outcome.DECLINED
    bench.exit(ONE)
    bench.feed(ev.OutputStored(ONE.key))
    assert bench.machine.phase is Phase.DRAINING
    bench.answer_heartbeat()
    bench.answer_heartbeat()
    beats = bench.take(SendHeartbeat)
    assert [beat.ending for beat in beats] == [True]
    instructions = bench.feed(ev.HeartbeatAnswered(beats[0].request_id))
    assert instructions == (EndPilot("maintenance", ExitCode.AS_PLANNED),)
    assert bench.take(RequestJobs) == []


def test_stopped_pilot_evicts_and_ends_within_its_grace_time() -> None:
    bench = PilotBench(rules=PilotRules(grace_s=10, goodbye_timeout_s=5))
    bench.run(ONE)
    assert StopPayload(ONE.key) in bench.feed(ev.StopRequested("SIGTERM"))
    bench.pass_time(40)
    assert bench.take(KillPayload), "the payload ignores termination"
    assert bench.instructions[-1] == EndPilot("SIGTERM", ExitCode.AS_PLANNED), (
        "the pilot ends without answers and exits"
    )


def test_stopped_idle_pilot_ends_with_next_answer() -> None:
    bench = PilotBench()
    waiting = bench.one(RequestJobs)
    bench.feed(ev.StopRequested("SIGTERM"))
    bench.feed(ev.JobsGranted(waiting.request_id))
    assert isinstance(bench.instructions[-1], EndPilot)


def test_pilot_without_jobs_ends_after_idle_timeout() -> None:
    bench = PilotBench(rules=PilotRules(max_idle_s=60, wait_s=20))
    while bench.machine.phase is Phase.OPEN:
        assert bench.after_s < 90
        for call in bench.take(RequestJobs):
            assert bench.after_s + call.wait_s <= 61
            bench.pass_time(call.wait_s)
            bench.feed(ev.JobsGranted(call.request_id))
        bench.pass_time(0.5)
    assert 60 <= bench.after_s < 63


def last_heartbeat(bench: PilotBench) -> SendHeartbeat:
    (last,) = (call for call in bench.instructions if isinstance(call, SendHeartbeat) and call.ending)
    return last


def test_pilot_that_idled_out_reports_coming_back_empty() -> None:
    bench = PilotBench(rules=PilotRules(max_idle_s=0))
    bench.feed(ev.JobsGranted(bench.one(RequestJobs).request_id))
    assert last_heartbeat(bench).came_back_empty


def test_stopped_pilot_does_not_report_coming_back_empty() -> None:
    bench = PilotBench()
    waiting = bench.one(RequestJobs)
    bench.feed(ev.StopRequested("SIGTERM"))
    bench.feed(ev.JobsGranted(waiting.request_id))
    assert not last_heartbeat(bench).came_back_empty


def test_pilot_with_zero_idle_timeout_runs_waiting_job_and_ends() -> None:
    bench = PilotBench(rules=PilotRules(max_idle_s=0))
    call = bench.one(RequestJobs)
    assert call.wait_s == 0
    bench.feed(ev.JobsGranted(call.request_id, (ONE,)))
    waiting = bench.one(RequestJobs)
    bench.feed(ev.JobPrepared(ONE.key))
    bench.feed(ev.PayloadStarted(ONE.key))
    bench.exit(ONE)
    bench.feed(ev.OutputStored(ONE.key))
    assert waiting.request_id in {back.request_id for back in bench.take(RecallRequest)}
    for request in (waiting, *bench.take(RequestJobs)):
        bench.feed(ev.JobsGranted(request.request_id, results=tuple(ReportResult(*r.key) for r in request.reports)))
    assert bench.machine.phase is not Phase.OPEN


def test_refused_credential_ends_pilot() -> None:
    bench = PilotBench()
    call = bench.one(RequestJobs)
    bench.answers_heartbeats = False
    refused = ev.Failure(ev.FailureKind.CREDENTIAL, "token expired")
    bench.feed(ev.RequestFailed(call.request_id, refused))
    bench.feed(ev.HeartbeatFailed(bench.take(SendHeartbeat)[-1].request_id, refused))
    end = bench.instructions[-1]
    assert isinstance(end, EndPilot)
    assert (end.exit_code, "token expired" in end.reason) == (ExitCode.NO_SERVER, True)


def test_removed_queue_drains_pilot() -> None:
    bench = PilotBench()
    bench.run(ONE)
    call = bench.one(RequestJobs)
    bench.feed(ev.JobsGranted(call.request_id, pools_changed=True))
    bench.pass_time(15)
    assert bench.take(ReadPools)[-1].fresh
    bench.feed(ev.PoolsRead(False))
    assert bench.machine.phase is Phase.DRAINING
    assert bench.take(StopPayload) == []


def test_failed_starts_close_pilot() -> None:
    bench = PilotBench(rules=PilotRules(failed_starts=3))
    for number in range(1, 4):
        job = a_job(number)
        bench.feed(ev.JobsGranted(bench.take(RequestJobs)[-1].request_id, (job,)))
        bench.feed(ev.StartFailed(job.key, Outcome.START_FAILED, "disk full"))
    assert bench.machine.phase is not Phase.OPEN


def test_unfit_node_ends_pilot_with_own_exit_code() -> None:
    bench = PilotBench(opened=False)
    bench.feed(ev.NodeRefused(("disk full",)))
    end = bench.instructions[-1]
    assert isinstance(end, EndPilot)
    assert end.exit_code is ExitCode.NODE_UNFIT


@pytest.mark.parametrize("max_idle_s", [None, 60.0, 600.0])
def test_unreachable_server_ends_pilot(max_idle_s: float | None) -> None:
    bench = PilotBench(rules=PilotRules(unreachable_s=300, max_idle_s=max_idle_s))
    bench.answers_heartbeats = False
    for _ in range(100):
        for call in bench.take(RequestJobs):
            bench.feed(ev.RequestFailed(call.request_id, transient()))
        for beat in bench.take(SendHeartbeat):
            bench.feed(ev.HeartbeatFailed(beat.request_id, transient()))
        bench.pass_time(5)
    end = bench.instructions[-1]
    assert isinstance(end, EndPilot)
    assert end.exit_code is ExitCode.NO_SERVER


def test_eviction_is_reported_after_recalled_requests() -> None:
    bench = PilotBench()
    bench.run(ONE)
    waiting = bench.one(RequestJobs)
    bench.feed(ev.StopRequested("SIGTERM"))
    assert bench.one(RecallRequest).request_id == waiting.request_id
    bench.feed(ev.PayloadExited(ONE.key, None, 15))
    assert bench.outcome(ONE) is None
    bench.feed(ev.JobsGranted(waiting.request_id))
    assert bench.outcome(ONE) is Outcome.EVICTED


def test_eviction_is_reported_despite_silent_server() -> None:
    bench = PilotBench()
    bench.run(ONE)
    bench.feed(ev.StopRequested("SIGTERM"))
    bench.feed(ev.PayloadExited(ONE.key, None, 15))
    bench.pass_time(2)
    assert bench.outcome(ONE) is Outcome.EVICTED


@pytest.mark.parametrize("error_s", [-301, 301])
def test_node_with_wrong_clock_is_unfit(error_s: float) -> None:
    bench = PilotBench(answers_heartbeats=False)
    assert bench.take(RequestJobs) == []
    bench.answer_heartbeat(server_time=bench.now.utc - timedelta(seconds=error_s))
    assert bench.take(RequestJobs) == []
    bench.answer_heartbeat()
    end = bench.one(EndPilot)
    assert ("clock is 301 s off" in end.reason, end.exit_code) == (True, ExitCode.NODE_UNFIT)


def test_clock_check_allows_for_heartbeat_duration() -> None:
    bench = PilotBench(answers_heartbeats=False, rules=PilotRules(clock_error_s=5))
    server_time = bench.now.utc
    bench.pass_time(10)
    bench.answer_heartbeat(server_time=server_time)
    assert bench.take(RequestJobs)
