"""A whole node that drains: how long its jobs may stay, and why they leave."""

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
    """A node of two slots with a job in each slot that the test wants one in."""

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
        """Let time pass, with the slots polled whenever they want to be; return what they wanted meanwhile."""
        end, heard = self.now.boot_s + seconds, list[JobOrder]()
        while (due := self.slots.next_poll_boot_s()) <= end:
            self._go_to(due)
            heard += self.slots.poll(self.now)
        self._go_to(end)
        return heard

    def _go_to(self, boot_s: float) -> None:
        boot_s = max(boot_s, self.now.boot_s)
        self.now = Now(START + timedelta(seconds=boot_s - BOOT_S), boot_s)

    def shows(self) -> list[str]:
        self.slots.validate()
        return [f"{slot.state}/{slot.activity}" for slot in self.slots.slots()]


@pytest.mark.parametrize("granted", ["0", "500"])
def test_in_a_peaceful_drain_jobs_run_to_their_end_however_short_their_retirement_is(granted: str) -> None:
    node = DrainingNode(maxjobretirementtime=granted)
    job = node.run(1)
    assert node.drain(DrainHow.PEACEFUL) == []
    assert node.shows() == ["Claimed/Retiring", "Drained/Retiring"]
    assert node.pass_time(100_000) == []
    node.slots.job_ended(job.key, node.now)
    assert node.shows() == ["Drained/Idle"] * 2


def test_a_policy_may_want_jobs_out_even_in_peace_and_they_hear_why_the_node_drains() -> None:
    node = DrainingNode(maxjobretirementtime="-1")
    job = node.run(1)
    assert node.drain(DrainHow.PEACEFUL) == [JobOrder(job.key, StopJob(20, WHY))]


def test_a_graceful_drain_gives_jobs_the_retirement_of_the_policy() -> None:
    node = DrainingNode(maxjobretirementtime="500")
    job = node.run(1)
    assert node.drain(DrainHow.GRACEFUL) == []
    assert node.pass_time(479) == []
    assert node.pass_time(2) == [JobOrder(job.key, StopJob(20, WHY))]
    node.slots.job_ended(job.key, node.now)
    assert node.shows() == ["Drained/Idle"] * 2


def test_while_others_stay_anyway_a_graceful_drain_lets_a_job_use_up_its_retirement() -> None:
    node = DrainingNode(maxjobretirementtime="100 * SlotID")
    short, long = node.run(1), node.run(2)
    assert node.drain(DrainHow.GRACEFUL) == []
    assert node.pass_time(95) == [], "its vacate time may pass its retirement, for the other one is there longer"
    node.slots.job_ended(long.key, node.now)
    assert node.pass_time(1) == [JobOrder(short.key, StopJob(20, WHY))], "now nobody else is there"


def test_quick_and_fast_drains_leave_no_retirement() -> None:
    quick, fast = DrainingNode(maxjobretirementtime="500"), DrainingNode(maxjobretirementtime="500")
    job = quick.run(1)
    fast.run(1)
    assert quick.drain(DrainHow.QUICK) == [JobOrder(job.key, StopJob(20, WHY))]
    assert fast.drain(DrainHow.FAST) == [JobOrder(job.key, KillJob(WHY))]
