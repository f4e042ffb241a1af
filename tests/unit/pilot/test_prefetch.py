"""Prefetch of short jobs: they start without a request, wait only briefly, and none is lost."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from pilotage.values.amounts import Amounts
from pilotage.values.attempts import LostLease, Outcome, RenewedLease
from pilotage_pilot.core import events as ev
from pilotage_pilot.core.events import ContactRequested
from pilotage_pilot.core.instructions import KillPayload, PrepareJob, RequestJobs, SendHeartbeat
from pilotage_pilot.core.model import GrantedJob
from support.pilot_bench import PilotBench, a_job, built_in_slots, slots_with, with_ad

SLOT = "slot1_1"
RUN_S = 0.01
PREFETCHED = tuple(replace(a_job(number, slot=SLOT), task_queue=7) for number in (2, 3, 4, 5))

ALL_DECLINED = [Outcome.DECLINED] * 3


def run_through(bench: PilotBench, job: GrantedJob, *, seconds: float = RUN_S) -> None:
    """Start and end the prepared job of a slot."""
    bench.feed(ev.JobPrepared(job.key))
    bench.feed(ev.PayloadStarted(job.key))
    bench.pass_time(seconds)
    bench.exit(job)
    bench.feed(ev.OutputStored(job.key))


def a_quick_pilot(first_s: float = RUN_S) -> PilotBench:
    """Return a pilot with one core whose first job ran for `first_s` seconds."""
    bench = PilotBench(cpus=1)
    bench.grant(a_job(1))
    run_through(bench, a_job(1), seconds=first_s)
    return bench


@pytest.fixture
def bench() -> PilotBench:
    """Return a pilot with one job in its slot and three prefetched jobs."""
    bench = a_quick_pilot()
    bench.grant(*PREFETCHED)
    return bench


def started(bench: PilotBench) -> list[int]:
    """Return the jobs that entered a slot since the last call."""
    return [order.job.key.job_id for order in bench.take(PrepareJob)]


def outcomes(bench: PilotBench, *jobs: GrantedJob) -> list[Outcome | None]:
    """Return the reported outcome of each job, after due reports are sent."""
    bench.pass_time(0.11)
    return [bench.outcome(job) for job in jobs]


def reason_of(bench: PilotBench, job: GrantedJob) -> str:
    return next(report.reason for report in bench.reports() if report.key == job.key)


@pytest.mark.parametrize(("first_s", "ahead"), [(0.0, 63), (0.01, 50), (0.1, 5), (0.4, 1), (0.6, 0)])
def test_slot_prefetches_half_a_second_of_jobs(first_s: float, ahead: int) -> None:
    bench = a_quick_pilot(first_s)
    (offer,) = bench.one(RequestJobs).slots
    assert offer.ahead == pytest.approx(ahead, abs=1)
    assert offer.ahead <= 63


def test_slot_without_earlier_job_prefetches_none() -> None:
    (offer,) = PilotBench(cpus=1).one(RequestJobs).slots
    assert offer.ahead == 0


def test_prefetched_jobs_start_without_messages_to_server(bench: PilotBench) -> None:
    begin_s = bench.boot_s
    assert started(bench) == [1, 2]
    run_through(bench, PREFETCHED[0])
    assert started(bench) == [3]
    run_through(bench, PREFETCHED[1])
    assert started(bench) == [4]
    assert bench.boot_s - begin_s < 0.05
    assert bench.take(RequestJobs) == []
    assert [beat.reports for beat in bench.take(SendHeartbeat) if beat.reports] == []


def test_slot_without_prefetched_jobs_requests_and_reports_once(bench: PilotBench) -> None:
    for job in PREFETCHED:
        run_through(bench, job)
    call = bench.one(RequestJobs)
    assert call.reports[-1].key == PREFETCHED[-1].key
    assert [report.key.job_id for report in bench.reports() if report.outcome] == [1, 2, 3, 4, 5]
    assert [offer.name for offer in call.slots] == [SLOT]


def test_ends_of_prefetched_jobs_are_reported_together(bench: PilotBench) -> None:
    run_through(bench, PREFETCHED[0])
    run_through(bench, PREFETCHED[1])
    bench.pass_time(0.11)
    reported = [
        [report.key.job_id for report in beat.reports] for beat in bench.instructions if isinstance(beat, SendHeartbeat)
    ]
    assert [jobs for jobs in reported if jobs] == [[2, 3]]


def test_repeated_answer_adds_no_prefetched_job() -> None:
    bench = a_quick_pilot()
    call = bench.one(RequestJobs)
    bench.feed(ev.JobsGranted(call.request_id, PREFETCHED))
    bench.feed(ev.JobsGranted(call.request_id, PREFETCHED))
    for job in PREFETCHED:
        run_through(bench, job)
    assert started(bench) == [1, 2, 3, 4, 5]


def test_surplus_jobs_are_declined() -> None:
    bench = a_quick_pilot(first_s=0.4)
    bench.grant(*PREFETCHED[:3])
    assert outcomes(bench, *PREFETCHED[:3]) == [None, None, Outcome.DECLINED]


def test_prefetched_jobs_behind_long_job_are_declined(
    bench: PilotBench,
) -> None:
    bench.feed(ev.JobPrepared(PREFETCHED[0].key))
    bench.feed(ev.PayloadStarted(PREFETCHED[0].key))
    bench.pass_time(1.8)
    assert outcomes(bench, *PREFETCHED) == [None] * 4
    bench.pass_time(0.1)
    assert outcomes(bench, *PREFETCHED) == [None, *ALL_DECLINED]
    assert reason_of(bench, PREFETCHED[1]) == "the job before it in its slot runs long"
    bench.exit(PREFETCHED[0])
    bench.feed(ev.OutputStored(PREFETCHED[0].key))
    (offer,) = bench.one(RequestJobs).slots
    assert (offer.declined_task_queues, offer.ahead) == (frozenset(), 0)


def test_alarm_is_set_for_prefetched_jobs_that_wait(bench: PilotBench) -> None:
    start_s = bench.boot_s
    bench.feed(ev.JobPrepared(PREFETCHED[0].key))
    bench.feed(ev.PayloadStarted(PREFETCHED[0].key))
    bench.pass_time(1.9)
    assert bench.machine.alarm_boot_s(bench.now) == pytest.approx(start_s + 2.0)


def test_wait_of_prefetched_jobs_restarts_with_each_job(bench: PilotBench) -> None:
    for job in PREFETCHED:
        run_through(bench, job, seconds=0.9)
    assert started(bench) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("static", [False, True])
def test_prefetched_job_waits_for_disk_until_files_are_stored(*, static: bool) -> None:
    jobs = (a_job(1), *(replace(job, slot="slot1" if static else SLOT) for job in PREFETCHED[:2]))
    first, *rest = (replace(job, amounts=Amounts(1, 0, 10_000)) for job in jobs)
    bench = PilotBench(cpus=1, slots=slots_with(num_slots="1") if static else built_in_slots)
    for granted in ((first,), rest):
        bench.grant(*granted)
        bench.feed(ev.JobPrepared(granted[0].key))
        bench.feed(ev.PayloadStarted(granted[0].key))
        bench.pass_time(RUN_S)
        bench.exit(granted[0])
        if granted[0] is first:
            bench.feed(ev.OutputStored(first.key))
    assert started(bench) == [1, 2]
    bench.feed(ev.OutputStored(rest[0].key))
    assert started(bench) == [3]


@pytest.mark.parametrize(
    "event",
    [
        ev.NodeRefused(("its disk is full",)),
        ev.StopRequested("SIGTERM"),
        ev.StopRequested("SIGTERM", at_once=True),
        ev.PoolsRead(known=False),
    ],
)
def test_closed_pilot_declines_prefetched_jobs(bench: PilotBench, event: ev.Event) -> None:
    bench.feed(event)
    assert outcomes(bench, *PREFETCHED[1:]) == ALL_DECLINED


def test_prefetched_jobs_are_declined_near_end_of_glidein() -> None:
    bench = PilotBench(cpus=1, ends_after_s=121.5)
    bench.grant(a_job(1))
    run_through(bench, a_job(1))
    bench.grant(*PREFETCHED)
    bench.feed(ev.JobPrepared(PREFETCHED[0].key))
    bench.feed(ev.PayloadStarted(PREFETCHED[0].key))
    bench.pass_time(1.6)
    assert outcomes(bench, *PREFETCHED) == [None, *ALL_DECLINED]
    assert reason_of(bench, PREFETCHED[1]) == "the pilot takes no more jobs"


def test_prefetched_job_that_is_killed_never_starts(bench: PilotBench) -> None:
    answer_heartbeat(bench, commands=(ev.KillCommanded(PREFETCHED[1].key, "removed"),))
    run_through(bench, PREFETCHED[0])
    assert started(bench) == [1, 2, 4]
    assert outcomes(bench, PREFETCHED[1]) == [Outcome.KILLED]
    assert bench.take(KillPayload) == []


def test_prefetched_job_that_lost_its_lease_never_starts(bench: PilotBench) -> None:
    answer_heartbeat(bench, lost=(LostLease(*PREFETCHED[1].key, "it is elsewhere"),))
    run_through(bench, PREFETCHED[0])
    assert started(bench) == [1, 2, 4]


def test_lease_of_prefetched_job_is_renewed_after_one_second(bench: PilotBench) -> None:
    assert answer_heartbeat(bench).leases == (PREFETCHED[0].key,)
    bench.pass_time(1.1)
    assert answer_heartbeat(bench).leases == tuple(job.key for job in PREFETCHED)


@pytest.mark.parametrize(("renewed", "expected"), [(True, [1, 2, 3]), (False, [1, 2, 4])])
def test_prefetched_job_with_expired_lease_is_skipped(renewed: bool, expected: list[int]) -> None:
    bench = a_quick_pilot()
    bench.grant(PREFETCHED[0], replace(PREFETCHED[1], lease_s=1.5), PREFETCHED[2])
    bench.pass_time(1.2)
    answer_heartbeat(bench, renewed=(RenewedLease(*PREFETCHED[1].key, timedelta(seconds=1200.0)),) if renewed else ())
    bench.answers_heartbeats = False
    run_through(bench, PREFETCHED[0], seconds=0.5)
    assert started(bench) == expected


def test_prefetched_jobs_are_declined_when_running_job_is_killed(bench: PilotBench) -> None:
    bench.feed(ev.JobPrepared(PREFETCHED[0].key))
    bench.feed(ev.PayloadStarted(PREFETCHED[0].key))
    answer_heartbeat(bench, commands=(ev.KillCommanded(PREFETCHED[0].key, "removed"),))
    assert outcomes(bench, *PREFETCHED[1:]) == ALL_DECLINED
    assert reason_of(bench, PREFETCHED[1]) == "its slot is no longer claimed by its account"


def test_unsuitable_prefetched_job_is_declined_with_all_behind_it() -> None:
    bench = PilotBench(1, 2000, slots=slots_with(slot_type_1="100%", num_slots_type_1="1", start="TARGET.Wanted"))
    values = (True, True, False, True)
    jobs = [with_ad(replace(a_job(n, slot="slot1"), task_queue=7), Wanted=value) for n, value in enumerate(values, 1)]
    bench.grant(jobs[0])
    run_through(bench, jobs[0])
    bench.grant(*jobs[1:])
    run_through(bench, jobs[1])
    assert started(bench) == [1, 2]
    assert bench.one(RequestJobs).slots[0].declined_task_queues == {7}
    assert outcomes(bench, *jobs[2:]) == [Outcome.DECLINED, Outcome.DECLINED]
    assert {reason_of(bench, job) for job in jobs[2:]} == {"START of slot1 is not true of it"}


def answer_heartbeat(bench: PilotBench, **answer: Any) -> SendHeartbeat:
    """Trigger a heartbeat, answer it, and return it."""
    bench.answers_heartbeats = False
    bench.feed(ContactRequested())
    bench.pass_time(0)
    beat = bench.one(SendHeartbeat)
    bench.answer_heartbeat(**{"renewed": (), **answer})
    bench.answers_heartbeats = True
    return beat
