"""Prefetched jobs: each waits for its slot behind the job that occupies it, or is returned.

Rules
-----
A prefetched job has a lease and no slot. It becomes an attempt when its slot is free, with the same checks as any job.
All jobs that wait for one slot are of one task queue: a reason against the first is a reason against all.
No job waits behind a long job, or for a slot that is not claimed by its account.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from pilotage.values.accounts import OwnerId
from pilotage.values.attempts import AttemptKey, Outcome
from pilotage_pilot.core.attempts.attempt import Ending
from pilotage_pilot.core.attempts.payloads import Instructions, Payloads
from pilotage_pilot.core.instructions import PrepareJob
from pilotage_pilot.core.jobs.requests import SlotOffers
from pilotage_pilot.core.model import GrantedJob, Now
from pilotage_pilot.core.node.slot_set import NodeSlot
from pilotage_pilot.core.slots.states import Activity, SlotState

MAX_WAIT_S = 2.0
"""A prefetched job is returned if the job before it runs longer."""

RENEW_AFTER_S = 1.0
"""Age of a slot's queue from which its leases are renewed; few become so old."""

TAKES_NO_JOBS = "the pilot takes no more jobs"


@dataclass(slots=True)
class _SlotQueue:
    """The jobs that wait for one slot, in order; `entered_boot_s` is when the running job entered it."""

    created_boot_s: float
    entered_boot_s: float
    waiting: deque[GrantedJob] = field(default_factory=deque)


class Prefetch:
    """The prefetched jobs of one pilot, by slot."""

    def __init__(self, payloads: Payloads, offers: SlotOffers) -> None:
        self._payloads = payloads
        self._slots = payloads.slots
        self._offers = offers
        self._queues: dict[str, _SlotQueue] = {}
        self._lease_ends: dict[AttemptKey, float] = {}

    def __len__(self) -> int:
        return len(self._lease_ends)

    def __contains__(self, key: AttemptKey) -> bool:
        return key in self._lease_ends

    @property
    def owner(self) -> OwnerId | None:
        """The owner of the jobs that the pilot holds, running or waiting, if it runs those of one owner at a time."""
        held = self._payloads.owner
        if held is not None:
            return held
        return next((job.account.owner_id for queue in self._queues.values() for job in queue.waiting), None)

    def add(self, slot: str, job: GrantedJob, lease_end_boot_s: float, now: Now) -> None:
        """Add a job that waits for a slot which another job has just entered."""
        queue = self._queues.setdefault(slot, _SlotQueue(now.boot_s, now.boot_s))
        queue.waiting.append(job)
        self._lease_ends[job.key] = lease_end_boot_s

    # Leases -----------------------------------------------------------------------------------------------------

    def leases(self, now: Now) -> tuple[AttemptKey, ...]:
        """Return the attempts whose leases have to be renewed."""
        old = (queue for queue in self._queues.values() if queue.created_boot_s + RENEW_AFTER_S <= now.boot_s)
        return tuple(job.key for queue in old for job in queue.waiting)

    def renew(self, key: AttemptKey, lease_end_boot_s: float) -> None:
        """Extend a lease if its job still waits."""
        if key in self._lease_ends:
            self._lease_ends[key] = lease_end_boot_s

    def give_back(self, key: AttemptKey, ending: Ending, now: Now) -> None:
        """Return a job to the server if it waits."""
        if key in self._lease_ends:
            found = ((queue, job) for queue in self._queues.values() for job in queue.waiting if job.key == key)
            queue, job = next(found)
            queue.waiting.remove(job)
            self._return(job, ending, now)

    # Slots ------------------------------------------------------------------------------------------------------

    def due(self, now: Now, *, takes_jobs: bool) -> Instructions:
        """Start the jobs whose slots are free, and return those that need not wait."""
        instructions: Instructions = []
        for name, queue in tuple(self._queues.items()):
            slot = self._slots.book.get(name)
            reason = self._return_reason(slot, queue, now) if takes_jobs else TAKES_NO_JOBS
            if reason is not None:
                self._return_all(queue, reason, now)
            elif slot is not None and slot.attempt is None:
                instructions += self._next(name, queue, now)
            if not queue.waiting:
                del self._queues[name]
        return instructions

    def _return_reason(self, slot: NodeSlot | None, queue: _SlotQueue, now: Now) -> str | None:
        """Return why the jobs of a queue have to be returned; None = they may wait."""
        is_kept = (
            slot is not None
            and slot.state_and_activity[0] is SlotState.CLAIMED
            and slot.state_and_activity[1] is not Activity.RETIRING
        )
        if slot is None or not is_kept or slot.machine.preemption is not None:
            return "its slot is no longer claimed by its account"
        if queue.entered_boot_s + MAX_WAIT_S <= now.boot_s:
            return "the job before it in its slot runs long"
        return None

    def _next(self, name: str, queue: _SlotQueue, now: Now) -> Instructions:
        job = queue.waiting[0]
        slot = self._slots.book.get(name)
        if slot is None or not slot.accepts(job):
            return []  # files of the job before may still use the disk
        queue.waiting.popleft()
        lease_end_boot_s = self._lease_ends[job.key]
        if lease_end_boot_s <= now.boot_s:
            self._return(job, Ending(Outcome.KILLED, "its lease was not renewed in time"), now)
            return []
        entered = self._slots.enter(name, job, now)
        if isinstance(entered, PrepareJob):
            del self._lease_ends[job.key]
            queue.entered_boot_s = now.boot_s
            return self._payloads.begin(entered, lease_end_boot_s)
        self._offers.decline(name, job.task_queue, now)
        queue.waiting.appendleft(job)
        self._return_all(queue, entered, now)
        return []

    def _return_all(self, queue: _SlotQueue, reason: str, now: Now) -> None:
        while queue.waiting:
            self._return(queue.waiting.popleft(), Ending(Outcome.DECLINED, reason), now)

    def _return(self, job: GrantedJob, ending: Ending, now: Now) -> None:
        del self._lease_ends[job.key]
        self._payloads.give_back(job, ending, now)

    def alarms(self) -> Iterator[float]:
        """Yield the times, on the boot clock, at which `due` may have an effect."""
        for queue in self._queues.values():
            yield queue.entered_boot_s + MAX_WAIT_S

    def validate(self) -> None:
        """Raise AssertionError if queues and leases contradict each other."""
        waiting = [job.key for queue in self._queues.values() for job in queue.waiting]
        assert len(waiting) == len(set(waiting)), "a job waits twice"
        assert set(waiting) == set(self._lease_ends), "a job waits without a lease"
        assert not any(self._payloads.get(key) for key in waiting), "an attempt waits for its slot"
