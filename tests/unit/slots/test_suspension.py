"""When a job is suspended, when it goes on, and when PREEMPT is looked at: the order of the tests of a claimed slot."""

from __future__ import annotations

import pytest

from pilotage_pilot.core.slots import events as ev
from support.slot_bench import BUSY, IDLE, RETIRING, SUSPENDED, UNCLAIMED, VACATING, SlotBench, a_busy_slot, kinds


def a_suspended_slot(**answers: object) -> SlotBench:
    slot = a_busy_slot(**{"CONTINUE": False, "MaxJobRetirementTime": 1000, **answers})
    assert slot.poll(WANT_SUSPEND=True, SUSPEND=True) == (ev.SuspendJob(),)
    slot.answer(SUSPEND=False)
    return slot


def test_a_running_job_is_suspended_within_one_poll() -> None:
    slot = a_busy_slot()
    slot.answer(WANT_SUSPEND=True, SUSPEND=True)
    assert slot.pass_time(4.5) == []
    assert slot.pass_time(0.5) == [ev.SuspendJob()]
    assert slot.shows == SUSPENDED


@pytest.mark.parametrize("wants", [False, None, "true"])
def test_suspend_counts_only_while_want_suspend_is_true(wants: object) -> None:
    slot = a_busy_slot()
    assert slot.poll(WANT_SUSPEND=wants, SUSPEND=True) == ()
    assert slot.shows == BUSY


@pytest.mark.parametrize("suspends", [False, None, "true", 1])
def test_a_suspend_that_is_not_exactly_true_suspends_nothing(suspends: object) -> None:
    slot = a_busy_slot()
    assert slot.poll(WANT_SUSPEND=True, SUSPEND=suspends) == ()


def test_a_suspended_job_goes_on_when_continue_is_true() -> None:
    slot = a_suspended_slot()
    assert slot.poll() == ()
    assert slot.poll(CONTINUE=None) == ()
    assert slot.poll(CONTINUE=True) == (ev.ContinueJob(),)
    assert slot.shows == BUSY


def test_a_job_that_goes_on_may_be_suspended_again_at_the_next_poll_only() -> None:
    slot = a_suspended_slot(CONTINUE=True)
    slot.answer(SUSPEND=True)
    assert slot.pass_time(5) == [ev.ContinueJob()]
    assert slot.pass_time(5) == [ev.SuspendJob()]


def test_want_suspend_shields_a_running_job_from_preempt() -> None:
    slot = a_busy_slot()
    assert slot.poll(WANT_SUSPEND=True, PREEMPT=True) == ()
    assert slot.shows == BUSY


def test_preempt_is_looked_at_again_once_the_job_is_suspended() -> None:
    slot = a_suspended_slot(MaxJobRetirementTime=0)
    assert kinds(slot.poll(PREEMPT=True)) == [ev.StopJob]
    assert slot.shows == VACATING


def test_preempt_of_a_suspended_job_with_retirement_lets_it_run_on() -> None:
    slot = a_suspended_slot()
    assert slot.poll(PREEMPT=True, WANT_SUSPEND=False) == (ev.ContinueJob(),)
    assert slot.shows == RETIRING


def test_preempt_of_a_suspended_job_with_retirement_leaves_it_suspended_while_suspend_is_true() -> None:
    slot = a_suspended_slot()
    assert slot.poll(PREEMPT=True, SUSPEND=True) == ()
    assert slot.shows == SUSPENDED
    assert slot.poll(SUSPEND=False, CONTINUE=True) == (ev.ContinueJob(),)
    assert slot.shows == RETIRING


def test_preempt_goes_before_suspend() -> None:
    suspending = {"WANT_SUSPEND": False, "SUSPEND": True, "PREEMPT": True}
    slot = a_busy_slot(MaxJobRetirementTime=1000)
    assert slot.poll(**suspending) == ()
    assert slot.shows == RETIRING


def test_a_retiring_job_can_be_suspended() -> None:
    slot = a_busy_slot(MaxJobRetirementTime=1000)
    slot.poll(PREEMPT=True)
    assert slot.poll(WANT_SUSPEND=True, SUSPEND=True) == (ev.SuspendJob(),)
    assert slot.shows == SUSPENDED


def test_suspend_continue_during_retirement() -> None:
    slot = a_suspended_slot()
    slot.feed(ev.PreemptionOrdered("better job"))
    assert slot.shows == SUSPENDED
    assert slot.poll(CONTINUE=True) == (ev.ContinueJob(),)
    assert slot.shows == RETIRING


def test_retirement_stands_still_while_the_job_is_suspended() -> None:
    slot = a_busy_slot(MaxJobRetirementTime=1000, MachineMaxVacateTime=100, CONTINUE=False)
    slot.pass_time(100)
    slot.feed(ev.PreemptionOrdered("better job"))
    slot.poll(WANT_SUSPEND=True, SUSPEND=True)
    assert slot.pass_time(5000) == []
    assert slot.poll(SUSPEND=False, CONTINUE=True) == (ev.ContinueJob(),)
    assert slot.pass_time(799) == []
    assert kinds(slot.pass_time(1)) == [ev.StopJob]


def test_a_job_suspended_by_command_does_not_go_on_by_itself() -> None:
    slot = a_busy_slot(CONTINUE=True)
    assert slot.feed(ev.SuspendOrdered()) == (ev.SuspendJob(),)
    assert slot.pass_time(3600) == []
    assert slot.feed(ev.ContinueOrdered()) == (ev.ContinueJob(),)
    assert slot.shows == BUSY


def test_a_command_may_take_over_a_suspension_of_the_policys() -> None:
    slot = a_suspended_slot()
    assert slot.feed(ev.SuspendOrdered()) == ()
    assert slot.poll(CONTINUE=True) == ()
    assert slot.shows == SUSPENDED
    assert slot.feed(ev.ContinueOrdered()) == (ev.ContinueJob(),)


def test_a_continue_command_during_retirement_lets_the_job_retire() -> None:
    slot = a_busy_slot(MaxJobRetirementTime=1000)
    slot.feed(ev.SuspendOrdered())
    slot.feed(ev.PreemptionOrdered("better job"))
    assert slot.shows == SUSPENDED
    assert slot.feed(ev.ContinueOrdered()) == (ev.ContinueJob(),)
    assert slot.shows == RETIRING


def test_a_command_to_continue_a_running_job_does_nothing() -> None:
    slot = a_busy_slot()
    assert slot.feed(ev.ContinueOrdered()) == ()
    assert slot.shows == BUSY


def test_a_suspended_job_that_ends_leaves_an_idle_claim_that_nobody_has_suspended() -> None:
    slot = a_busy_slot(CONTINUE=True)
    slot.feed(ev.SuspendOrdered())
    assert slot.end() == ()
    assert slot.shows == IDLE
    slot.start()
    slot.poll(WANT_SUSPEND=True, SUSPEND=True)
    assert slot.poll(SUSPEND=False) == (ev.ContinueJob(),)


def test_a_suspended_job_whose_retirement_is_over_is_stopped_and_not_continued() -> None:
    slot = a_suspended_slot(MaxJobRetirementTime=0)
    assert kinds(slot.feed(ev.PreemptionOrdered("better job"))) == [ev.StopJob]
    assert kinds(slot.end()) == [ev.EndClaim]
    assert slot.shows == UNCLAIMED


def test_a_retirement_used_up_before_the_suspension_ends_while_the_job_stands() -> None:
    slot = a_suspended_slot(MaxJobRetirementTime=700)
    slot.answer(MaxJobRetirementTime=600)
    assert kinds(slot.feed(ev.PreemptionOrdered("better job"))) == [ev.StopJob]
