"""Drains of a whole node: how long its jobs may stay, and the reason that they get."""

from __future__ import annotations

from datetime import timedelta

import pytest

from pilotage.values.amounts import Amounts
from pilotage_pilot.core.instructions import PrepareJob
from pilotage_pilot.core.model import GrantedJob, Now
from pilotage_pilot.core.node.node_slots import JobOrder
from pilotage_pilot.core.slots.events import KillJob, StopJob
from pilotage_pilot.core.slots.states import DrainHow
from support.pilot_bench import BOOT_S, START, a_job, slots_with, with_ad

WHY = "its queue is closed"


class DrainingNode:
    """A node with two slots, with jobs where the test starts them."""

    def __init__(self, **knobs: str) -> None:
        self.now = Now(START, BOOT_S)
        self.slots = slots_with(num_slots="2", machinemaxvacatetime="20", **knobs)(Amounts(2, 2000, 1000), self.now)

    def run(self, slot: int) -> GrantedJob:
        job = with_ad(a_job(slot, slot=f"slot{slot}"))
        assert isinstance(self.slots.enter(job.slot, job, self.now), PrepareJob)
        assert self.slots.job_started(job.key, self.now) == []
        return job

    def drain(self, how: DrainHow) -> list[JobOrder]:
        return self.slots.drain(self.now, WHY, how)

    def pass_time(self, seconds: float) -> list[JobOrder]:
        """Advance the clock, poll slots when due, and return their orders."""
        end, orders = self.now.boot_s + seconds, list[JobOrder]()
        while (due := self.slots.next_poll_boot_s()) <= end:
            self._go_to(due)
            orders += self.slots.poll(self.now)
        self._go_to(end)
        return orders

    def _go_to(self, boot_s: float) -> None:
        boot_s = max(boot_s, self.now.boot_s)
        self.now = Now(START + timedelta(seconds=boot_s - BOOT_S), boot_s)

    def shows(self) -> list[str]:
        self.slots.validate()
        return [f"{slot.state}/{slot.activity}" for slot in self.slots.slots()]


@pytest.mark.parametrize("granted", ["0", "500"])
def test_peaceful_drain_ignores_short_retirement(granted: str) -> None:
    node = DrainingNode(maxjobretirementtime=granted)
    job = node.run(1)
    assert node.drain(DrainHow.PEACEFUL) == []
    assert node.shows() == ["Claimed/Retiring", "Drained/Retiring"]
    assert node.pass_time(100_000) == []
    node.slots.job_ended(job.key, node.now)
    assert node.shows() == ["Drained/Idle"] * 2


def test_negative_retirement_vacates_with_reason_of_drain() -> None:
    node = DrainingNode(maxjobretirementtime="-1")
    job = node.run(1)
    assert node.drain(DrainHow.PEACEFUL) == [JobOrder(job.key, StopJob(20, WHY))]


def test_graceful_drain_grants_retirement_of_policy() -> None:
    node = DrainingNode(maxjobretirementtime="500")
    job = node.run(1)
    assert node.drain(DrainHow.GRACEFUL) == []
    assert node.pass_time(479) == []
    assert node.pass_time(2) == [JobOrder(job.key, StopJob(20, WHY))]
    node.slots.job_ended(job.key, node.now)
    assert node.shows() == ["Drained/Idle"] * 2


def test_graceful_drain_grants_full_retirement_while_others_stay() -> None:
    node = DrainingNode(maxjobretirementtime="100 * SlotID")
    short, long = node.run(1), node.run(2)
    assert node.drain(DrainHow.GRACEFUL) == []
    assert node.pass_time(95) == [], "the vacate time may exceed the retirement while another job stays longer"
    node.slots.job_ended(long.key, node.now)
    assert node.pass_time(1) == [JobOrder(short.key, StopJob(20, WHY))], "no other job is left"


def test_quick_and_fast_drains_skip_retirement() -> None:
    quick, fast = DrainingNode(maxjobretirementtime="500"), DrainingNode(maxjobretirementtime="500")
    job = quick.run(1)
    fast.run(1)
    assert quick.drain(DrainHow.QUICK) == [JobOrder(job.key, StopJob(20, WHY))]
    assert fast.drain(DrainHow.FAST) == [JobOrder(job.key, KillJob(WHY))]
