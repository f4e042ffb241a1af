"""A node that drains: what its slots do with their jobs, and when it is done."""

from __future__ import annotations

import pytest

from pilotage_pilot.core.node.node_slots import is_drained
from pilotage_pilot.core.slots import events as ev
from pilotage_pilot.core.slots.machine import IllegalSlotEventError
from pilotage_pilot.core.slots.states import DrainHow
from support.slot_bench import (
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


def test_drain_slot_states() -> None:
    idle, busy = SlotBench(), a_busy_slot(MaxJobRetirementTime=3600)
    slots = [idle.machine, busy.machine]
    for slot in (idle, busy):
        assert slot.drain() == ()
    assert (idle.shows, busy.shows) == (DRAINING, RETIRING)
    assert not is_drained(slots)
    busy.end()
    assert busy.shows == DRAINING
    assert is_drained(slots)
    for slot in (idle, busy):
        slot.feed(ev.NodeDrained())
        assert slot.shows == DRAINED


def test_drain_quick_evicts() -> None:
    slot = a_busy_slot(MaxJobRetirementTime=3600, MachineMaxVacateTime=5)
    assert slot.drain(DrainHow.QUICK) == (ev.StopJob(5, "the node drains"),)
    assert slot.pass_time(5) == [ev.KillJob("the node drains")]
    slot.end()
    assert slot.shows == DRAINING


def test_a_fast_drain_kills_at_once() -> None:
    slot = a_busy_slot(MaxJobRetirementTime=3600)
    assert slot.drain(DrainHow.FAST) == (ev.KillJob("the node drains"),)
    assert slot.shows == KILLING


def test_a_faster_drain_hurries_the_jobs_of_a_slower_one() -> None:
    slot = a_busy_slot(MaxJobRetirementTime=3600)
    slot.drain()
    assert kinds(slot.drain(DrainHow.QUICK)) == [ev.StopJob]
    assert kinds(slot.drain(DrainHow.FAST)) == [ev.KillJob]
    assert slot.drain(DrainHow.FAST) == ()


def test_a_graceful_drain_without_retirement_vacates_at_once() -> None:
    slot = a_busy_slot(MaxJobRetirementTime=0)
    assert kinds(slot.drain()) == [ev.StopJob]
    assert slot.shows == VACATING


def test_a_peaceful_drain_lets_jobs_run_to_their_end() -> None:
    slot = a_busy_slot(MaxJobRetirementTime=0, job={"MaxJobRetirementTime": 10})
    assert slot.drain(DrainHow.PEACEFUL) == ()
    assert slot.pass_time(10**6) == []
    slot.end()
    assert slot.shows == DRAINING


def test_a_job_that_has_to_go_for_another_reason_has_its_own_retirement_even_in_peace() -> None:
    slot = a_busy_slot(MaxJobRetirementTime=1000, MachineMaxVacateTime=100)
    slot.drain(DrainHow.PEACEFUL)
    assert slot.poll(PREEMPT=True) == ()
    assert slot.pass_time(899) == []
    assert kinds(slot.pass_time(1)) == [ev.StopJob]


def test_a_negative_retirement_preempts_even_in_peace() -> None:
    slot = a_busy_slot(MaxJobRetirementTime=-1)
    assert kinds(slot.drain(DrainHow.PEACEFUL)) == [ev.StopJob]


def test_an_idle_claim_ends_when_the_node_drains() -> None:
    slot = a_busy_slot()
    slot.end()
    (ended,) = slot.drain()
    assert isinstance(ended, ev.EndClaim)
    assert ended.reason == "the node drains"
    assert slot.shows == DRAINING


def test_a_job_that_is_made_ready_is_still_started_on_a_draining_node() -> None:
    slot = SlotBench(MaxJobRetirementTime=100, MachineMaxVacateTime=10)
    slot.claim()
    assert slot.drain() == ()
    assert slot.shows == IDLE
    slot.feed(ev.JobStarted())
    assert slot.shows == RETIRING
    assert slot.pass_time(89) == []
    assert kinds(slot.pass_time(1)) == [ev.StopJob]


def test_a_quick_drain_does_not_wait_for_a_job_that_is_made_ready() -> None:
    slot = SlotBench()
    slot.claim()
    assert kinds(slot.drain(DrainHow.QUICK)) == [ev.StopJob]


def test_a_suspended_job_stays_suspended_while_the_node_drains_gracefully() -> None:
    slot = a_busy_slot(MaxJobRetirementTime=1000, CONTINUE=False)
    slot.poll(WANT_SUSPEND=True, SUSPEND=True)
    slot.answer(SUSPEND=False)
    assert slot.drain() == ()
    assert slot.shows == SUSPENDED
    assert slot.poll(CONTINUE=True) == (ev.ContinueJob(),)
    assert slot.shows == RETIRING


def test_a_drained_slot_takes_no_claim() -> None:
    slot = SlotBench()
    slot.drain()
    with pytest.raises(IllegalSlotEventError):
        slot.claim()
    slot.feed(ev.NodeDrained())
    with pytest.raises(IllegalSlotEventError):
        slot.claim()
    assert slot.pass_time(10**6) == []
    assert slot.shows == DRAINED


def test_a_dynamic_slot_is_deleted_when_it_has_drained() -> None:
    slot = SlotBench(dynamic=True)
    slot.start()
    slot.drain(DrainHow.PEACEFUL)
    assert kinds(slot.end()) == [ev.EndClaim, ev.DeleteSlot]


def test_a_node_cannot_be_drained_while_a_slot_is_busy() -> None:
    slot = a_busy_slot(MaxJobRetirementTime=1000)
    slot.drain()
    with pytest.raises(IllegalSlotEventError):
        slot.feed(ev.NodeDrained())
