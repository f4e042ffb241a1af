"""How long a job may stay that has to go, who can call that off, and how it is got out of its slot."""

from __future__ import annotations

import pytest

from pilotage.values.attempts import JobHold
from pilotage_pilot.core.slots import events as ev
from support.slot_bench import BUSY, IDLE, KILLING, RETIRING, UNCLAIMED, VACATING, SlotBench, a_busy_slot, kinds

BETTER = ev.PreemptionOrdered("a better job waits")


def test_preempt_true_with_no_retirement_evicts() -> None:
    slot = SlotBench(MaxJobRetirementTime=0)
    slot.answer(PREEMPT=lambda: slot.machine.claim is not None and slot.machine.claim.run.seconds(slot.now) > 20)
    slot.start()
    assert slot.pass_time(20) == []
    assert slot.pass_time(5) == [ev.StopJob(600, "PREEMPT of its slot is true")]
    assert slot.shows == VACATING
    slot.end()
    assert slot.shows == UNCLAIMED


@pytest.mark.parametrize("preempts", [None, "True", 1])
def test_a_preempt_that_is_not_exactly_true_preempts_nothing(preempts: object) -> None:
    slot = a_busy_slot()
    assert slot.poll(PREEMPT=preempts) == ()
    assert slot.shows == BUSY


def test_preempt_lets_the_job_retire_and_nothing_calls_that_off() -> None:
    slot = a_busy_slot(MaxJobRetirementTime=3600)
    assert slot.poll(PREEMPT=True) == ()
    assert slot.shows == RETIRING
    assert slot.poll(PREEMPT=False) == ()
    assert slot.feed(ev.PreemptionWithdrawn()) == ()
    assert slot.shows == RETIRING


def test_a_job_is_vacated_so_that_it_is_gone_when_its_retirement_ends() -> None:
    slot = a_busy_slot(MaxJobRetirementTime=3600, MachineMaxVacateTime=600, polls=False)
    slot.pass_time(1000)
    slot.poll(PREEMPT=True)
    assert slot.pass_time(1999) == []
    assert kinds(slot.pass_time(1)) == [ev.StopJob]
    assert slot.machine.entered_state == slot.now


def test_a_job_that_ends_while_it_retires_leaves_the_slot_free() -> None:
    slot = a_busy_slot(MaxJobRetirementTime=3600)
    slot.poll(PREEMPT=True)
    (ended,) = slot.end()
    assert isinstance(ended, ev.EndClaim)
    assert ended.reason == "PREEMPT of its slot is true"
    assert slot.shows == UNCLAIMED


@pytest.mark.parametrize("granted", [None, "an hour", False, -1, float("nan")])
def test_a_retirement_that_is_no_number_of_seconds_grants_nothing(granted: object) -> None:
    slot = a_busy_slot(MaxJobRetirementTime=granted)
    assert kinds(slot.poll(PREEMPT=True)) == [ev.StopJob]


def test_the_job_may_ask_for_less_retirement_but_not_for_more() -> None:
    modest = a_busy_slot(MaxJobRetirementTime=3600, MachineMaxVacateTime=0, job={"MaxJobRetirementTime": 100})
    modest.poll(PREEMPT=True)
    assert kinds(modest.pass_time(100)) == [ev.KillJob]
    greedy = a_busy_slot(MaxJobRetirementTime=100, MachineMaxVacateTime=0, job={"MaxJobRetirementTime": 3600})
    greedy.poll(PREEMPT=True)
    assert greedy.pass_time(99) == []
    assert kinds(greedy.pass_time(1)) == [ev.KillJob]


def test_the_job_may_ask_for_less_vacate_time_but_not_for_more() -> None:
    modest = a_busy_slot(MachineMaxVacateTime=600, job={"JobMaxVacateTime": 30})
    assert modest.poll(PREEMPT=True) == (ev.StopJob(30, "PREEMPT of its slot is true"),)
    greedy = a_busy_slot(MachineMaxVacateTime=30, job={"JobMaxVacateTime": 600})
    assert greedy.poll(PREEMPT=True) == (ev.StopJob(30, "PREEMPT of its slot is true"),)


def test_a_broken_vacate_time_is_htcondors_default() -> None:
    slot = a_busy_slot(MachineMaxVacateTime="soon")
    assert slot.poll(PREEMPT=True) == (ev.StopJob(600, "PREEMPT of its slot is true"),)


def test_an_order_for_a_better_job_retires_the_present_one() -> None:
    slot = a_busy_slot(MaxJobRetirementTime=1000)
    assert slot.feed(BETTER) == ()
    assert slot.shows == RETIRING
    assert slot.machine.preemption is not None


def test_an_order_that_is_withdrawn_lets_the_job_run_on() -> None:
    slot = a_busy_slot(MaxJobRetirementTime=1000)
    slot.feed(BETTER)
    assert slot.feed(ev.PreemptionWithdrawn()) == ()
    assert slot.shows == BUSY
    assert slot.machine.preemption is None


def test_an_order_that_is_withdrawn_changes_nothing_once_preempt_has_been_true() -> None:
    slot = a_busy_slot(MaxJobRetirementTime=1000)
    slot.feed(BETTER)
    slot.poll(PREEMPT=True)
    slot.feed(ev.PreemptionWithdrawn())
    assert slot.poll(PREEMPT=False) == ()
    assert slot.shows == RETIRING


def test_an_order_without_retirement_vacates_at_once_with_its_reason() -> None:
    slot = a_busy_slot()
    assert slot.feed(BETTER) == (ev.StopJob(600, "a better job waits"),)
    assert kinds(slot.end()) == [ev.EndClaim]
    assert slot.machine.preemption is None


def test_an_order_frees_an_idle_claim_at_once() -> None:
    slot = a_busy_slot()
    slot.end()
    (ended,) = slot.feed(BETTER)
    assert isinstance(ended, ev.EndClaim)
    assert ended.reason == "a better job waits"
    assert slot.shows == UNCLAIMED


def test_a_job_that_ends_while_an_order_waits_frees_the_slot() -> None:
    slot = a_busy_slot(MaxJobRetirementTime=1000)
    slot.feed(BETTER)
    assert kinds(slot.end()) == [ev.EndClaim]


@pytest.mark.parametrize("wants", [False, None, "True"])
def test_preempt_want_vacate_false_kills_at_once(wants: object) -> None:
    slot = a_busy_slot(WANT_VACATE=wants)
    assert slot.poll(PREEMPT=True) == (ev.KillJob("PREEMPT of its slot is true"),)
    assert slot.shows == KILLING


def test_want_vacate_is_not_asked_when_preempt_is_not_why() -> None:
    slot = a_busy_slot(WANT_VACATE=False)
    assert kinds(slot.feed(BETTER)) == [ev.StopJob]
    assert slot.shows == VACATING


def test_preempt_that_is_true_at_the_end_of_an_ordered_retirement_counts() -> None:
    slot = a_busy_slot(WANT_VACATE=False, WANT_SUSPEND=True, PREEMPT=True, WANT_HOLD=True)
    assert slot.feed(BETTER) == (ev.KillJob("a better job waits", JobHold("the policy of its slot wants it held")),)


def test_preempt_kill_ends_vacating() -> None:
    slot = a_busy_slot()
    slot.poll(PREEMPT=True)
    assert slot.pass_time(60) == []
    slot.answer(KILL=True)
    assert slot.pass_time(5) == [ev.KillJob("PREEMPT of its slot is true")]
    assert slot.shows == KILLING


def test_a_job_that_does_not_end_itself_is_killed_when_its_vacate_time_is_over() -> None:
    slot = a_busy_slot(MachineMaxVacateTime=90, polls=False)
    slot.poll(PREEMPT=True)
    assert slot.pass_time(89) == []
    assert slot.pass_time(1) == [ev.KillJob("PREEMPT of its slot is true")]
    assert slot.machine.alarm_boot_s(slot.judge) == float("inf")


def test_without_vacate_time_the_job_is_killed_at_once() -> None:
    slot = a_busy_slot(MachineMaxVacateTime=0)
    assert kinds(slot.poll(PREEMPT=True)) == [ev.KillJob]


def test_want_hold_holds_the_preempted_job_with_reason_and_subcode() -> None:
    slot = a_busy_slot(WANT_HOLD=True, WANT_HOLD_REASON="too much memory", WANT_HOLD_SUBCODE=102)
    hold = JobHold("too much memory", 102)
    assert slot.poll(PREEMPT=True) == (ev.StopJob(600, "PREEMPT of its slot is true", hold),)
    assert slot.pass_time(600) == [ev.KillJob("PREEMPT of its slot is true", hold)]


@pytest.mark.parametrize("subcode", [None, "many", float("inf"), float("nan"), 2**31, -(2**31)])
def test_a_hold_subcode_that_is_no_number_or_too_large_is_zero(subcode: object) -> None:
    slot = a_busy_slot(WANT_HOLD=True, WANT_HOLD_REASON=7, WANT_HOLD_SUBCODE=subcode)
    (stop,) = slot.poll(PREEMPT=True)
    assert isinstance(stop, ev.StopJob)
    assert stop.hold == JobHold("the policy of its slot wants it held", 0)


@pytest.mark.parametrize("wants", [False, None, "True"])
def test_a_want_hold_that_is_not_exactly_true_holds_nothing(wants: object) -> None:
    slot = a_busy_slot(WANT_HOLD=wants)
    assert slot.poll(PREEMPT=True) == (ev.StopJob(600, "PREEMPT of its slot is true"),)


def test_want_hold_is_not_asked_when_preempt_is_not_why() -> None:
    slot = a_busy_slot(WANT_HOLD=True)
    assert slot.feed(BETTER) == (ev.StopJob(600, "a better job waits"),)


def test_the_first_reason_to_leave_stands() -> None:
    slot = a_busy_slot(MaxJobRetirementTime=1000)
    slot.poll(PREEMPT=True)
    slot.feed(BETTER)
    slot.answer(MaxJobRetirementTime=0)
    assert slot.poll() == (ev.StopJob(600, "PREEMPT of its slot is true"),)


def test_a_vacated_slot_can_be_claimed_again() -> None:
    slot = a_busy_slot()
    slot.feed(BETTER)
    slot.end()
    slot.start()
    assert slot.shows == BUSY
    assert slot.poll() == ()
    slot.end()
    assert slot.shows == IDLE
