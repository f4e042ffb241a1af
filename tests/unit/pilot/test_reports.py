"""Reports of jobs and slots: content, order, repetition until the server has accepted them."""

from __future__ import annotations

from pilotage.values.attempts import Outcome, ReportedOutput, ReportResult
from pilotage_pilot.core import events as ev
from pilotage_pilot.core.instructions import (
    EndPilot,
    ForgetAttempt,
    KillPayload,
    PrepareJob,
    RequestJobs,
    SendHeartbeat,
    StartPayload,
    StoreOutput,
)
from pilotage_pilot.core.lifetime import Phase
from pilotage_pilot.core.model import GrantedJob, ReportedState, Usage
from pilotage_pilot.core.rules import PilotRules
from pilotage_pilot.core.server_session import MAX_REPORT_BYTES
from support.pilot_bench import ONE, TWO, PilotBench, a_job, transient


def test_job_is_prepared_started_stored_and_reported() -> None:
    bench = PilotBench()
    assert PrepareJob in {type(instruction) for instruction in bench.grant(ONE)}
    assert StartPayload(ONE.key) in bench.feed(ev.JobPrepared(ONE.key))
    bench.feed(ev.PayloadStarted(ONE.key))
    bench.pass_time(7)
    assert StoreOutput(ONE.key) in bench.feed(ev.PayloadExited(ONE.key, 3, None, Usage(1.5, 20)))
    stored = ReportedOutput("stdout", "c" * 64, 2, b"hi")
    assert ForgetAttempt(ONE.key) in bench.feed(ev.OutputStored(ONE.key, (stored,)))
    report = bench.reports()[-1]
    assert (report.outcome, report.exit_code, report.output_files) == (Outcome.EXITED, 3, (stored,))
    assert (report.usage, report.wall_s) == (Usage(1.5, 20), 7.0)


def test_end_of_a_payload_of_a_moment_carries_its_start() -> None:
    bench = PilotBench()
    bench.grant(ONE)
    bench.feed(ev.JobPrepared(ONE.key))
    began = bench.now
    bench.pass_time(0.25)
    assert StoreOutput(ONE.key) in bench.feed(ev.PayloadExited(ONE.key, 0, None, began=began))
    bench.feed(ev.OutputStored(ONE.key))
    report = bench.reports()[-1]
    assert (report.outcome, report.started, report.wall_s) == (Outcome.EXITED, began.utc, 0.25)


def test_payload_killed_during_its_start_is_reported_as_killed() -> None:
    bench = PilotBench()
    bench.grant(ONE)
    bench.feed(ev.JobPrepared(ONE.key))
    bench.pass_time(8)
    assert KillPayload(ONE.key) in bench.answer_heartbeat(commands=(ev.KillCommanded(ONE.key, "removed"),))
    bench.feed(ev.PayloadExited(ONE.key, None, 9, began=bench.now))
    bench.feed(ev.OutputStored(ONE.key))
    report = bench.reports()[-1]
    assert (report.outcome, report.reason) == (Outcome.KILLED, "removed")


def test_outcome_is_reported_until_server_accepts_it() -> None:
    bench = PilotBench(cpus=1)
    bench.run(ONE)
    bench.answers_heartbeats = False
    bench.pass_time(1)
    bench.answer_heartbeat(commands=(ev.DrainCommanded("maintenance"),))
    bench.exit(ONE)
    bench.feed(ev.OutputStored(ONE.key))
    bench.answer_heartbeat(results=())
    for _ in range(3):
        bench.pass_time(60)
        beat = bench.take(SendHeartbeat)[-1]
        assert [report.outcome for report in beat.reports] == [Outcome.EXITED]
        bench.feed(ev.HeartbeatFailed(beat.request_id, transient()))
    bench.pass_time(60)
    bench.answer_heartbeat()
    assert len(bench.machine.payloads) == 0


def test_outcome_is_reported_with_request_for_freed_slot() -> None:
    bench = PilotBench(cpus=1)
    bench.grant(ONE)
    bench.feed(ev.StartFailed(ONE.key, Outcome.REFUSED_BY_JOB, "no such program"))
    call = bench.one(RequestJobs)
    assert [report.outcome for report in call.reports] == [Outcome.REFUSED_BY_JOB]
    bench.feed(ev.RequestFailed(call.request_id, transient()))
    bench.pass_time(1)
    repeated = bench.one(RequestJobs)
    assert (repeated.request_id, repeated.reports) == (call.request_id, call.reports)
    assert len(bench.machine.payloads) == 1
    bench.feed(ev.JobsGranted(repeated.request_id, results=(ReportResult(*ONE.key),)))
    assert len(bench.machine.payloads) == 0


def test_running_job_is_reported_soon_and_short_job_only_once() -> None:
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


def test_slot_is_offered_before_slow_output_is_stored() -> None:
    bench = PilotBench(cpus=1)
    bench.run(ONE)
    bench.exit(ONE)
    assert bench.take(RequestJobs) == []
    bench.pass_time(0.1)
    assert [report.state for report in bench.one(RequestJobs).reports] == [ReportedState.COMPLETING]


def test_failed_output_is_retried_until_attempt_loses_output() -> None:
    bench = PilotBench(rules=PilotRules(store_timeout_s=100, lease_margin_s=1))
    job = a_job(1, lease_s=10_000)
    bench.run(job)
    bench.exit(job)
    for _ in range(40):
        for store in bench.take(StoreOutput):
            bench.feed(ev.OutputFailed(store.key, transient("no route")))
        bench.pass_time(10)
    assert bench.outcome(job) is Outcome.OUTPUT_LOST
    assert "no route" in bench.reports()[-1].reason


def test_changed_slots_are_reported_at_most_once_a_second() -> None:
    bench = PilotBench(cpus=1)
    waiting = bench.one(RequestJobs)
    for number in range(2, 12):
        bench.feed(ev.JobsGranted(waiting.request_id, (job := a_job(number),)))
        bench.feed(ev.StartFailed(job.key, Outcome.REFUSED_BY_JOB, "no such program"))
        waiting = bench.one(RequestJobs)
        bench.pass_time(0.1)
    with_slots = [call for call in bench.instructions if isinstance(call, SendHeartbeat) and call.slots]
    assert 2 <= len(with_slots) <= 3


def test_report_without_result_is_repeated() -> None:
    bench = PilotBench(cpus=1)
    bench.grant(ONE)
    bench.feed(ev.StartFailed(ONE.key, Outcome.REFUSED_BY_JOB, "no such program"))
    call = bench.one(RequestJobs)
    bench.feed(ev.JobsGranted(call.request_id, (TWO,)))
    assert [report.key for report in bench.reports()] == [ONE.key, ONE.key]
    assert bench.machine.payloads.get(ONE.key) is None


def test_late_events_of_ended_attempt_change_nothing() -> None:
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


def test_node_is_reported_again_when_server_wants_it() -> None:
    bench = PilotBench(answers_heartbeats=False)
    first = bench.one(SendHeartbeat)
    assert first.slots is not None
    bench.feed(ev.HeartbeatAnswered(first.request_id, next_s=30.0, node_wanted=True))
    bench.pass_time(1)
    assert bench.one(SendHeartbeat).slots is not None


def test_node_is_reported_at_once_when_server_orders_it() -> None:
    bench = PilotBench(answers_heartbeats=False)
    bench.feed(ev.HeartbeatAnswered(bench.one(SendHeartbeat).request_id, next_s=30.0))
    bench.feed(ev.JobsGranted(bench.one(RequestJobs).request_id, commands=(ev.ReportCommanded(),)))
    beat = bench.one(SendHeartbeat)
    assert beat.slots is not None
    assert beat.slots[0].ad, "the whole slot"


def drain_while_running(bench: PilotBench, *jobs: GrantedJob) -> None:
    """Run these jobs and drain the pilot, with a heartbeat under way."""
    bench.run(*jobs)
    bench.answers_heartbeats = False
    bench.pass_time(1)
    bench.answer_heartbeat(commands=(ev.DrainCommanded("maintenance"),))
    bench.feed(ev.JobsGranted(bench.one(RequestJobs).request_id))


def end_with_output(bench: PilotBench, size: int, *jobs: GrantedJob) -> None:
    """End jobs one after the other, each with `size` bytes of output inside its report."""
    for job in jobs:
        bench.exit(job)
        bench.feed(ev.OutputStored(job.key, (ReportedOutput("stdout", "c" * 64, size, bytes(size)),)))


def ended_jobs(beat: SendHeartbeat) -> list[int]:
    return [report.key.job_id for report in beat.reports if report.state is ReportedState.DONE]


def test_large_reports_are_split_in_order_of_job_ends() -> None:
    bench = PilotBench(cpus=8)
    jobs = [a_job(number) for number in range(1, 8)]
    drain_while_running(bench, *jobs)
    end_with_output(bench, MAX_REPORT_BYTES // 4, *jobs)
    ends: list[list[int]] = []
    while bench.machine.payloads:
        bench.answer_heartbeat()
        beat = bench.one(SendHeartbeat)
        assert sum(report.max_bytes for report in beat.reports) <= MAX_REPORT_BYTES
        ends.append(ended_jobs(beat))
    assert ends == [[1, 2, 3], [4, 5, 6], [7], []]


def test_split_reports_do_not_stop_lease_renewal() -> None:
    bench = PilotBench(cpus=9)
    jobs = [a_job(number) for number in range(1, 8)]
    drain_while_running(bench, *jobs, running := a_job(99))
    end_with_output(bench, MAX_REPORT_BYTES // 4, *jobs)
    bench.answer_heartbeat()
    beat = bench.one(SendHeartbeat)
    assert len(ended_jobs(beat)) < len(jobs)
    assert beat.leases == (running.key,)


def test_oversized_report_is_sent_alone() -> None:
    bench = PilotBench()
    drain_while_running(bench, ONE, TWO)
    end_with_output(bench, MAX_REPORT_BYTES + 1, ONE, TWO)
    bench.answer_heartbeat()
    assert ended_jobs(bench.one(SendHeartbeat)) == [1]
    bench.answer_heartbeat()
    assert ended_jobs(bench.one(SendHeartbeat)) == [2]


def test_stopping_pilot_sends_all_reports_before_last_heartbeat() -> None:
    bench = PilotBench(rules=PilotRules(grace_s=10, goodbye_timeout_s=100))
    drain_while_running(bench, ONE, TWO)
    end_with_output(bench, MAX_REPORT_BYTES, ONE, TWO)
    bench.feed(ev.StopRequested("SIGTERM"))
    bench.pass_time(110)
    assert bench.machine.phase is Phase.LEAVING
    bench.answer_heartbeat()
    beats = [bench.one(SendHeartbeat)]
    while not beats[-1].ending:
        bench.answer_heartbeat()
        beats.append(bench.one(SendHeartbeat))
    assert [ended_jobs(beat) for beat in beats] == [[1], [2]]
    bench.answer_heartbeat()
    assert isinstance(bench.instructions[-1], EndPilot)
