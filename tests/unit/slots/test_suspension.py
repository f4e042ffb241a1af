"""Suspension of jobs, and the order of SUSPEND, CONTINUE and PREEMPT in a claimed slot."""

from __future__ import annotations

import pytest

from pilotage_pilot.core.slots import events as ev
from support.slot_bench import BUSY, IDLE, RETIRING, SUSPENDED, UNCLAIMED, VACATING, SlotBench, a_busy_slot, kinds


def a_suspended_slot(**answers: object) -> SlotBench:
    slot = a_busy_slot(**{"CONTINUE": False, "MaxJobRetirementTime": 1000, **answers})
    assert slot.poll(WANT_SUSPEND=True, SUSPEND=True) == (ev.SuspendJob(),)
    slot.answer(SUSPEND=False)
    return slot


def test_running_job_is_suspended_at_next_poll() -> None:
    slot = a_busy_slot()
    slot.answer(WANT_SUSPEND=True, SUSPEND=True)
    assert slot.pass_time(4.5) == []
    assert slot.pass_time(0.5) == [ev.SuspendJob()]
    assert slot.state_and_activity == SUSPENDED


@pytest.mark.parametrize("value", [False, None, "true"])
def test_suspend_needs_want_suspend(value: object) -> None:
    slot = a_busy_slot()
    assert slot.poll(WANT_SUSPEND=value, SUSPEND=True) == ()
    assert slot.state_and_activity == BUSY


@pytest.mark.parametrize("value", [False, None, "true", 1])
def test_suspend_must_be_exactly_true(value: object) -> None:
    slot = a_busy_slot()
    assert slot.poll(WANT_SUSPEND=True, SUSPEND=value) == ()


def test_suspended_job_continues_when_continue_is_true() -> None:
    slot = a_suspended_slot()
    assert slot.poll() == ()
    assert slot.poll(CONTINUE=None) == ()
    assert slot.poll(CONTINUE=True) == (ev.ContinueJob(),)
    assert slot.state_and_activity == BUSY


def test_continued_job_is_suspended_again_at_next_poll() -> None:
    slot = a_suspended_slot(CONTINUE=True)
    slot.answer(SUSPEND=True)
    assert slot.pass_time(5) == [ev.ContinueJob()]
    assert slot.pass_time(5) == [ev.SuspendJob()]


def test_want_suspend_disables_preempt_of_running_job() -> None:
    slot = a_busy_slot()
    assert slot.poll(WANT_SUSPEND=True, PREEMPT=True) == ()
    assert slot.state_and_activity == BUSY


def test_preempt_applies_to_suspended_job() -> None:
    slot = a_suspended_slot(MaxJobRetirementTime=0)
    assert kinds(slot.poll(PREEMPT=True)) == [ev.StopJob]
    assert slot.state_and_activity == VACATING


def test_preempt_continues_suspended_job_for_its_retirement() -> None:
    slot = a_suspended_slot()
    assert slot.poll(PREEMPT=True, WANT_SUSPEND=False) == (ev.ContinueJob(),)
    assert slot.state_and_activity == RETIRING


def test_preempted_job_stays_suspended_while_suspend_is_true() -> None:
    slot = a_suspended_slot()
    assert slot.poll(PREEMPT=True, SUSPEND=True) == ()
    assert slot.state_and_activity == SUSPENDED
    assert slot.poll(SUSPEND=False, CONTINUE=True) == (ev.ContinueJob(),)
    assert slot.state_and_activity == RETIRING


def test_preempt_precedes_suspend() -> None:
    suspending = {"WANT_SUSPEND": False, "SUSPEND": True, "PREEMPT": True}
    slot = a_busy_slot(MaxJobRetirementTime=1000)
    assert slot.poll(**suspending) == ()
    assert slot.state_and_activity == RETIRING


def test_retiring_job_can_be_suspended() -> None:
    slot = a_busy_slot(MaxJobRetirementTime=1000)
    slot.poll(PREEMPT=True)
    assert slot.poll(WANT_SUSPEND=True, SUSPEND=True) == (ev.SuspendJob(),)
    assert slot.state_and_activity == SUSPENDED


def test_job_preempted_while_suspended_continues_into_retirement() -> None:
    slot = a_suspended_slot()
    slot.feed(ev.PreemptionOrdered("better job"))
    assert slot.state_and_activity == SUSPENDED
    assert slot.poll(CONTINUE=True) == (ev.ContinueJob(),)
    assert slot.state_and_activity == RETIRING


def test_suspension_pauses_retirement() -> None:
    slot = a_busy_slot(MaxJobRetirementTime=1000, MachineMaxVacateTime=100, CONTINUE=False)
    slot.pass_time(100)
    slot.feed(ev.PreemptionOrdered("better job"))
    slot.poll(WANT_SUSPEND=True, SUSPEND=True)
    assert slot.pass_time(5000) == []
    assert slot.poll(SUSPEND=False, CONTINUE=True) == (ev.ContinueJob(),)
    assert slot.pass_time(799) == []
    assert kinds(slot.pass_time(1)) == [ev.StopJob]


def test_job_suspended_by_command_needs_continue_command() -> None:
    slot = a_busy_slot(CONTINUE=True)
    assert slot.feed(ev.SuspendOrdered()) == (ev.SuspendJob(),)
    assert slot.pass_time(3600) == []
    assert slot.feed(ev.ContinueOrdered()) == (ev.ContinueJob(),)
    assert slot.state_and_activity == BUSY


def test_suspend_command_overrides_suspension_by_policy() -> None:
    slot = a_suspended_slot()
    assert slot.feed(ev.SuspendOrdered()) == ()
    assert slot.poll(CONTINUE=True) == ()
    assert slot.state_and_activity == SUSPENDED
    assert slot.feed(ev.ContinueOrdered()) == (ev.ContinueJob(),)


def test_continue_command_during_retirement_resumes_retiring() -> None:
    slot = a_busy_slot(MaxJobRetirementTime=1000)
    slot.feed(ev.SuspendOrdered())
    slot.feed(ev.PreemptionOrdered("better job"))
    assert slot.state_and_activity == SUSPENDED
    assert slot.feed(ev.ContinueOrdered()) == (ev.ContinueJob(),)
    assert slot.state_and_activity == RETIRING


def test_continue_command_for_running_job_does_nothing() -> None:
    slot = a_busy_slot()
    assert slot.feed(ev.ContinueOrdered()) == ()
    assert slot.state_and_activity == BUSY


def test_end_of_suspended_job_clears_suspension() -> None:
    slot = a_busy_slot(CONTINUE=True)
    slot.feed(ev.SuspendOrdered())
    assert slot.end() == ()
    assert slot.state_and_activity == IDLE
    slot.start()
    slot.poll(WANT_SUSPEND=True, SUSPEND=True)
    assert slot.poll(SUSPEND=False) == (ev.ContinueJob(),)


def test_suspended_job_without_retirement_is_stopped() -> None:
    slot = a_suspended_slot(MaxJobRetirementTime=0)
    assert kinds(slot.feed(ev.PreemptionOrdered("better job"))) == [ev.StopJob]
    assert kinds(slot.end()) == [ev.EndClaim]
    assert slot.state_and_activity == UNCLAIMED


def test_used_up_retirement_stops_suspended_job() -> None:
    slot = a_suspended_slot(MaxJobRetirementTime=700)
    slot.answer(MaxJobRetirementTime=600)
    assert kinds(slot.feed(ev.PreemptionOrdered("better job"))) == [ev.StopJob]
