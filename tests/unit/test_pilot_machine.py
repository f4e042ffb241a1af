"""What the pilot decides, event by event."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from pilotage_pilot.core import events as ev
from pilotage_pilot.core.amounts import Amounts
from pilotage_pilot.core.attempts import TRANSITIONS, Attempt, Ending, IllegalStepError, Stage, Step
from pilotage_pilot.core.departure import ExitCode, Phase
from pilotage_pilot.core.instructions import (
    ContinuePayload,
    EndPilot,
    ForgetAttempt,
    KillPayload,
    PrepareJob,
    ReadPools,
    RequestJobs,
    SendHeartbeat,
    StartPayload,
    StopPayload,
    StoreOutput,
    SuspendPayload,
    TakeBackRequest,
    ValidateNode,
    WarnPayload,
)
from pilotage_pilot.core.jobs import AttemptKey, Outcome, ReportedState, ReportResult, StoredFile, Usage
from pilotage_pilot.core.rules import Rules
from support.pilot_bench import PilotBench, a_job, transient

ONE = a_job(1)
TWO = a_job(2)


def test_a_pilot_asks_for_nothing_before_its_node_is_validated_and_its_pools_are_known() -> None:
    bench = PilotBench(opened=False)
    assert bench.take(ValidateNode)
    assert bench.take(ReadPools) == [ReadPools(fresh=False)]
    bench.feed(ev.PoolsRead(True, ()))
    assert bench.take(RequestJobs) == []
    bench.feed(ev.NodeValidated())
    assert bench.one(RequestJobs).slots[0].free == Amounts(4, 8000, 10_000)


def test_the_pools_travel_with_the_first_request_and_then_only_now_and_then() -> None:
    bench = PilotBench()
    first = bench.one(RequestJobs)
    assert first.pool_ids == ("a" * 64,)
    bench.feed(ev.JobsGranted(first.request_id))
    bench.pass_time(1)
    assert bench.one(RequestJobs).pool_ids == ()


def test_a_job_is_prepared_started_run_stored_and_reported() -> None:
    bench = PilotBench()
    assert PrepareJob in {type(said) for said in bench.grant(ONE)}
    assert StartPayload(ONE.key) in bench.feed(ev.JobPrepared(ONE.key))
    bench.feed(ev.PayloadStarted(ONE.key))
    bench.pass_time(7)
    assert StoreOutput(ONE.key) in bench.feed(ev.PayloadExited(ONE.key, 3, None, Usage(1.5, 20)))
    stored = StoredFile("stdout", "c" * 64, 2, b"hi")
    assert ForgetAttempt(ONE.key) in bench.feed(ev.OutputStored(ONE.key, (stored,)))
    report = bench.reports()[-1]
    assert (report.outcome, report.exit_code, report.output_files) == (Outcome.EXITED, 3, (stored,))
    assert (report.usage, report.wall_s) == (Usage(1.5, 20), 7.0)


def test_an_outcome_is_told_until_the_server_has_taken_it() -> None:
    bench = PilotBench(cpus=1)
    bench.run(ONE)
    bench.hears = False
    bench.pass_time(1)
    bench.answer_beat(commands=(ev.DrainCommanded("maintenance"),))
    bench.exit(ONE)
    bench.feed(ev.OutputStored(ONE.key))
    bench.answer_beat(results=())
    for _ in range(3):
        bench.pass_time(60)
        beat = bench.take(SendHeartbeat)[-1]
        assert [report.outcome for report in beat.reports] == [Outcome.EXITED]
        bench.feed(ev.HeartbeatFailed(beat.request_id, transient()))
    bench.pass_time(60)
    bench.answer_beat()
    assert len(bench.machine.payloads) == 0


def test_an_outcome_travels_with_the_request_for_the_slot_that_it_frees() -> None:
    bench = PilotBench(cpus=1)
    bench.grant(ONE)
    bench.feed(ev.StartFailed(ONE.key, Outcome.REFUSED_BY_JOB, "no such program"))
    call = bench.one(RequestJobs)
    assert [report.outcome for report in call.reports] == [Outcome.REFUSED_BY_JOB]
    bench.feed(ev.RequestFailed(call.request_id, transient()))
    bench.pass_time(1)
    again = bench.one(RequestJobs)
    assert (again.request_id, again.reports) == (call.request_id, call.reports)
    assert len(bench.machine.payloads) == 1
    bench.feed(ev.JobsGranted(again.request_id, results=(ReportResult(ONE.key, True),)))
    assert len(bench.machine.payloads) == 0


def test_a_running_job_is_reported_within_a_moment_and_a_short_one_only_when_it_has_ended() -> None:
    bench = PilotBench(cpus=1)
    bench.run(ONE)
    assert bench.reports() == []
    bench.pass_time(0.06)
    assert [report.state for report in bench.reports()] == [ReportedState.RUNNING]

    short = PilotBench(cpus=1)
    short.run(ONE)
    short.exit(ONE)
    short.feed(ev.OutputStored(ONE.key))
    assert [report.state for report in short.reports()] == [ReportedState.DONE]


def test_a_slot_whose_job_leaves_much_behind_asks_for_the_next_before_all_is_stored() -> None:
    bench = PilotBench(cpus=1)
    bench.run(ONE)
    bench.exit(ONE)
    assert bench.take(RequestJobs) == []
    bench.pass_time(0.1)
    assert [report.state for report in bench.one(RequestJobs).reports] == [ReportedState.COMPLETING]


def test_a_request_offers_only_what_is_neither_used_nor_offered() -> None:
    bench = PilotBench(cpus=4)
    bench.run(a_job(1, cpus=3, memory_mib=1000))
    offered = bench.one(RequestJobs).slots[0].free
    assert offered == Amounts(1, 7000, 10_000)
    bench.exit(a_job(1))
    bench.feed(ev.OutputStored(AttemptKey(1, 1)))
    more = bench.take(RequestJobs)[0].slots[0].free
    assert more.cpus == 3


def test_requests_that_wait_side_by_side_become_one() -> None:
    bench = PilotBench(cpus=4)
    bench.run(a_job(1, cpus=3))
    first = bench.one(RequestJobs)
    bench.exit(a_job(1))
    bench.feed(ev.OutputStored(AttemptKey(1, 1)))
    second = bench.one(RequestJobs)
    bench.pass_time(0.3)
    assert {back.request_id for back in bench.take(TakeBackRequest)} == {first.request_id, second.request_id}
    bench.feed(ev.JobsGranted(first.request_id))
    assert bench.take(RequestJobs) == []
    bench.feed(ev.JobsGranted(second.request_id))
    assert bench.one(RequestJobs).slots[0].free.cpus == 4


def test_what_was_not_offered_is_declined_and_not_asked_for_again() -> None:
    bench = PilotBench(cpus=2)
    big = a_job(1, cpus=3)
    bench.grant(big)
    assert bench.outcome(big) is Outcome.DECLINED
    assert bench.take(PrepareJob) == []
    assert bench.one(RequestJobs).slots[0].declined_task_queues == (big.task_queue,)


def test_a_lease_counts_from_the_sending_of_the_request() -> None:
    bench = PilotBench(rules=Rules(lease_margin_s=10))
    bench.hears = False
    bench.pass_time(15)
    bench.run(a_job(1, lease_s=100))
    bench.pass_time(74.9)
    assert bench.take(KillPayload) == []
    bench.pass_time(0.2)
    assert bench.one(KillPayload).key == AttemptKey(1, 1)


def test_a_lease_counts_from_the_sending_of_the_heartbeat_that_renewed_it() -> None:
    bench = PilotBench(rules=Rules(lease_margin_s=10))
    bench.hears = False
    bench.run(a_job(1, lease_s=100))
    bench.pass_time(50)
    beat = bench.take(SendHeartbeat)[-1]
    assert beat.leases == (AttemptKey(1, 1),)
    bench.pass_time(20)
    bench.feed(ev.HeartbeatAnswered(beat.request_id, (ev.RenewedLease(AttemptKey(1, 1), 100.0),), next_s=1000))
    sent_s = 0.05
    bench.pass_time(sent_s + 90 - bench.after_s - 0.01)
    assert bench.take(KillPayload) == []
    bench.pass_time(0.02)
    assert bench.one(KillPayload).key == AttemptKey(1, 1)


def test_a_job_whose_lease_had_ended_when_it_came_is_not_started() -> None:
    bench = PilotBench()
    bench.pass_time(20)
    late = a_job(1, lease_s=5)
    bench.grant(late)
    assert bench.outcome(late) is Outcome.DECLINED


@pytest.mark.parametrize("how", ["lost", "refused"])
def test_an_attempt_that_the_server_gave_up_is_killed_at_once(how: str) -> None:
    bench = PilotBench()
    bench.run(ONE)
    bench.hears = False
    bench.pass_time(1)
    beat = bench.take(SendHeartbeat)[0]
    if how == "lost":
        answer = ev.HeartbeatAnswered(beat.request_id, lost=(ev.LostLease(ONE.key, "expired"),))
    else:
        answer = ev.HeartbeatAnswered(beat.request_id, results=(ReportResult(ONE.key, False, "expired"),))
    assert KillPayload(ONE.key) in bench.feed(answer)
    bench.feed(ev.PayloadExited(ONE.key, None, 9))
    assert bench.reports()[-1].outcome is Outcome.KILLED
    assert bench.take(StoreOutput) == []


def test_a_kill_command_gives_the_payload_its_grace() -> None:
    bench = PilotBench(rules=Rules(grace_s=10))
    bench.run(ONE)
    bench.hears = False
    bench.pass_time(1)
    assert StopPayload(ONE.key) in bench.answer_beat(commands=(ev.KillCommanded(ONE.key, "removed by alice"),))
    bench.pass_time(9.9)
    assert bench.take(KillPayload) == []
    bench.pass_time(0.2)
    assert len(bench.take(KillPayload)) == 1
    bench.feed(ev.PayloadExited(ONE.key, None, 9))
    assert (bench.reports()[-1].outcome, bench.reports()[-1].reason) == (Outcome.KILLED, "removed by alice")


def test_a_kill_that_comes_while_a_job_is_prepared_keeps_it_from_starting() -> None:
    bench = PilotBench()
    bench.grant(ONE)
    bench.hears = False
    bench.pass_time(1)
    assert KillPayload(ONE.key) in bench.answer_beat(commands=(ev.KillCommanded(ONE.key, "held"),))
    assert StartPayload(ONE.key) not in bench.feed(ev.JobPrepared(ONE.key))
    assert bench.outcome(ONE) is Outcome.KILLED


def test_a_drained_pilot_declines_lets_its_jobs_end_and_says_good_bye() -> None:
    bench = PilotBench()
    bench.run(ONE)
    waiting = bench.one(RequestJobs)
    bench.hears = False
    bench.pass_time(1)
    bench.answer_beat(commands=(ev.DrainCommanded("maintenance"),))
    assert bench.one(TakeBackRequest).request_id == waiting.request_id
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
    bench = PilotBench(rules=Rules(grace_s=10, goodbye_patience_s=5))
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


def test_the_wall_time_of_a_job_does_not_count_while_it_is_suspended() -> None:
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


def test_payloads_are_warned_and_then_evicted_before_the_glidein_ends() -> None:
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


def test_a_pilot_says_how_much_time_is_left_and_asks_no_more_when_it_is_too_little() -> None:
    bench = PilotBench(ends_after_s=1000)
    first = bench.one(RequestJobs)
    assert first.slots[0].time_left_s == 940
    bench.feed(ev.JobsGranted(first.request_id))
    bench.pass_time(500)
    second = bench.one(RequestJobs)
    assert second.slots[0].time_left_s == pytest.approx(939)
    bench.feed(ev.JobsGranted(second.request_id))
    third = bench.one(RequestJobs)
    assert third.slots[0].time_left_s == pytest.approx(440)
    bench.pass_time(390)
    assert bench.machine.phase is not Phase.OPEN
    assert bench.one(TakeBackRequest).request_id == third.request_id


def test_a_pilot_without_work_ends_after_its_idle_time() -> None:
    bench = PilotBench(rules=Rules(max_idle_s=60, wait_s=20))
    while bench.machine.phase is Phase.OPEN:
        assert bench.after_s < 90
        for call in bench.take(RequestJobs):
            assert bench.after_s + call.wait_s <= 61
            bench.pass_time(call.wait_s)
            bench.feed(ev.JobsGranted(call.request_id))
        bench.pass_time(0.5)
    assert 60 <= bench.after_s < 63


def test_a_pilot_with_idle_time_zero_runs_what_there_is_and_ends() -> None:
    bench = PilotBench(rules=Rules(max_idle_s=0))
    call = bench.one(RequestJobs)
    assert call.wait_s == 0
    bench.feed(ev.JobsGranted(call.request_id, (ONE,)))
    waiting = bench.one(RequestJobs)
    bench.feed(ev.JobPrepared(ONE.key))
    bench.feed(ev.PayloadStarted(ONE.key))
    bench.exit(ONE)
    bench.feed(ev.OutputStored(ONE.key))
    assert waiting.request_id in {back.request_id for back in bench.take(TakeBackRequest)}
    for request in (waiting, *bench.take(RequestJobs)):
        bench.feed(
            ev.JobsGranted(request.request_id, results=tuple(ReportResult(r.key, True) for r in request.reports))
        )
    assert bench.machine.phase is not Phase.OPEN


def test_a_lost_answer_to_a_request_is_asked_for_with_the_same_id() -> None:
    bench = PilotBench()
    call = bench.one(RequestJobs)
    bench.feed(ev.RequestFailed(call.request_id, transient()))
    bench.pass_time(60)
    again = bench.take(RequestJobs)
    assert [(repeat.request_id, repeat.slots) for repeat in again] == [(call.request_id, call.slots)]
    bench.feed(ev.JobsGranted(call.request_id, (a_job(1, lease_s=50),)))
    assert bench.outcome(a_job(1)) is Outcome.DECLINED, "its lease counts from the first sending"


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
    bench = PilotBench(rules=Rules(failed_starts=3))
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


def test_output_that_cannot_be_stored_is_tried_again_and_then_costs_the_attempt() -> None:
    bench = PilotBench(rules=Rules(store_patience_s=100, lease_margin_s=1))
    job = a_job(1, lease_s=10_000)
    bench.run(job)
    bench.exit(job)
    for _ in range(40):
        for store in bench.take(StoreOutput):
            bench.feed(ev.OutputFailed(store.key, transient("no route")))
        bench.pass_time(10)
    assert bench.outcome(job) is Outcome.START_FAILED
    assert "no route" in bench.reports()[-1].reason


def test_the_slots_are_reported_when_they_have_changed_and_not_more_than_once_a_second() -> None:
    bench = PilotBench(cpus=1)
    waiting = bench.one(RequestJobs)
    for number in range(2, 12):
        bench.feed(ev.JobsGranted(waiting.request_id, (job := a_job(number),)))
        bench.feed(ev.StartFailed(job.key, Outcome.REFUSED_BY_JOB, "no such program"))
        waiting = bench.one(RequestJobs)
        bench.pass_time(0.1)
    with_slots = [said for said in bench.said if isinstance(said, SendHeartbeat) and said.slots]
    assert 2 <= len(with_slots) <= 3


def test_gpus_are_given_to_one_slot_each() -> None:
    bench = PilotBench(cpus=4, gpus=2)
    jobs = [replace(a_job(number), amounts=Amounts(1, 0, 0, 1)) for number in (1, 2)]
    bench.grant(*jobs)
    assert [prepare.slot.gpu_ids for prepare in bench.take(PrepareJob)] == [("0",), ("1",)]


def test_a_pilot_that_cannot_reach_its_server_for_too_long_ends() -> None:
    bench = PilotBench(rules=Rules(unreachable_s=300))
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


def test_a_step_that_the_table_lacks_changes_nothing_and_says_what_was_tried() -> None:
    attempt = Attempt(ONE, 0.0)
    with pytest.raises(IllegalStepError, match=r"attempt 1\.1 is preparing: it cannot be stored"):
        attempt.step(Step.STORED)
    assert attempt.stage is Stage.PREPARING


def test_every_stage_but_the_last_can_be_left() -> None:
    assert {stage for stage, _ in TRANSITIONS} == set(Stage) - {Stage.REPORTING}


def test_pools_that_cannot_be_read_are_asked_for_again() -> None:
    bench = PilotBench(opened=False)
    bench.feed(ev.NodeValidated())
    bench.take(ReadPools)
    bench.feed(ev.PoolsFailed(transient()))
    assert bench.take(RequestJobs) == []
    bench.pass_time(1)
    assert bench.one(ReadPools) == ReadPools(fresh=False)


def test_a_drain_that_evicts_gives_running_jobs_back() -> None:
    bench = PilotBench()
    bench.run(ONE)
    bench.hears = False
    bench.pass_time(1)
    assert StopPayload(ONE.key) in bench.answer_beat(commands=(ev.DrainCommanded("reboot", evict=True),))
    bench.feed(ev.PayloadExited(ONE.key, None, 15))
    assert [attempt.ending for attempt in bench.machine.payloads] == [Ending(Outcome.EVICTED, "reboot")]


def test_a_payload_that_passes_a_limit_fails_and_keeps_what_it_has_written() -> None:
    bench = PilotBench()
    bench.run(ONE)
    assert StopPayload(ONE.key) in bench.feed(ev.LimitPassed(ONE.key, "it used 90 MiB"))
    assert StoreOutput(ONE.key) in bench.feed(ev.PayloadExited(ONE.key, None, 15))
    bench.feed(ev.OutputStored(ONE.key, notes="output file a is not there"))
    report = bench.reports()[-1]
    assert (report.outcome, report.reason) == (Outcome.LIMIT_EXCEEDED, "it used 90 MiB; output file a is not there")


def test_a_payload_that_the_kernel_ended_for_its_memory_passed_a_limit() -> None:
    bench = PilotBench()
    bench.run(ONE)
    bench.feed(ev.PayloadExited(ONE.key, None, 9, limit="too much memory"))
    bench.feed(ev.OutputStored(ONE.key))
    assert bench.outcome(ONE) is Outcome.LIMIT_EXCEEDED


def test_a_payload_that_starts_after_the_warning_is_warned_at_once() -> None:
    bench = PilotBench(ends_after_s=400)
    bench.pass_time(150)
    bench.run(replace(ONE, lease_s=100_000))
    assert bench.one(WarnPayload).left_s == pytest.approx(190)


def test_an_answer_that_says_nothing_of_a_report_has_it_told_again() -> None:
    bench = PilotBench(cpus=1)
    bench.grant(ONE)
    bench.feed(ev.StartFailed(ONE.key, Outcome.REFUSED_BY_JOB, "no such program"))
    call = bench.one(RequestJobs)
    bench.feed(ev.JobsGranted(call.request_id, (TWO,)))
    assert [report.key for report in bench.reports()] == [ONE.key, ONE.key]
    assert bench.machine.payloads.get(ONE.key) is None


def test_late_news_of_an_attempt_that_is_over_changes_nothing() -> None:
    bench = PilotBench()
    bench.grant(ONE)
    bench.feed(ev.StartFailed(ONE.key, Outcome.REFUSED_BY_JOB, "no such program"))
    bench.take(RequestJobs)
    for event in (
        ev.JobPrepared(ONE.key),
        ev.PayloadStarted(ONE.key),
        ev.PayloadExited(ONE.key, 0, None),
        ev.OutputStored(ONE.key),
        ev.OutputFailed(ONE.key, transient()),
        ev.LimitPassed(ONE.key, "much"),
    ):
        assert bench.feed(event) == ()


def test_what_is_given_back_waits_for_requests_that_are_being_taken_back() -> None:
    bench = PilotBench()
    bench.run(ONE)
    waiting = bench.one(RequestJobs)
    bench.feed(ev.StopRequested("SIGTERM"))
    assert bench.one(TakeBackRequest).request_id == waiting.request_id
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
    bench = PilotBench(hears=False, rules=Rules(clock_error_s=5))
    server_time = bench.now.utc
    bench.pass_time(10)
    bench.answer_beat(server_time=server_time)
    assert bench.take(RequestJobs)


def test_a_suspended_payload_whose_lease_has_ended_does_not_go_on() -> None:
    bench = PilotBench(rules=Rules(heartbeat_s=10_000))
    bench.run(ONE)
    bench.feed(ev.SuspendRequested())
    bench.boot_s += 5000
    said = bench.feed(ev.ContinueRequested())
    assert ContinuePayload(ONE.key) not in said
    assert KillPayload(ONE.key) in said


def test_a_server_that_wants_the_node_is_told_of_it_again() -> None:
    bench = PilotBench(hears=False)
    first = bench.one(SendHeartbeat)
    assert first.slots is not None
    bench.feed(ev.HeartbeatAnswered(first.request_id, next_s=30.0, node_wanted=True))
    bench.pass_time(1)
    assert bench.one(SendHeartbeat).slots is not None


def test_an_answer_that_nobody_waits_for_changes_nothing() -> None:
    bench = PilotBench()
    bench.run(ONE)
    bench.take(SendHeartbeat)
    assert bench.feed(ev.HeartbeatAnswered("never-sent", lost=(ev.LostLease(ONE.key, "gone"),))) == ()
    assert bench.feed(ev.JobsGranted("never-sent", (TWO,))) == ()
    assert bench.feed(ev.HeartbeatFailed("never-sent", transient())) == ()
