"""PREEMPT, preemption orders, retirement time, vacate time and WANT_HOLD of a slot."""

from __future__ import annotations

import pytest

from pilotage.values.attempts import JobHold
from pilotage_pilot.core.slots import events as ev
from support.slot_bench import BUSY, IDLE, KILLING, RETIRING, UNCLAIMED, VACATING, SlotBench, a_busy_slot, kinds

BETTER = ev.PreemptionOrdered("a better job waits")


def test_preempt_without_retirement_evicts() -> None:
    slot = SlotBench(MaxJobRetirementTime=0)
    slot.answer(PREEMPT=lambda: slot.machine.claim is not None and slot.machine.claim.run.seconds(slot.now) > 20)
    slot.start()
    assert slot.pass_time(20) == []
    assert slot.pass_time(5) == [ev.StopJob(600, "PREEMPT of its slot is true")]
    assert slot.state_and_activity == VACATING
    slot.end()
    assert slot.state_and_activity == UNCLAIMED


@pytest.mark.parametrize("value", [None, "True", 1])
def test_preempt_must_be_exactly_true(value: object) -> None:
    slot = a_busy_slot()
    assert slot.poll(PREEMPT=value) == ()
    assert slot.state_and_activity == BUSY


def test_retirement_after_preempt_is_irrevocable() -> None:
    slot = a_busy_slot(MaxJobRetirementTime=3600)
    assert slot.poll(PREEMPT=True) == ()
    assert slot.state_and_activity == RETIRING
    assert slot.poll(PREEMPT=False) == ()
    assert slot.feed(ev.PreemptionWithdrawn()) == ()
    assert slot.state_and_activity == RETIRING


def test_vacating_starts_before_retirement_ends() -> None:
    slot = a_busy_slot(MaxJobRetirementTime=3600, MachineMaxVacateTime=600, polls=False)
    slot.pass_time(1000)
    slot.poll(PREEMPT=True)
    assert slot.pass_time(1999) == []
    assert kinds(slot.pass_time(1)) == [ev.StopJob]
    assert slot.machine.entered_state == slot.now


def test_claim_ends_with_retiring_job() -> None:
    slot = a_busy_slot(MaxJobRetirementTime=3600)
    slot.poll(PREEMPT=True)
    (ended,) = slot.end()
    assert isinstance(ended, ev.EndClaim)
    assert ended.reason == "PREEMPT of its slot is true"
    assert slot.state_and_activity == UNCLAIMED


@pytest.mark.parametrize("granted", [None, "an hour", False, -1, float("nan")])
def test_invalid_retirement_time_is_zero(granted: object) -> None:
    slot = a_busy_slot(MaxJobRetirementTime=granted)
    assert kinds(slot.poll(PREEMPT=True)) == [ev.StopJob]


def test_job_may_shorten_retirement_time_only() -> None:
    smaller = a_busy_slot(MaxJobRetirementTime=3600, MachineMaxVacateTime=0, job={"MaxJobRetirementTime": 100})
    smaller.poll(PREEMPT=True)
    assert kinds(smaller.pass_time(100)) == [ev.KillJob]
    larger = a_busy_slot(MaxJobRetirementTime=100, MachineMaxVacateTime=0, job={"MaxJobRetirementTime": 3600})
    larger.poll(PREEMPT=True)
    assert larger.pass_time(99) == []
    assert kinds(larger.pass_time(1)) == [ev.KillJob]


def test_job_may_shorten_vacate_time_only() -> None:
    smaller = a_busy_slot(MachineMaxVacateTime=600, job={"JobMaxVacateTime": 30})
    assert smaller.poll(PREEMPT=True) == (ev.StopJob(30, "PREEMPT of its slot is true"),)
    larger = a_busy_slot(MachineMaxVacateTime=30, job={"JobMaxVacateTime": 600})
    assert larger.poll(PREEMPT=True) == (ev.StopJob(30, "PREEMPT of its slot is true"),)


def test_invalid_vacate_time_uses_default() -> None:
    slot = a_busy_slot(MachineMaxVacateTime="soon")
    assert slot.poll(PREEMPT=True) == (ev.StopJob(600, "PREEMPT of its slot is true"),)


def test_preemption_order_retires_job() -> None:
    slot = a_busy_slot(MaxJobRetirementTime=1000)
    assert slot.feed(BETTER) == ()
    assert slot.state_and_activity == RETIRING
    assert slot.machine.preemption is not None


def test_withdrawn_preemption_order_lets_job_run() -> None:
    slot = a_busy_slot(MaxJobRetirementTime=1000)
    slot.feed(BETTER)
    assert slot.feed(ev.PreemptionWithdrawn()) == ()
    assert slot.state_and_activity == BUSY
    assert slot.machine.preemption is None


def test_withdrawn_preemption_order_does_not_cancel_preempt() -> None:
    slot = a_busy_slot(MaxJobRetirementTime=1000)
    slot.feed(BETTER)
    slot.poll(PREEMPT=True)
    slot.feed(ev.PreemptionWithdrawn())
    assert slot.poll(PREEMPT=False) == ()
    assert slot.state_and_activity == RETIRING


def test_preemption_order_without_retirement_vacates_with_its_reason() -> None:
    slot = a_busy_slot()
    assert slot.feed(BETTER) == (ev.StopJob(600, "a better job waits"),)
    assert kinds(slot.end()) == [ev.EndClaim]
    assert slot.machine.preemption is None


def test_preemption_order_ends_idle_claim() -> None:
    slot = a_busy_slot()
    slot.end()
    (ended,) = slot.feed(BETTER)
    assert isinstance(ended, ev.EndClaim)
    assert ended.reason == "a better job waits"
    assert slot.state_and_activity == UNCLAIMED


def test_job_end_completes_preemption_order() -> None:
    slot = a_busy_slot(MaxJobRetirementTime=1000)
    slot.feed(BETTER)
    assert kinds(slot.end()) == [ev.EndClaim]


@pytest.mark.parametrize("value", [False, None, "True"])
def test_preempt_kills_unless_want_vacate_is_true(value: object) -> None:
    slot = a_busy_slot(WANT_VACATE=value)
    assert slot.poll(PREEMPT=True) == (ev.KillJob("PREEMPT of its slot is true"),)
    assert slot.state_and_activity == KILLING


def test_want_vacate_does_not_apply_to_preemption_order() -> None:
    slot = a_busy_slot(WANT_VACATE=False)
    assert kinds(slot.feed(BETTER)) == [ev.StopJob]
    assert slot.state_and_activity == VACATING


def test_preempt_at_end_of_ordered_retirement_applies() -> None:
    slot = a_busy_slot(WANT_VACATE=False, WANT_SUSPEND=True, PREEMPT=True, WANT_HOLD=True)
    assert slot.feed(BETTER) == (ev.KillJob("a better job waits", JobHold("the policy of its slot wants it held")),)


def test_kill_expression_ends_vacating() -> None:
    slot = a_busy_slot()
    slot.poll(PREEMPT=True)
    assert slot.pass_time(60) == []
    slot.answer(KILL=True)
    assert slot.pass_time(5) == [ev.KillJob("PREEMPT of its slot is true")]
    assert slot.state_and_activity == KILLING


def test_job_is_killed_after_vacate_time() -> None:
    slot = a_busy_slot(MachineMaxVacateTime=90, polls=False)
    slot.poll(PREEMPT=True)
    assert slot.pass_time(89) == []
    assert slot.pass_time(1) == [ev.KillJob("PREEMPT of its slot is true")]
    assert slot.machine.alarm_boot_s(slot.evaluator) == float("inf")


def test_zero_vacate_time_kills_job() -> None:
    slot = a_busy_slot(MachineMaxVacateTime=0)
    assert kinds(slot.poll(PREEMPT=True)) == [ev.KillJob]


def test_want_hold_holds_preempted_job_with_reason_and_subcode() -> None:
    slot = a_busy_slot(WANT_HOLD=True, WANT_HOLD_REASON="too much memory", WANT_HOLD_SUBCODE=102)
    hold = JobHold("too much memory", 102)
    assert slot.poll(PREEMPT=True) == (ev.StopJob(600, "PREEMPT of its slot is true", hold),)
    assert slot.pass_time(600) == [ev.KillJob("PREEMPT of its slot is true", hold)]


@pytest.mark.parametrize("subcode", [None, "many", float("inf"), float("nan"), 2**31, -(2**31)])
def test_invalid_hold_subcode_is_zero(subcode: object) -> None:
    slot = a_busy_slot(WANT_HOLD=True, WANT_HOLD_REASON=7, WANT_HOLD_SUBCODE=subcode)
    (stop,) = slot.poll(PREEMPT=True)
    assert isinstance(stop, ev.StopJob)
    assert stop.hold == JobHold("the policy of its slot wants it held", 0)


@pytest.mark.parametrize("value", [False, None, "True"])
def test_want_hold_must_be_exactly_true(value: object) -> None:
    slot = a_busy_slot(WANT_HOLD=value)
    assert slot.poll(PREEMPT=True) == (ev.StopJob(600, "PREEMPT of its slot is true"),)


def test_want_hold_does_not_apply_to_preemption_order() -> None:
    slot = a_busy_slot(WANT_HOLD=True)
    assert slot.feed(BETTER) == (ev.StopJob(600, "a better job waits"),)


def test_first_preemption_reason_is_kept() -> None:
    slot = a_busy_slot(MaxJobRetirementTime=1000)
    slot.poll(PREEMPT=True)
    slot.feed(BETTER)
    slot.answer(MaxJobRetirementTime=0)
    assert slot.poll() == (ev.StopJob(600, "PREEMPT of its slot is true"),)


def test_vacated_slot_accepts_new_claim() -> None:
    slot = a_busy_slot()
    slot.feed(BETTER)
    slot.end()
    slot.start()
    assert slot.state_and_activity == BUSY
    assert slot.poll() == ()
    slot.end()
    assert slot.state_and_activity == IDLE
