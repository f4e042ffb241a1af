"""Slots that ask for work, and whether a job fits in one.

Rules
-----
Here are the checks that only a slot can answer: sizes against what is free, CPU time against the CPU work left,
wall time against the time left, and what the pilot declined. What a job does not say asks nothing.

CPU time is in normalised CPU seconds of one core, so the CPU work left is the wall time left, less a margin, times
the node's power per core (DESIGN §7; DIRAC's CPUTime). How many cores a job asks does not change it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import NamedTuple

from pilotage_server.core.accounting import Account
from pilotage_server.core.amounts import Amounts
from pilotage_server.core.task_queues import TaskQueue


@dataclass(frozen=True, slots=True)
class Occupied:
    """What a slot works on while it is offered for better jobs.

    `rank` = what its RANK is of the job. `ordered` = it has been told to vacate and has not done so yet.
    """

    job_id: int
    attempt: int
    rank: float = 0.0
    ordered: bool = False


class SlotOffer(NamedTuple):
    """A slot that asks for work.

    `time_left` = how long a job may still run there, None = no end known. `cpu_power` = normalised CPU seconds
    that one core does in a second, 0 = not known, taken as 1. `max_jobs` = at most so many in one answer, 0 = as
    many as fit. `declined_task_queues` = ids of what the pilot declined for the slot as it is now. `ad_parts` are
    the keys of what its ad is made of, the later wins, and `ad_changes`, an ad in itself, over all of them; "" =
    there are none. `claim` = whose jobs go first. `occupied` None = it is free, and `free` is what is; else `free`
    is what will be. `ahead` = so many more jobs of the same task queue may come with the first, to be run one after
    the other.
    """

    name: str
    free: Amounts
    partitionable: bool = False
    time_left: timedelta | None = None
    cpu_power: float = 1.0
    max_jobs: int = 0
    declined_task_queues: frozenset[int] = frozenset()
    ad_parts: tuple[str, ...] = ()
    ad_changes: str = ""
    claim: Account | None = None
    ahead: int = 0
    occupied: Occupied | None = None
    job_ad_wanted: bool = False

    @property
    def kind(self) -> tuple[object, ...]:
        """What is equal for free slots that differ in nothing but their names, as far as matching looks."""
        return self[1:-2]

    @property
    def has_ad(self) -> bool:
        """Whether the pilot tells of the slot in an ad, in which a policy may stand."""
        return bool(self.ad_parts or self.ad_changes)

    def given_to(self, asked: Amounts) -> Amounts:
        """Return what a job that asks so much gets: its part of a partitionable slot, all of any other."""
        return asked if self.partitionable else self.free

    def without(self, given: Amounts) -> SlotOffer | None:
        """Return what is left to offer when a job has been given so much; None = nothing."""
        if not self.partitionable or self.max_jobs == 1:
            return None
        return self._replace(free=self.free - given, max_jobs=max(0, self.max_jobs - 1))

    def after(self, waited: timedelta) -> SlotOffer:
        """Return what the slot offers when it has waited for a job."""
        return self if self.time_left is None else self._replace(time_left=self.time_left - waited)


def obstacles(task_queue: TaskQueue, slot: SlotOffer, end_margin: timedelta) -> Iterator[str]:
    """Yield, in words for people, all that keeps the jobs of a task queue out of a slot; nothing = they fit."""
    asked = task_queue.traits.amounts
    for name, wanted, free in asked.exceeding(slot.free):
        yield f"{name}: {free} free, {wanted} asked"
    if task_queue.id in slot.declined_task_queues:
        yield "its pilot has declined these jobs"
    left_s = time_left_s(slot, end_margin)
    if left_s is not None:
        yield from _too_long(task_queue, left_s, slot.cpu_power or 1.0)


def time_left_s(slot: SlotOffer, end_margin: timedelta) -> float | None:
    """Return how long a job may run in the slot, in seconds; None = no end known."""
    return None if slot.time_left is None else max(0.0, (slot.time_left - end_margin).total_seconds())


def _too_long(task_queue: TaskQueue, time_left_s: float, power: float) -> Iterator[str]:
    wall_time_s, cpu_time_s = task_queue.traits.wall_time_s, task_queue.needs.cpu_time_s
    if wall_time_s is not None and wall_time_s > time_left_s:
        yield f"wall time: {time_left_s:.0f} s left, {wall_time_s:.0f} s asked"
    if cpu_time_s is not None and cpu_time_s > time_left_s * power:
        yield f"CPU time: {time_left_s * power:.0f} s of work left, {cpu_time_s:.0f} s asked"


def fits(task_queue: TaskQueue, slot: SlotOffer, end_margin: timedelta) -> bool:
    """Whether the jobs of the task queue fit in the slot."""
    if not task_queue.traits.amounts.fits_in(slot.free):  # told apart first, for it is the most common and cheap
        return False
    return next(obstacles(task_queue, slot, end_margin), None) is None


def size_of(slot: SlotOffer) -> tuple[object, ...]:
    """Return what `fits` looks at of a slot; slots of which it is equal fit the same."""
    return (slot.free, slot.time_left, slot.cpu_power, slot.declined_task_queues)
