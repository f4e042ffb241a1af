"""Draining slots: peaceful, graceful, quick and fast drains, and the time that jobs may stay."""

from __future__ import annotations

from typing import Any

import pytest

from pilotage_pilot.core.node.node_slots import is_drained, originals_stay_until_boot_s
from pilotage_pilot.core.slots import events as ev
from pilotage_pilot.core.slots.machine import IllegalSlotEventError
from pilotage_pilot.core.slots.states import DrainHow
from support.slot_bench import (
    BUSY,
    DRAINED,
    DRAINING,
    IDLE,
    KILLING,
    RETIRING,
    SUSPENDED,
    VACATING,
    SlotBench,
    a_busy_slot,
    kinds,
)


def test_draining_slots_become_drained_after_last_job() -> None:
    idle, busy = SlotBench(), a_busy_slot(MaxJobRetirementTime=3600)
    slots = [idle.machine, busy.machine]
    for slot in (idle, busy):
        assert slot.drain() == ()
    assert (idle.state_and_activity, busy.state_and_activity) == (DRAINING, RETIRING)
    assert not is_drained(slots)
    busy.end()
    assert busy.state_and_activity == DRAINING
    assert is_drained(slots)
    for slot in (idle, busy):
        slot.feed(ev.NodeDrained())
        assert slot.state_and_activity == DRAINED


def test_quick_drain_vacates_jobs() -> None:
    slot = a_busy_slot(MaxJobRetirementTime=3600, MachineMaxVacateTime=5)
    assert slot.drain(DrainHow.QUICK) == (ev.StopJob(5, "the node drains"),)
    assert slot.pass_time(5) == [ev.KillJob("the node drains")]
    slot.end()
    assert slot.state_and_activity == DRAINING


def test_fast_drain_kills_jobs() -> None:
    slot = a_busy_slot(MaxJobRetirementTime=3600)
    assert slot.drain(DrainHow.FAST) == (ev.KillJob("the node drains"),)
    assert slot.state_and_activity == KILLING


def test_faster_drain_overrides_slower_one() -> None:
    slot = a_busy_slot(MaxJobRetirementTime=3600)
    slot.drain()
    assert kinds(slot.drain(DrainHow.QUICK)) == [ev.StopJob]
    assert kinds(slot.drain(DrainHow.FAST)) == [ev.KillJob]
    assert slot.drain(DrainHow.FAST) == ()


def test_graceful_drain_without_retirement_vacates_immediately() -> None:
    slot = a_busy_slot(MaxJobRetirementTime=0)
    assert kinds(slot.drain()) == [ev.StopJob]
    assert slot.state_and_activity == VACATING


def test_peaceful_drain_lets_jobs_finish() -> None:
    slot = a_busy_slot(MaxJobRetirementTime=0, job={"MaxJobRetirementTime": 10})
    assert slot.drain(DrainHow.PEACEFUL) == ()
    assert slot.pass_time(50_000) == []
    slot.end()
    assert slot.state_and_activity == DRAINING


def test_preempt_during_peaceful_drain_applies_retirement_time() -> None:
    slot = a_busy_slot(MaxJobRetirementTime=1000, MachineMaxVacateTime=100)
    slot.drain(DrainHow.PEACEFUL)
    assert slot.poll(PREEMPT=True) == ()
    assert slot.pass_time(899) == []
    assert kinds(slot.pass_time(1)) == [ev.StopJob]


def test_negative_retirement_vacates_even_in_peaceful_drain() -> None:
    slot = a_busy_slot(MaxJobRetirementTime=-1)
    assert kinds(slot.drain(DrainHow.PEACEFUL)) == [ev.StopJob]


def test_idle_claim_ends_when_node_drains() -> None:
    slot = a_busy_slot()
    slot.end()
    (ended,) = slot.drain()
    assert isinstance(ended, ev.EndClaim)
    assert ended.reason == "the node drains"
    assert slot.state_and_activity == DRAINING


def test_job_in_preparation_starts_on_draining_node() -> None:
    slot = SlotBench(MaxJobRetirementTime=100, MachineMaxVacateTime=10)
    slot.claim()
    assert slot.drain() == ()
    assert slot.state_and_activity == IDLE
    slot.feed(ev.JobStarted())
    assert slot.state_and_activity == RETIRING
    assert slot.pass_time(89) == []
    assert kinds(slot.pass_time(1)) == [ev.StopJob]


def test_quick_drain_stops_job_in_preparation() -> None:
    slot = SlotBench()
    slot.claim()
    assert kinds(slot.drain(DrainHow.QUICK)) == [ev.StopJob]


def test_suspended_job_stays_suspended_in_graceful_drain() -> None:
    slot = a_busy_slot(MaxJobRetirementTime=1000, CONTINUE=False)
    slot.poll(WANT_SUSPEND=True, SUSPEND=True)
    slot.answer(SUSPEND=False)
    assert slot.drain() == ()
    assert slot.state_and_activity == SUSPENDED
    assert slot.poll(CONTINUE=True) == (ev.ContinueJob(),)
    assert slot.state_and_activity == RETIRING


def test_drained_slot_rejects_claims() -> None:
    slot = SlotBench()
    slot.drain()
    with pytest.raises(IllegalSlotEventError):
        slot.claim()
    slot.feed(ev.NodeDrained())
    with pytest.raises(IllegalSlotEventError):
        slot.claim()
    assert slot.pass_time(50_000) == []
    assert slot.state_and_activity == DRAINED


def test_dynamic_slot_is_deleted_when_drained() -> None:
    slot = SlotBench(dynamic=True)
    slot.start()
    slot.drain(DrainHow.PEACEFUL)
    assert kinds(slot.end()) == [ev.EndClaim, ev.DeleteSlot]


def test_busy_slot_cannot_become_drained() -> None:
    slot = a_busy_slot(MaxJobRetirementTime=1000)
    slot.drain()
    with pytest.raises(IllegalSlotEventError):
        slot.feed(ev.NodeDrained())


# Drain time -----------------------------------------------------------------------------------------------------------


def count_drain_time(*slots: SlotBench) -> None:
    """Compute how long the jobs may stay and pass it to all slots, as the node does."""
    until = originals_stay_until_boot_s([(slot.machine, slot.evaluator) for slot in slots], slots[0].now)
    for slot in slots:
        slot.feed(ev.DrainTimeCounted(until))


def a_draining_pair(**answers_of_short: Any) -> tuple[SlotBench, SlotBench]:
    """Return two slots of a draining node; one job has 400 s left, the other 4000 s."""
    short = a_busy_slot(**{"MaxJobRetirementTime": 500, "MachineMaxVacateTime": 50, **answers_of_short})
    long = a_busy_slot(MaxJobRetirementTime=4100, MachineMaxVacateTime=50)
    for slot in (short, long):
        slot.pass_time(100)
        slot.drain()
    count_drain_time(short, long)
    return short, long


def test_job_keeps_full_retirement_while_others_stay_longer() -> None:
    short, _ = a_draining_pair(START=True)
    assert short.pass_time(399) == []
    assert kinds(short.pass_time(1)) == [ev.StopJob]


@pytest.mark.parametrize("start", [False, None, "True"])
def test_job_that_start_no_longer_accepts_vacates_within_own_retirement(start: object) -> None:
    short, _ = a_draining_pair(START=start)
    assert short.pass_time(349) == []
    assert kinds(short.pass_time(1)) == [ev.StopJob]


def test_drain_time_does_not_affect_slot_that_does_not_drain() -> None:
    slot = a_busy_slot(MaxJobRetirementTime=0)
    assert slot.feed(ev.DrainTimeCounted(0.0)) == ()
    assert slot.state_and_activity == BUSY


def test_suspension_extends_drain_time() -> None:
    slot = a_busy_slot(MaxJobRetirementTime=1000, CONTINUE=False)
    slot.pass_time(100)
    slot.drain()
    slot.poll(WANT_SUSPEND=True, SUSPEND=True)
    slot.pass_time(5000)
    assert originals_stay_until_boot_s([(slot.machine, slot.evaluator)], slot.now) == slot.boot_s + 900


def test_drain_time_without_jobs_is_now() -> None:
    slot = SlotBench()
    slot.drain()
    assert originals_stay_until_boot_s([(slot.machine, slot.evaluator)], slot.now) == slot.boot_s


def test_job_with_used_up_retirement_adds_no_drain_time() -> None:
    slot = a_busy_slot(MaxJobRetirementTime=100)
    slot.pass_time(5000)
    assert originals_stay_until_boot_s([(slot.machine, slot.evaluator)], slot.now) == slot.boot_s
