"""Task queues by what they ask of a slot, as sets of places: which of them fit is found without looking at each.

Rules
-----
Sizes are exact: slots between the same two sizes that anybody asks fit the same. Times are told apart by quarters of
an octave only, for the time left of slots is another each time: who asks little more than there is is among the found,
and has to be looked at.
"""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from datetime import timedelta
from typing import NamedTuple

from pilotage.folding import fold
from pilotage_server.core.place_sets import EVERYWHERE
from pilotage_server.core.slots import SlotOffer, time_left_s
from pilotage_server.core.task_queues import TaskQueue

_NO_TIME = -(10**6)
_LESS_THAN_ANY = -(10**9)
_LONGEST_S = 1e300
"""Times are no longer than this: what a slot can do in its time may be more than a float holds."""


class SizeClass(NamedTuple):
    """Slots in which the same task queues fit, as far as sets tell: steps in what is asked; None = no end known.

    `near_wall_time` and `near_cpu_time`: who asks just the step may ask more than there is.
    """

    cpus: int
    memory: int
    disk: int
    gpus: int
    wall_time: int | None = None
    cpu_time: int | None = None
    near_wall_time: bool = False
    near_cpu_time: bool = False


class TraitSets:
    """The sets of all task queues that are known."""

    def __init__(self) -> None:
        self._steps = [_Steps() for _ in range(6)]
        self._of_vo: dict[str, int] = {}

    def add(self, task_queue: TaskQueue, place: int) -> None:
        """Take in a task queue."""
        for steps, value in zip(self._steps, _asked(task_queue), strict=True):
            steps.add(value, 1 << place)
        vo = fold(task_queue.account.vo)
        self._of_vo[vo] = self._of_vo.get(vo, 0) | 1 << place

    def forget(self, task_queue: TaskQueue, place: int) -> None:
        """Drop a task queue, which is there."""
        for steps, value in zip(self._steps, _asked(task_queue), strict=True):
            steps.forget(value, 1 << place)
        vo = fold(task_queue.account.vo)
        self._of_vo[vo] ^= 1 << place
        if not self._of_vo[vo]:
            del self._of_vo[vo]

    def size_class(self, slot: SlotOffer, end_margin: timedelta) -> SizeClass:
        """Return the class of a slot."""
        free, left_s = slot.free, time_left_s(slot, end_margin)
        cpus, memory, disk, gpus, wall_times, cpu_times = self._steps
        sizes = (cpus.up_to(free.cpus), memory.up_to(free.memory_mib), disk.up_to(free.disk_mib), gpus.up_to(free.gpus))
        if left_s is None:
            return SizeClass(*sizes)
        for_wall, for_cpu = _octave(left_s), _octave(left_s * (slot.cpu_power or 1.0))
        wall_time, cpu_time = wall_times.up_to(for_wall), cpu_times.up_to(for_cpu)
        return SizeClass(*sizes, wall_time, cpu_time, wall_time == for_wall, cpu_time == for_cpu)

    def fitting(self, size: SizeClass) -> int:
        """Return the set of task queues that may fit in slots of the class."""
        found = EVERYWHERE
        for steps, step in zip(self._steps, size, strict=False):
            if step is not None:
                found &= steps.at_most(step)
        return found

    def unsure(self, size: SizeClass) -> int:
        """Return the set of task queues of which it is not sure that their times fit in slots of the class."""
        *_, wall_times, cpu_times = self._steps
        found = 0
        if size.near_wall_time and size.wall_time is not None:
            found |= wall_times.just(size.wall_time)
        if size.near_cpu_time and size.cpu_time is not None:
            found |= cpu_times.just(size.cpu_time)
        return found

    def of_vo(self, vo: str) -> int:
        """Return the set of a VO's task queues, its name folded."""
        return self._of_vo.get(vo, 0)


class _Steps:
    """Sets by a value that is asked."""

    __slots__ = ("_sets", "_values")

    def __init__(self) -> None:
        self._values = [_LESS_THAN_ANY]
        self._sets: dict[int, int] = {}

    def add(self, value: int, bit: int) -> None:
        if value not in self._sets:
            insort(self._values, value)
        self._sets[value] = self._sets.get(value, 0) | bit

    def forget(self, value: int, bit: int) -> None:
        self._sets[value] ^= bit
        if not self._sets[value]:
            del self._sets[value]
            self._values.remove(value)

    def up_to(self, offered: int) -> int:
        """Return the largest value that is asked and not above what is offered."""
        return self._values[bisect_right(self._values, offered) - 1]

    def just(self, step: int) -> int:
        """Return the set of who asks just that."""
        return self._sets.get(step, 0)

    def at_most(self, step: int) -> int:
        """Return the set of who asks no more than that."""
        found = 0
        for value in self._values[1 : bisect_right(self._values, step)]:
            found |= self._sets[value]
        return found


def _asked(task_queue: TaskQueue) -> tuple[int, int, int, int, int, int]:
    traits = task_queue.traits
    amounts, cpu_time_s = traits.amounts, traits.needs.cpu_time_s
    return (
        amounts.cpus,
        amounts.memory_mib,
        amounts.disk_mib,
        amounts.gpus,
        _octave(traits.wall_time_s or 0.0),
        _octave(cpu_time_s or 0.0),
    )


def _octave(seconds: float) -> int:
    """Return the quarter of an octave that a time ends in; the longer never has the smaller."""
    return _NO_TIME if seconds <= 0 else math.ceil(4 * math.log2(min(seconds, _LONGEST_S)))
