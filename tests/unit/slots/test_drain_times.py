"""How long jobs may stay on a node that drains gracefully: their own time, and the others'."""

from __future__ import annotations

from typing import Any

import pytest

from pilotage_pilot.core.node.node_slots import originals_stay_until_boot_s
from pilotage_pilot.core.slots import events as ev
from support.slot_bench import BUSY, SlotBench, a_busy_slot, kinds


def tell_time(*slots: SlotBench) -> None:
    """Do as a node does: count how long the jobs may stay, and say so to all slots."""
    until = originals_stay_until_boot_s([(slot.machine, slot.judge) for slot in slots], slots[0].now)
    for slot in slots:
        slot.feed(ev.DrainTimeCounted(until))


def a_draining_pair(**of_the_short: Any) -> tuple[SlotBench, SlotBench]:
    """Return two slots of a node that drains: one job has 400 s left, the other 4000 s."""
    short = a_busy_slot(**{"MaxJobRetirementTime": 500, "MachineMaxVacateTime": 50, **of_the_short})
    long = a_busy_slot(MaxJobRetirementTime=4100, MachineMaxVacateTime=50)
    for slot in (short, long):
        slot.pass_time(100)
        slot.drain()
    tell_time(short, long)
    return short, long


def test_a_job_that_start_would_take_again_has_all_its_retirement_while_others_stay_longer() -> None:
    short, _ = a_draining_pair(START=True)
    assert short.pass_time(399) == []
    assert kinds(short.pass_time(1)) == [ev.StopJob]


@pytest.mark.parametrize("start", [False, None, "True"])
def test_a_job_that_start_would_not_take_again_has_its_own_retirement_only(start: object) -> None:
    short, _ = a_draining_pair(START=start)
    assert short.pass_time(349) == []
    assert kinds(short.pass_time(1)) == [ev.StopJob]


def test_drain_time_means_nothing_to_a_slot_that_does_not_drain() -> None:
    slot = a_busy_slot(MaxJobRetirementTime=0)
    assert slot.feed(ev.DrainTimeCounted(0.0)) == ()
    assert slot.shows == BUSY


def test_a_suspended_job_keeps_its_retirement() -> None:
    slot = a_busy_slot(MaxJobRetirementTime=1000, CONTINUE=False)
    slot.pass_time(100)
    slot.drain()
    slot.poll(WANT_SUSPEND=True, SUSPEND=True)
    slot.pass_time(5000)
    assert originals_stay_until_boot_s([(slot.machine, slot.judge)], slot.now) == slot.boot_s + 900


def test_without_jobs_there_is_no_time_left() -> None:
    slot = SlotBench()
    slot.drain()
    assert originals_stay_until_boot_s([(slot.machine, slot.judge)], slot.now) == slot.boot_s


def test_a_job_that_has_used_up_its_retirement_keeps_nobody() -> None:
    slot = a_busy_slot(MaxJobRetirementTime=100)
    slot.pass_time(5000)
    assert originals_stay_until_boot_s([(slot.machine, slot.judge)], slot.now) == slot.boot_s
