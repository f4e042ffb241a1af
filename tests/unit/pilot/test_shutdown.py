"""What makes a pilot end, and how it leaves: nothing lost, nothing waited for in vain."""

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


def test_a_pilot_that_is_still_looking_at_its_node_does_not_say_that_it_drains() -> None:
    bench = PilotBench(opened=False, hears=False)
    assert not bench.one(SendHeartbeat).draining


def test_a_pilot_with_too_little_time_for_a_job_says_that_it_drains() -> None:
    bench = PilotBench(ends_after_s=90, hears=False)
    assert bench.one(SendHeartbeat).draining


def test_a_drained_pilot_declines_lets_its_jobs_end_and_says_good_bye() -> None:
    bench = PilotBench()
    bench.run(ONE)
    waiting = bench.one(RequestJobs)
    bench.hears = False
    bench.pass_time(1)
    bench.answer_beat(commands=(ev.DrainCommanded("maintenance"),))
    assert bench.one(RecallRequest).request_id == waiting.request_id
    bench.feed(ev.JobsGranted(waiting.request_id, (TWO,)))
    bench.answer_beat()
    assert bench.outcome(TWO) is Outcome.DECLINED
    bench.exit(ONE)
    bench.feed(ev.OutputStored(ONE.key))
    assert bench.machine.phase is Phase.DRAINING
    bench.answer_beat()
    bench.answer_beat()
    beats = bench.take(SendHeartbeat)
    assert [beat.ending for beat in beats] == [True]
    said = bench.feed(ev.HeartbeatAnswered(beats[0].request_id))
    assert said == (EndPilot("maintenance", ExitCode.AS_PLANNED),)
    assert bench.take(RequestJobs) == []


def test_a_pilot_told_to_stop_evicts_and_ends_within_its_grace() -> None:
    bench = PilotBench(rules=PilotRules(grace_s=10, goodbye_timeout_s=5))
    bench.run(ONE)
    assert StopPayload(ONE.key) in bench.feed(ev.StopRequested("SIGTERM"))
    bench.pass_time(40)
    assert bench.take(KillPayload), "the payload does not listen"
    assert bench.said[-1] == EndPilot("SIGTERM", ExitCode.AS_PLANNED), "nobody answers, nothing dies, it ends"


def test_an_idle_pilot_told_to_stop_ends_with_the_next_answer() -> None:
    bench = PilotBench()
    waiting = bench.one(RequestJobs)
    bench.feed(ev.StopRequested("SIGTERM"))
    bench.feed(ev.JobsGranted(waiting.request_id))
    assert isinstance(bench.said[-1], EndPilot)


def test_a_pilot_without_work_ends_after_its_idle_time() -> None:
    bench = PilotBench(rules=PilotRules(max_idle_s=60, wait_s=20))
    while bench.machine.phase is Phase.OPEN:
        assert bench.after_s < 90
        for call in bench.take(RequestJobs):
            assert bench.after_s + call.wait_s <= 61
            bench.pass_time(call.wait_s)
            bench.feed(ev.JobsGranted(call.request_id))
        bench.pass_time(0.5)
    assert 60 <= bench.after_s < 63


def good_bye(bench: PilotBench) -> SendHeartbeat:
    """Return the last heartbeat of a pilot."""
    (last,) = (said for said in bench.said if isinstance(said, SendHeartbeat) and said.ending)
    return last


def test_a_pilot_that_ends_for_want_of_work_and_ran_no_job_says_that_it_came_back_empty() -> None:
    bench = PilotBench(rules=PilotRules(max_idle_s=0))
    bench.feed(ev.JobsGranted(bench.one(RequestJobs).request_id))
    assert good_bye(bench).came_back_empty


def test_a_pilot_that_is_told_to_stop_does_not_say_that_it_came_back_empty() -> None:
    bench = PilotBench()
    waiting = bench.one(RequestJobs)
    bench.feed(ev.StopRequested("SIGTERM"))
    bench.feed(ev.JobsGranted(waiting.request_id))
    assert not good_bye(bench).came_back_empty


def test_a_pilot_with_idle_time_zero_runs_what_there_is_and_ends() -> None:
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


def test_a_credential_that_the_server_refuses_ends_the_pilot() -> None:
    bench = PilotBench()
    call = bench.one(RequestJobs)
    bench.hears = False
    refused = ev.Failure(ev.FailureKind.CREDENTIAL, "token expired")
    bench.feed(ev.RequestFailed(call.request_id, refused))
    bench.feed(ev.HeartbeatFailed(bench.take(SendHeartbeat)[-1].request_id, refused))
    end = bench.said[-1]
    assert isinstance(end, EndPilot)
    assert (end.exit_code, "token expired" in end.reason) == (ExitCode.NO_SERVER, True)


def test_a_queue_that_is_gone_ends_the_pilot_when_its_jobs_have_ended() -> None:
    bench = PilotBench()
    bench.run(ONE)
    call = bench.one(RequestJobs)
    bench.feed(ev.JobsGranted(call.request_id, pools_changed=True))
    bench.pass_time(15)
    assert bench.take(ReadPools)[-1].fresh
    bench.feed(ev.PoolsRead(False))
    assert bench.machine.phase is Phase.DRAINING
    assert bench.take(StopPayload) == []


def test_a_node_that_fails_jobs_takes_no_more() -> None:
    bench = PilotBench(rules=PilotRules(failed_starts=3))
    for number in range(1, 4):
        job = a_job(number)
        bench.feed(ev.JobsGranted(bench.take(RequestJobs)[-1].request_id, (job,)))
        bench.feed(ev.StartFailed(job.key, Outcome.START_FAILED, "disk full"))
    assert bench.machine.phase is not Phase.OPEN


def test_a_node_that_is_not_fit_ends_the_pilot_with_its_own_exit_code() -> None:
    bench = PilotBench(opened=False)
    bench.feed(ev.NodeRefused(("disk full",)))
    end = bench.said[-1]
    assert isinstance(end, EndPilot)
    assert end.exit_code is ExitCode.NODE_UNFIT


def test_a_pilot_that_cannot_reach_its_server_for_too_long_ends() -> None:
    bench = PilotBench(rules=PilotRules(unreachable_s=300))
    bench.hears = False
    for _ in range(100):
        for call in bench.take(RequestJobs):
            bench.feed(ev.RequestFailed(call.request_id, transient()))
        for beat in bench.take(SendHeartbeat):
            bench.feed(ev.HeartbeatFailed(beat.request_id, transient()))
        bench.pass_time(5)
    end = bench.said[-1]
    assert isinstance(end, EndPilot)
    assert end.exit_code is ExitCode.NO_SERVER


def test_what_is_given_back_waits_for_requests_that_are_being_taken_back() -> None:
    bench = PilotBench()
    bench.run(ONE)
    waiting = bench.one(RequestJobs)
    bench.feed(ev.StopRequested("SIGTERM"))
    assert bench.one(RecallRequest).request_id == waiting.request_id
    bench.feed(ev.PayloadExited(ONE.key, None, 15))
    assert bench.outcome(ONE) is None
    bench.feed(ev.JobsGranted(waiting.request_id))
    assert bench.outcome(ONE) is Outcome.EVICTED


def test_what_is_given_back_does_not_wait_long_for_a_server_that_says_nothing() -> None:
    bench = PilotBench()
    bench.run(ONE)
    bench.feed(ev.StopRequested("SIGTERM"))
    bench.feed(ev.PayloadExited(ONE.key, None, 15))
    bench.pass_time(2)
    assert bench.outcome(ONE) is Outcome.EVICTED


@pytest.mark.parametrize("error_s", [-301, 301])
def test_a_node_whose_clock_is_wrong_takes_no_jobs(error_s: float) -> None:
    bench = PilotBench(hears=False)
    assert bench.take(RequestJobs) == []
    bench.answer_beat(server_time=bench.now.utc - timedelta(seconds=error_s))
    assert bench.take(RequestJobs) == []
    bench.answer_beat()
    end = bench.one(EndPilot)
    assert ("clock is 301 s off" in end.reason, end.exit_code) == (True, ExitCode.NODE_UNFIT)


def test_the_time_that_a_heartbeat_took_is_not_held_against_the_clock() -> None:
    bench = PilotBench(hears=False, rules=PilotRules(clock_error_s=5))
    server_time = bench.now.utc
    bench.pass_time(10)
    bench.answer_beat(server_time=server_time)
    assert bench.take(RequestJobs)
