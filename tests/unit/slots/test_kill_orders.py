"""Kill orders, and orders that arrive after the job has ended."""

from __future__ import annotations

import pytest

from pilotage_pilot.core.slots import events as ev
from support.slot_bench import IDLE, KILLING, UNCLAIMED, SlotBench, a_busy_slot, kinds


def test_kill_order_stops_job_within_its_grace_time() -> None:
    slot = a_busy_slot()
    assert slot.feed(ev.KillOrdered("its wall time is over", grace_s=10)) == (ev.StopJob(10, "its wall time is over"),)
    assert slot.pass_time(9) == []
    assert slot.pass_time(1) == [ev.KillJob("its wall time is over")]
    assert slot.state_and_activity == KILLING


def test_later_kill_order_can_only_shorten_grace_time() -> None:
    slot = a_busy_slot()
    slot.feed(ev.KillOrdered("limit"))
    assert slot.feed(ev.KillOrdered("limit")) == ()
    assert slot.machine.alarm_boot_s(slot.evaluator) == slot.boot_s + 5
    assert slot.feed(ev.KillOrdered("limit", grace_s=3)) == ()
    assert slot.machine.alarm_boot_s(slot.evaluator) == slot.boot_s + 3
    assert slot.feed(ev.KillOrdered("lease", hard=True)) == (ev.KillJob("limit"),)
    assert slot.feed(ev.KillOrdered("lease", hard=True)) == ()
    other = a_busy_slot()
    assert other.feed(ev.KillOrdered("lease", hard=True)) == (ev.KillJob("lease"),)


@pytest.mark.parametrize(
    "order",
    [
        ev.PreemptionOrdered("better job"),
        ev.PreemptionWithdrawn(),
        ev.ReleaseOrdered("go"),
        ev.KillOrdered("go", hard=True),
        ev.SuspendOrdered(),
        ev.ContinueOrdered(),
    ],
)
def test_order_without_job_does_nothing(order: ev.SlotEvent) -> None:
    slot = SlotBench()
    assert slot.feed(order) == ()
    assert slot.state_and_activity == UNCLAIMED


def test_kill_of_ended_job_keeps_claim() -> None:
    slot = a_busy_slot()
    slot.end()
    assert slot.feed(ev.KillOrdered("lease", hard=True)) == ()
    assert slot.state_and_activity == IDLE


def test_job_start_during_kill_changes_nothing() -> None:
    slot = SlotBench(MaxJobRetirementTime=100)
    slot.claim()
    slot.feed(ev.KillOrdered("removed", hard=True))
    assert slot.feed(ev.JobStarted()) == ()
    assert slot.state_and_activity == KILLING
    assert kinds(slot.end()) == [ev.EndClaim]
    assert slot.state_and_activity == UNCLAIMED
