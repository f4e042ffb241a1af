"""Where jobs are over in no time, their slot has some ahead; none of them waits for long, and none is lost."""

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
TURN_S = 0.01
LINE = tuple(replace(a_job(number, slot=SLOT), task_queue=7) for number in (2, 3, 4, 5))

GONE_BACK = [Outcome.DECLINED] * 3


def run_through(bench: PilotBench, job: GrantedJob, *, seconds: float = TURN_S) -> None:
    """Let the job that is in its slot run and end."""
    bench.feed(ev.JobPrepared(job.key))
    bench.feed(ev.PayloadStarted(job.key))
    bench.pass_time(seconds)
    bench.exit(job)
    bench.feed(ev.OutputStored(job.key))


def a_quick_pilot(first_s: float = TURN_S) -> PilotBench:
    """Return a pilot of one core whose first job took so long."""
    bench = PilotBench(cpus=1)
    bench.grant(a_job(1))
    run_through(bench, a_job(1), seconds=first_s)
    return bench


@pytest.fixture
def bench() -> PilotBench:
    """Return a pilot with a job in its slot and two more behind it."""
    bench = a_quick_pilot()
    bench.grant(*LINE)
    return bench


def begun(bench: PilotBench) -> list[int]:
    """Return which jobs have gone into a slot since this was last asked."""
    return [order.job.key.job_id for order in bench.take(PrepareJob)]


def outcomes(bench: PilotBench, *jobs: GrantedJob) -> list[Outcome | None]:
    """Return what was reported of each, all that can be told being told."""
    bench.pass_time(0.11)
    return [bench.outcome(job) for job in jobs]


def reason_of(bench: PilotBench, job: GrantedJob) -> str:
    return next(report.reason for report in bench.reports() if report.key == job.key)


@pytest.mark.parametrize(("first_s", "ahead"), [(0.0, 63), (0.01, 50), (0.1, 5), (0.4, 1), (0.6, 0)])
def test_a_slot_asks_for_as_many_ahead_as_take_half_a_second(first_s: float, ahead: int) -> None:
    bench = a_quick_pilot(first_s)
    (offer,) = bench.one(RequestJobs).slots
    assert offer.ahead == pytest.approx(ahead, abs=1)
    assert offer.ahead <= 63


def test_a_slot_that_has_had_no_job_yet_asks_for_none_ahead() -> None:
    (offer,) = PilotBench(cpus=1).one(RequestJobs).slots
    assert offer.ahead == 0


def test_jobs_ahead_run_one_after_the_other_without_a_word_to_the_server(bench: PilotBench) -> None:
    began = bench.boot_s
    assert begun(bench) == [1, 2]
    run_through(bench, LINE[0])
    assert begun(bench) == [3]
    run_through(bench, LINE[1])
    assert begun(bench) == [4]
    assert bench.boot_s - began < 0.05
    assert bench.take(RequestJobs) == []
    assert [beat.reports for beat in bench.take(SendHeartbeat) if beat.reports] == []


def test_who_has_run_out_of_jobs_ahead_asks_again_and_all_that_have_ended_are_told_once(bench: PilotBench) -> None:
    for job in LINE:
        run_through(bench, job)
    call = bench.one(RequestJobs)
    assert call.reports[-1].key == LINE[-1].key
    assert [report.key.job_id for report in bench.reports() if report.outcome] == [1, 2, 3, 4, 5]
    assert [offer.name for offer in call.slots] == [SLOT]


def test_ends_wait_a_moment_to_travel_together_while_others_are_ahead(bench: PilotBench) -> None:
    run_through(bench, LINE[0])
    run_through(bench, LINE[1])
    bench.pass_time(0.11)
    told = [[report.key.job_id for report in beat.reports] for beat in bench.said if isinstance(beat, SendHeartbeat)]
    assert [jobs for jobs in told if jobs] == [[2, 3]]


def test_an_answer_that_comes_twice_makes_nobody_wait_twice() -> None:
    bench = a_quick_pilot()
    call = bench.one(RequestJobs)
    bench.feed(ev.JobsGranted(call.request_id, LINE))
    bench.feed(ev.JobsGranted(call.request_id, LINE))
    for job in LINE:
        run_through(bench, job)
    assert begun(bench) == [1, 2, 3, 4, 5]


def test_more_than_was_asked_for_goes_back() -> None:
    bench = a_quick_pilot(first_s=0.4)
    bench.grant(*LINE[:3])
    assert outcomes(bench, *LINE[:3]) == [None, None, Outcome.DECLINED]


def test_who_waits_behind_a_job_that_takes_long_goes_back_and_the_slot_may_have_his_like_again(
    bench: PilotBench,
) -> None:
    bench.feed(ev.JobPrepared(LINE[0].key))
    bench.feed(ev.PayloadStarted(LINE[0].key))
    bench.pass_time(1.8)
    assert outcomes(bench, *LINE) == [None] * 4
    bench.pass_time(0.1)
    assert outcomes(bench, *LINE) == [None, *GONE_BACK]
    assert reason_of(bench, LINE[1]) == "the job before it in its slot runs long"
    bench.exit(LINE[0])
    bench.feed(ev.OutputStored(LINE[0].key))
    (offer,) = bench.one(RequestJobs).slots
    assert (offer.declined_task_queues, offer.ahead) == (frozenset(), 0)


def test_the_pilot_wakes_by_itself_to_give_back_who_waits_too_long(bench: PilotBench) -> None:
    since = bench.boot_s
    bench.feed(ev.JobPrepared(LINE[0].key))
    bench.feed(ev.PayloadStarted(LINE[0].key))
    bench.pass_time(1.9)
    assert bench.machine.alarm_boot_s(bench.now) == pytest.approx(since + 2.0)


def test_many_short_jobs_in_a_row_are_no_long_wait(bench: PilotBench) -> None:
    for job in LINE:
        run_through(bench, job, seconds=0.9)
    assert begun(bench) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("static", [False, True])
def test_job_ahead_waits_for_disk_until_earlier_files_are_stored(*, static: bool) -> None:
    jobs = (a_job(1), *(replace(job, slot="slot1" if static else SLOT) for job in LINE[:2]))
    first, *rest = (replace(job, amounts=Amounts(1, 0, 10_000)) for job in jobs)
    bench = PilotBench(cpus=1, slots=slots_with(num_slots="1") if static else built_in_slots)
    for granted in ((first,), rest):
        bench.grant(*granted)
        bench.feed(ev.JobPrepared(granted[0].key))
        bench.feed(ev.PayloadStarted(granted[0].key))
        bench.pass_time(TURN_S)
        bench.exit(granted[0])
        if granted[0] is first:
            bench.feed(ev.OutputStored(first.key))
    assert begun(bench) == [1, 2]
    bench.feed(ev.OutputStored(rest[0].key))
    assert begun(bench) == [3]


@pytest.mark.parametrize(
    "event",
    [
        ev.NodeRefused(("its disk is full",)),
        ev.StopRequested("SIGTERM"),
        ev.StopRequested("SIGTERM", at_once=True),
        ev.PoolsRead(known=False),
    ],
)
def test_a_pilot_that_takes_no_more_jobs_gives_back_who_waits(bench: PilotBench, event: ev.Event) -> None:
    bench.feed(event)
    assert outcomes(bench, *LINE[1:]) == GONE_BACK


def test_near_the_end_of_the_glidein_who_waits_goes_back() -> None:
    bench = PilotBench(cpus=1, ends_after_s=121.5)
    bench.grant(a_job(1))
    run_through(bench, a_job(1))
    bench.grant(*LINE)
    bench.feed(ev.JobPrepared(LINE[0].key))
    bench.feed(ev.PayloadStarted(LINE[0].key))
    bench.pass_time(1.6)
    assert outcomes(bench, *LINE) == [None, *GONE_BACK]
    assert reason_of(bench, LINE[1]) == "the pilot takes no more jobs"


def test_a_job_that_is_removed_while_it_waits_never_starts(bench: PilotBench) -> None:
    answer_beat(bench, commands=(ev.KillCommanded(LINE[1].key, "removed"),))
    run_through(bench, LINE[0])
    assert begun(bench) == [1, 2, 4]
    assert outcomes(bench, LINE[1]) == [Outcome.KILLED]
    assert bench.take(KillPayload) == []


def test_a_job_whose_lease_is_lost_while_it_waits_never_starts(bench: PilotBench) -> None:
    answer_beat(bench, lost=(LostLease(*LINE[1].key, "it is elsewhere"),))
    run_through(bench, LINE[0])
    assert begun(bench) == [1, 2, 4]


def test_who_has_waited_for_a_second_has_his_lease_renewed(bench: PilotBench) -> None:
    assert answer_beat(bench).leases == (LINE[0].key,)
    bench.pass_time(1.1)
    assert answer_beat(bench).leases == tuple(job.key for job in LINE)


@pytest.mark.parametrize(("renewed", "then"), [(True, [1, 2, 3]), (False, [1, 2, 4])])
def test_who_has_no_lease_any_more_when_his_turn_comes_is_left_out(renewed: bool, then: list[int]) -> None:
    bench = a_quick_pilot()
    bench.grant(LINE[0], replace(LINE[1], lease_s=1.5), LINE[2])
    bench.pass_time(1.2)
    answer_beat(bench, renewed=(RenewedLease(*LINE[1].key, timedelta(seconds=1200.0)),) if renewed else ())
    bench.hears = False
    run_through(bench, LINE[0], seconds=0.5)
    assert begun(bench) == then


def test_who_waits_for_a_slot_whose_job_is_put_out_goes_back(bench: PilotBench) -> None:
    bench.feed(ev.JobPrepared(LINE[0].key))
    bench.feed(ev.PayloadStarted(LINE[0].key))
    answer_beat(bench, commands=(ev.KillCommanded(LINE[0].key, "removed"),))
    assert outcomes(bench, *LINE[1:]) == GONE_BACK
    assert reason_of(bench, LINE[1]) == "its slot is no longer claimed by its account"


def test_what_the_slot_does_not_take_when_its_turn_comes_goes_back_with_all_behind_it() -> None:
    bench = PilotBench(1, 2000, slots=slots_with(slot_type_1="100%", num_slots_type_1="1", start="TARGET.Wanted"))
    wanted = (True, True, False, True)
    jobs = [with_ad(replace(a_job(n, slot="slot1"), task_queue=7), Wanted=now) for n, now in enumerate(wanted, 1)]
    bench.grant(jobs[0])
    run_through(bench, jobs[0])
    bench.grant(*jobs[1:])
    run_through(bench, jobs[1])
    assert begun(bench) == [1, 2]
    assert bench.one(RequestJobs).slots[0].declined_task_queues == {7}
    assert outcomes(bench, *jobs[2:]) == [Outcome.DECLINED, Outcome.DECLINED]
    assert {reason_of(bench, job) for job in jobs[2:]} == {"START of slot1 is not true of it"}


def answer_beat(bench: PilotBench, **answer: Any) -> SendHeartbeat:
    """Call for a heartbeat, answer it so, and return it."""
    bench.hears = False
    bench.feed(ContactRequested())
    bench.pass_time(0)
    beat = bench.one(SendHeartbeat)
    bench.answer_beat(**{"renewed": (), **answer})
    bench.hears = True
    return beat
