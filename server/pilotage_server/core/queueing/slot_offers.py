"""Whether a job fits in an offered slot, and the attributes of a slot that do not depend on its ad.

Rules
-----
- The checks are sizes against what is free, CPU time against the CPU work left, wall time against the time left,
  what the pilot declined, the owner to whom the pilot is bound, and whether it runs containers. A missing request is
  satisfied by every slot.
- CPU time is in normalised CPU seconds of one core. The CPU work left is the wall time left, less a margin, times the
  node's power per core (DIRAC's CPUTime). The number of requested cores does not change it.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from pilotage.classads.library import AdValue
from pilotage.resources.tree import QueueId
from pilotage.values.amounts import Amounts
from pilotage.values.offers import SlotOffer
from pilotage_server.core.queueing.task_queue import TaskQueue


def obstacles(task_queue: TaskQueue, slot: SlotOffer, end_margin: timedelta) -> Iterator[str]:
    """Yield, in words for people, what keeps the jobs of a task queue out of a slot; nothing = they fit."""
    asked = task_queue.traits.amounts
    for name, wanted, free in asked.exceeding(slot.free):
        yield f"{name}: {free} free, {wanted} asked"
    if task_queue.id in slot.declined_task_queues:
        yield "its pilot has declined these jobs"
    if slot.bound_to is not None and slot.bound_to != task_queue.traits.account.owner_id:
        yield "isolation: its pilot holds jobs of another owner, and runs those of one owner at a time"
    if task_queue.traits.in_container and not slot.has_containers:
        yield "HasContainers: its pilot runs no container images"
    left_s = time_left_s(slot, end_margin)
    if left_s is not None:
        yield from _too_long(task_queue, left_s, slot.cpu_power or 1.0)


def until(slot: SlotOffer, end: timedelta) -> SlotOffer:
    """Return the slot as it can be used until a time from now at which its jobs must have ended."""
    return slot._replace(time_left=end if slot.time_left is None else min(slot.time_left, end))


def time_left_s(slot: SlotOffer, end_margin: timedelta) -> float | None:
    """Return how long a job may run in the slot, in seconds; None = no end known."""
    return None if slot.time_left is None else max(0.0, (slot.time_left - end_margin).total_seconds())


def _too_long(task_queue: TaskQueue, time_left_s: float, power: float) -> Iterator[str]:
    wall_time_s, cpu_time_s = task_queue.needs.wall_time_s, task_queue.needs.cpu_time_s
    if wall_time_s is not None and wall_time_s > time_left_s:
        yield f"wall time: {time_left_s:.0f} s left, {wall_time_s:.0f} s asked"
    if cpu_time_s is not None and cpu_time_s > time_left_s * power:
        yield f"CPU time: {time_left_s * power:.0f} s of work left, {cpu_time_s:.0f} s asked"


def fits(task_queue: TaskQueue, slot: SlotOffer, end_margin: timedelta) -> bool:
    """Whether the jobs of the task queue fit in the slot."""
    if not task_queue.traits.amounts.fits_in(slot.free):  # a fast path for the most common case
        return False
    return next(obstacles(task_queue, slot, end_margin), None) is None


def size_of(slot: SlotOffer) -> tuple[object, ...]:
    """Return what `fits` reads of a slot; equal values fit the same task queues."""
    return (slot.free, slot.time_left, slot.cpu_power, slot.declined_task_queues, slot.bound_to, slot.has_containers)


_KIB_IN_MIB = 1024


def size_attributes(amounts: Amounts) -> dict[str, AdValue]:
    """Return the size attributes of a slot's ad: memory in MiB, disk in KiB."""
    return {
        "cpus": amounts.cpus,
        "memory": amounts.memory_mib,
        "disk": amounts.disk_mib * _KIB_IN_MIB,
        "gpus": amounts.gpus,
    }


def location_attributes(queue: QueueId) -> dict[str, AdValue]:
    """Return the location attributes of a slot's ad, under our names and those of glideinWMS."""
    return {
        "site": queue.site,
        "ce": queue.ce,
        "queue": queue.queue,
        "glidein_site": queue.site,
        "glidein_gatekeeper": queue.ce,
        "glidein_entry_name": queue.queue,
    }


def unset_attributes(slot: SlotOffer) -> dict[str, AdValue]:
    """Return the default attributes of a slot's ad."""
    return {
        "mytype": "Machine",
        "name": slot.name,
        "state": "Claimed" if slot.claim or slot.occupied else "Unclaimed",
        "activity": "Busy" if slot.occupied else "Idle",
        "partitionableslot": slot.partitionable,
    }
