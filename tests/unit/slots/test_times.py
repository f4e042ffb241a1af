"""Polling times of a slot, and the times that it keeps for states, jobs and claims."""

from __future__ import annotations

import pytest

from pilotage_pilot.core.slots import events as ev
from pilotage_pilot.core.slots.conditions import worklife_end_boot_s
from pilotage_pilot.core.slots.evaluator import NEVER
from pilotage_pilot.core.slots.machine import SlotMachine
from pilotage_pilot.core.slots.states import Claim, DrainHow, Stopwatch
from support.slot_bench import ANN, BOOT_S, BUSY, FakePolicyEvaluator, SlotBench, a_busy_slot, at


def alarm_in_s(slot: SlotBench) -> float:
    return slot.machine.alarm_boot_s(slot.evaluator) - slot.boot_s


def test_new_slot_is_polled_immediately() -> None:
    assert SlotMachine(at(BOOT_S)).alarm_boot_s(FakePolicyEvaluator(polls=False)) == BOOT_S


def test_unclaimed_slot_is_polled_every_update_interval() -> None:
    slot = SlotBench(UPDATE_INTERVAL=60)
    assert alarm_in_s(slot) == 60
    slot.boot_s += 20
    assert alarm_in_s(slot) == 40
    slot.poll()
    assert alarm_in_s(slot) == 60


def test_claimed_slot_is_polled_every_polling_interval() -> None:
    slot = SlotBench(POLLING_INTERVAL=7)
    slot.boot_s += 100
    slot.claim()
    assert alarm_in_s(slot) == 7


def test_job_start_restarts_polling_interval() -> None:
    slot = SlotBench(POLLING_INTERVAL=5)
    slot.claim()
    slot.boot_s += 4
    slot.answer(WANT_SUSPEND=True, SUSPEND=True)
    assert slot.feed(ev.JobStarted()) == ()
    assert slot.state_and_activity == BUSY
    assert alarm_in_s(slot) == 5


@pytest.mark.parametrize(
    ("setting", "interval_s"), [(0, 1), (-5, 1), (10**9, 86400), (None, 5), ("x", 5), (float("nan"), 5)]
)
def test_polling_interval_has_bounds_and_default(setting: object, interval_s: float) -> None:
    slot = a_busy_slot(POLLING_INTERVAL=setting)
    assert alarm_in_s(slot) == interval_s


def test_constant_policy_is_never_polled() -> None:
    slot = SlotBench(polls=False)
    assert slot.machine.alarm_boot_s(slot.evaluator) == NEVER
    slot.start()
    assert slot.machine.alarm_boot_s(slot.evaluator) == NEVER


def test_constant_policy_still_has_timers() -> None:
    slot = a_busy_slot(polls=False, CLAIM_WORKLIFE=100, MaxJobRetirementTime=500, MachineMaxVacateTime=50)
    slot.end()
    assert alarm_in_s(slot) == 101
    slot.start()
    slot.drain(DrainHow.GRACEFUL)
    assert alarm_in_s(slot) == 450


def test_slots_without_possible_transition_are_not_polled() -> None:
    slot = SlotBench()
    slot.drain()
    assert slot.machine.alarm_boot_s(slot.evaluator) == NEVER
    busy = a_busy_slot()
    busy.feed(ev.KillOrdered("lease", hard=True))
    assert busy.machine.alarm_boot_s(busy.evaluator) == NEVER
    dynamic = SlotBench(dynamic=True)
    dynamic.poll()
    assert dynamic.machine.alarm_boot_s(dynamic.evaluator) == NEVER


def test_entered_times_follow_state_and_activity() -> None:
    slot = SlotBench()
    slot.boot_s += 10
    slot.claim()
    slot.boot_s += 10
    slot.feed(ev.JobStarted())
    assert slot.machine.entered_state == at(BOOT_S + 10)
    assert slot.machine.entered_activity == at(BOOT_S + 20)
    slot.poll()
    assert slot.machine.entered_activity == at(BOOT_S + 20)


def test_run_times_exclude_suspension() -> None:
    slot = a_busy_slot()
    slot.boot_s += 20
    slot.end()
    slot.start()
    slot.boot_s += 3
    slot.feed(ev.SuspendOrdered())
    slot.boot_s += 100
    slot.feed(ev.ContinueOrdered())
    slot.boot_s += 4
    job, claim = slot.machine.job, slot.machine.claim
    assert job is not None
    assert claim is not None
    assert (job.run.seconds(slot.now), job.suspended.seconds(slot.now)) == (7, 100)
    assert (claim.run.seconds(slot.now), claim.suspended.seconds(slot.now)) == (27, 100)


def test_stopwatch_predicts_when_it_reaches_value() -> None:
    watch = Stopwatch().running(True, at(100))
    assert watch.reaches_boot_s(30) == 130
    stopped = watch.running(False, at(110))
    assert (stopped.seconds(at(500)), stopped.reaches_boot_s(10), stopped.reaches_boot_s(11)) == (10, -NEVER, NEVER)
    assert stopped.running(True, at(500)).reaches_boot_s(30) == 520


def test_unused_claim_has_no_end_of_worklife() -> None:
    assert worklife_end_boot_s(Claim(ANN, at(BOOT_S)), FakePolicyEvaluator(CLAIM_WORKLIFE=0)) == NEVER
