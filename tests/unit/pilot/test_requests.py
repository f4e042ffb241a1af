"""Job requests: when a pilot sends them, what they offer, and how it handles the answers."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from pilotage.errors import OverloadedError
from pilotage.values.amounts import Amounts
from pilotage.values.attempts import AttemptKey, LostLease, Outcome
from pilotage_pilot.core import events as ev
from pilotage_pilot.core.instructions import (
    EndPilot,
    PrepareJob,
    ReadPools,
    RecallRequest,
    RequestJobs,
    SendHeartbeat,
    ValidateNode,
)
from pilotage_pilot.core.lifetime import Phase
from pilotage_pilot.link.base import failure_of
from support.pilot_bench import ONE, TWO, PilotBench, a_job, transient


def test_first_request_needs_validated_node_and_pools() -> None:
    bench = PilotBench(opened=False)
    assert bench.take(ValidateNode)
    assert bench.take(ReadPools) == [ReadPools(fresh=False)]
    bench.feed(ev.PoolsRead(True, ()))
    assert bench.take(RequestJobs) == []
    bench.feed(ev.NodeValidated())
    assert bench.one(RequestJobs).slots[0].free == Amounts(4, 8000, 10_000)


def test_pools_are_sent_with_first_request_only() -> None:
    bench = PilotBench()
    first = bench.one(RequestJobs)
    assert first.pool_ids == ("a" * 64,)
    bench.feed(ev.JobsGranted(first.request_id))
    bench.pass_time(1)
    assert bench.one(RequestJobs).pool_ids == ()


def test_request_offers_only_unused_and_unoffered_resources() -> None:
    bench = PilotBench(cpus=4)
    bench.run(a_job(1, cpus=3, memory_mib=1000))
    offered = bench.one(RequestJobs).slots[0].free
    assert offered == Amounts(1, 7000, 10_000)
    bench.exit(a_job(1))
    bench.feed(ev.OutputStored(AttemptKey(1, 1)))
    more = bench.take(RequestJobs)[0].slots[0].free
    assert more.cpus == 3


def test_unreadable_job_is_refused_and_others_run() -> None:
    bench = PilotBench(cpus=4)
    unreadable = replace(ONE, fault="there are two files data0")
    bench.grant(unreadable, TWO)
    assert [order.job for order in bench.take(PrepareJob)] == [TWO]
    reports = [report for report in bench.reports() if report.key == unreadable.key]
    assert [(report.outcome, report.reason, report.started) for report in reports] == [
        (Outcome.REFUSED_BY_JOB, "there are two files data0", None)
    ]
    assert bench.one(RequestJobs).slots[0].free.cpus == 3


def test_unreadable_jobs_do_not_end_pilot() -> None:
    bench = PilotBench(cpus=4)
    for number in range(1, 6):
        bench.grant(a_job(number, fault="there are two files data0"))
    assert bench.one(RequestJobs).slots
    assert not bench.take(EndPilot)


def test_parallel_requests_are_merged() -> None:
    bench = PilotBench(cpus=4)
    bench.run(a_job(1, cpus=3))
    first = bench.one(RequestJobs)
    bench.exit(a_job(1))
    bench.feed(ev.OutputStored(AttemptKey(1, 1)))
    bench.feed(ev.JobsGranted(bench.one(RequestJobs).request_id))
    second = bench.one(RequestJobs)
    bench.pass_time(0.3)
    assert {back.request_id for back in bench.take(RecallRequest)} == {first.request_id, second.request_id}
    bench.feed(ev.JobsGranted(first.request_id))
    assert bench.take(RequestJobs) == []
    bench.feed(ev.JobsGranted(second.request_id))
    assert bench.one(RequestJobs).slots[0].free.cpus == 4


def test_job_too_large_for_offer_is_declined_and_barred() -> None:
    bench = PilotBench(cpus=2)
    big = a_job(1, cpus=3)
    bench.grant(big)
    assert bench.outcome(big) is Outcome.DECLINED
    assert bench.take(PrepareJob) == []
    assert bench.one(RequestJobs).slots[0].declined_task_queues == {big.task_queue}


def test_task_queue_whose_image_was_not_served_is_declined_by_the_node_for_five_minutes() -> None:
    bench = PilotBench(cpus=3)
    bench.grant(job := replace(a_job(1), task_queue=5), other := replace(a_job(2), task_queue=6))
    before = bench.one(RequestJobs)
    assert before.slots[0].declined_task_queues == frozenset()
    bench.feed(ev.StartFailed(job.key, Outcome.DECLINED, "its image a cannot be pulled: no such host"))
    assert bench.one(RecallRequest).request_id == before.request_id
    bench.feed(ev.JobsGranted(before.request_id))
    bench.feed(ev.JobPrepared(other.key))
    bench.feed(ev.PayloadStarted(other.key))
    barred: dict[bool, set[frozenset[int]]] = {True: set(), False: set()}
    for second in range(310):
        if second == 100:
            bench.exit(other)
            bench.feed(ev.OutputStored(other.key))
        for call in bench.take(RequestJobs):
            barred[bench.after_s < 300].add(call.slots[0].declined_task_queues)
            bench.feed(ev.JobsGranted(call.request_id))
        bench.pass_time(1)
    assert bench.outcome(job) is Outcome.DECLINED
    assert barred == {True: {frozenset({5})}, False: {frozenset()}}
    assert not bench.take(EndPilot)


def test_offer_has_time_left_until_pilot_closes() -> None:
    bench = PilotBench(ends_after_s=1000)
    first = bench.one(RequestJobs)
    assert first.slots[0].time_left == timedelta(seconds=940)
    bench.feed(ev.JobsGranted(first.request_id))
    bench.pass_time(500)
    second = bench.one(RequestJobs)
    assert second.slots[0].time_left == timedelta(seconds=939)
    bench.feed(ev.JobsGranted(second.request_id))
    third = bench.one(RequestJobs)
    assert third.slots[0].time_left == timedelta(seconds=440)
    bench.pass_time(390)
    assert bench.machine.phase is not Phase.OPEN
    assert bench.one(RecallRequest).request_id == third.request_id


def test_failed_request_is_repeated_with_same_id() -> None:
    bench = PilotBench()
    call = bench.one(RequestJobs)
    bench.feed(ev.RequestFailed(call.request_id, transient()))
    bench.pass_time(60)
    repeated = bench.take(RequestJobs)
    assert [(repeat.request_id, repeat.slots) for repeat in repeated] == [(call.request_id, call.slots)]
    bench.feed(ev.JobsGranted(call.request_id, (a_job(1, lease_s=50),)))
    assert bench.outcome(a_job(1)) is Outcome.DECLINED, "its lease counts from the first sending"


def test_each_gpu_is_given_to_one_slot() -> None:
    bench = PilotBench(cpus=4, gpus=2)
    jobs = [replace(a_job(number), amounts=Amounts(1, 0, 0, 1)) for number in (1, 2)]
    bench.grant(*jobs)
    assert [prepare.slot.gpu_ids for prepare in bench.take(PrepareJob)] == [("0",), ("1",)]


def test_reading_of_pools_is_retried() -> None:
    bench = PilotBench(opened=False)
    bench.feed(ev.NodeValidated())
    bench.take(ReadPools)
    bench.feed(ev.PoolsFailed(transient()))
    assert bench.take(RequestJobs) == []
    bench.pass_time(1)
    assert bench.one(ReadPools) == ReadPools(fresh=False)


def test_answer_to_unknown_request_changes_nothing() -> None:
    bench = PilotBench()
    bench.run(ONE)
    bench.take(SendHeartbeat)
    assert bench.feed(ev.HeartbeatAnswered("never-sent", lost=(LostLease(*ONE.key, "gone"),))) == ()
    assert bench.feed(ev.JobsGranted("never-sent", (TWO,))) == ()
    assert bench.feed(ev.HeartbeatFailed("never-sent", transient())) == ()


def test_overloaded_server_is_retried_after_its_delay() -> None:
    bench = PilotBench(cpus=1)
    bench.grant(job := a_job(1))
    bench.feed(ev.StartFailed(job.key, Outcome.REFUSED_BY_JOB, "no such program"))
    call = bench.one(RequestJobs)
    bench.feed(ev.RequestFailed(call.request_id, failure_of(OverloadedError("too many calls", 5.0))))
    bench.pass_time(4.9)
    assert bench.take(RequestJobs) == []
    bench.pass_time(0.3)
    assert bench.one(RequestJobs).reports == call.reports
