"""Task queues by their requests, as bit sets: the fitting ones are found without a look at each.

Sizes are exact: slots between the same two requested sizes fit the same task queues. Times are grouped by quarters of
an octave, because the time left of each slot differs. So a task queue that requests a little more than there is may be
in the result and has to be checked.
"""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from datetime import timedelta
from typing import NamedTuple

from pilotage.text import fold
from pilotage.values.accounts import OwnerId
from pilotage.values.offers import SlotOffer
from pilotage_server.core.queueing.bitsets import ALL_BITS
from pilotage_server.core.queueing.slot_offers import time_left_s
from pilotage_server.core.queueing.task_queue import TaskQueue

_NO_TIME = -(10**6)
_LESS_THAN_ANY = -(10**9)
_LONGEST_S = 1e300
"""Longer times are cut: the work that a slot can do in its time may exceed a float."""


class SizeClass(NamedTuple):
    """Slots in which the same task queues fit, as far as bit sets show: steps of the requests; None = no end known.

    `near_wall_time` and `near_cpu_time`: a task queue on exactly this step may request more than there is.
    `has_containers` = their pilots run jobs in container images.
    """

    cpus: int
    memory: int
    disk: int
    gpus: int
    wall_time: int | None = None
    cpu_time: int | None = None
    near_wall_time: bool = False
    near_cpu_time: bool = False
    has_containers: bool = False


class TraitIndex:
    """The bit sets of all known task queues, by request, VO and owner."""

    def __init__(self) -> None:
        self._steps = [_Steps() for _ in range(6)]
        self._of_vo: dict[str, int] = {}
        self._of_owner: dict[OwnerId, int] = {}
        self._in_containers = 0

    def add(self, task_queue: TaskQueue, bit: int) -> None:
        """Add a task queue."""
        for steps, value in zip(self._steps, _requested(task_queue), strict=True):
            steps.add(value, 1 << bit)
        vo, owner = fold(task_queue.account.vo), task_queue.traits.account.owner_id
        self._of_vo[vo] = self._of_vo.get(vo, 0) | 1 << bit
        self._of_owner[owner] = self._of_owner.get(owner, 0) | 1 << bit
        self._in_containers |= task_queue.traits.in_container << bit

    def remove(self, task_queue: TaskQueue, bit: int) -> None:
        """Remove a task queue that was added."""
        for steps, value in zip(self._steps, _requested(task_queue), strict=True):
            steps.remove(value, 1 << bit)
        vo, owner = fold(task_queue.account.vo), task_queue.traits.account.owner_id
        self._of_vo[vo] ^= 1 << bit
        if not self._of_vo[vo]:
            del self._of_vo[vo]
        self._in_containers &= ~(1 << bit)
        self._of_owner[owner] ^= 1 << bit
        if not self._of_owner[owner]:
            del self._of_owner[owner]

    def size_class(self, slot: SlotOffer, end_margin: timedelta) -> SizeClass:
        """Return the class of a slot."""
        free, left_s = slot.free, time_left_s(slot, end_margin)
        cpus, memory, disk, gpus, wall_times, cpu_times = self._steps
        sizes = (cpus.up_to(free.cpus), memory.up_to(free.memory_mib), disk.up_to(free.disk_mib), gpus.up_to(free.gpus))
        if left_s is None:
            return SizeClass(*sizes, has_containers=slot.has_containers)
        for_wall, for_cpu = _time_step(left_s), _time_step(left_s * (slot.cpu_power or 1.0))
        wall_time, cpu_time = wall_times.up_to(for_wall), cpu_times.up_to(for_cpu)
        is_near = wall_time == for_wall, cpu_time == for_cpu
        return SizeClass(*sizes, wall_time, cpu_time, *is_near, slot.has_containers)

    def fitting(self, size: SizeClass) -> int:
        """Return the task queues that may fit in slots of the class."""
        found = ALL_BITS
        for steps, step in zip(self._steps, size, strict=False):
            if step is not None:
                found &= steps.at_most(step)
        return found if size.has_containers else found & ~self._in_containers

    def uncertain(self, size: SizeClass) -> int:
        """Return the task queues whose times have to be checked against each slot of the class."""
        *_, wall_times, cpu_times = self._steps
        found = 0
        if size.near_wall_time and size.wall_time is not None:
            found |= wall_times.exactly(size.wall_time)
        if size.near_cpu_time and size.cpu_time is not None:
            found |= cpu_times.exactly(size.cpu_time)
        return found

    def of_vo(self, vo: str) -> int:
        """Return the task queues of a VO, by its folded name."""
        return self._of_vo.get(vo, 0)

    def of_owner(self, owner: OwnerId) -> int:
        """Return the task queues of an owner, in whichever group."""
        return self._of_owner.get(owner, 0)


class _Steps:
    """Bit sets by a requested value."""

    __slots__ = ("_sets", "_values")

    def __init__(self) -> None:
        self._values = [_LESS_THAN_ANY]
        self._sets: dict[int, int] = {}

    def add(self, value: int, bit: int) -> None:
        if value not in self._sets:
            insort(self._values, value)
        self._sets[value] = self._sets.get(value, 0) | bit

    def remove(self, value: int, bit: int) -> None:
        self._sets[value] ^= bit
        if not self._sets[value]:
            del self._sets[value]
            self._values.remove(value)

    def up_to(self, offered: int) -> int:
        """Return the largest requested value that is not above the offer."""
        return self._values[bisect_right(self._values, offered) - 1]

    def exactly(self, step: int) -> int:
        """Return the task queues that request exactly this value."""
        return self._sets.get(step, 0)

    def at_most(self, step: int) -> int:
        """Return the task queues that request no more than this value."""
        found = 0
        for value in self._values[1 : bisect_right(self._values, step)]:
            found |= self._sets[value]
        return found


def _requested(task_queue: TaskQueue) -> tuple[int, int, int, int, int, int]:
    traits = task_queue.traits
    amounts, needs = traits.amounts, traits.needs
    return (
        amounts.cpus,
        amounts.memory_mib,
        amounts.disk_mib,
        amounts.gpus,
        _time_step(needs.wall_time_s or 0.0),
        _time_step(needs.cpu_time_s or 0.0),
    )


def _time_step(seconds: float) -> int:
    """Return the quarter of an octave in which a time ends; a longer time never has a smaller one."""
    return _NO_TIME if seconds <= 0 else math.ceil(4 * math.log2(min(seconds, _LONGEST_S)))
