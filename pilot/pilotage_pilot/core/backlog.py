"""The jobs that came ahead of their turn: each waits for its slot behind the one that is in it, or goes back.

Rules
-----
A job that waits here has a lease and no slot yet; it becomes an attempt when its turn comes, and then all is looked at
as for any other job. All that wait for one slot are of one task queue: what is said against one of them is said
against those behind it. Nobody waits behind a job that takes long, nor for a slot that is not kept for its account.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from pilotage_pilot.core.attempts import Ending
from pilotage_pilot.core.instructions import PrepareJob
from pilotage_pilot.core.jobs import AttemptKey, GrantedJob, Outcome
from pilotage_pilot.core.moment import Moment
from pilotage_pilot.core.payload_ends import Instructions
from pilotage_pilot.core.payloads import Payloads
from pilotage_pilot.core.slot_book import NodeSlot
from pilotage_pilot.core.slot_offers import SlotOffers
from pilotage_pilot.core.slot_states import Activity, SlotState

LONGEST_TURN_S = 2.0
"""Who waits behind a job that is in its slot for longer goes back."""

FRESH_S = 1.0
"""The leases of a line are renewed when it is older than this: hardly any ever is."""

NOT_ANY_MORE = "the pilot takes no more jobs"


@dataclass(slots=True)
class _Line:
    """Who waits for one slot, in order; `turn_boot_s` is when the job that is in it went there."""

    begun_boot_s: float
    turn_boot_s: float
    waiting: deque[GrantedJob] = field(default_factory=deque)


class Backlog:
    """The lines of one pilot."""

    def __init__(self, payloads: Payloads, offers: SlotOffers) -> None:
        self._payloads = payloads
        self._slots = payloads.slots
        self._offers = offers
        self._lines: dict[str, _Line] = {}
        self._lease_ends: dict[AttemptKey, float] = {}

    def __len__(self) -> int:
        return len(self._lease_ends)

    def __contains__(self, key: AttemptKey) -> bool:
        return key in self._lease_ends

    def put(self, slot: str, job: GrantedJob, lease_end_boot_s: float, now: Moment) -> None:
        """Let a job wait for a slot that another one has just gone into."""
        line = self._lines.setdefault(slot, _Line(now.boot_s, now.boot_s))
        line.waiting.append(job)
        self._lease_ends[job.key] = lease_end_boot_s

    # Leases -----------------------------------------------------------------------------------------------------

    def leases(self, now: Moment) -> tuple[AttemptKey, ...]:
        """Return whose leases are to be renewed."""
        old = (line for line in self._lines.values() if line.begun_boot_s + FRESH_S <= now.boot_s)
        return tuple(job.key for line in old for job in line.waiting)

    def renew(self, key: AttemptKey, lease_end_boot_s: float) -> None:
        """Let a lease go on, if its job still waits."""
        if key in self._lease_ends:
            self._lease_ends[key] = lease_end_boot_s

    def give_back(self, key: AttemptKey, ending: Ending, now: Moment) -> None:
        """Let a job that waits go back before its turn; one that does not wait is left alone."""
        if key in self._lease_ends:
            found = ((line, job) for line in self._lines.values() for job in line.waiting if job.key == key)
            line, job = next(found)
            line.waiting.remove(job)
            self._return(job, ending, now)

    # Turns ------------------------------------------------------------------------------------------------------

    def due(self, now: Moment, *, takes_jobs: bool) -> Instructions:
        """Let those go on whose turn it is, and those back who need not wait."""
        instructions: Instructions = []
        for name, line in tuple(self._lines.items()):
            slot = self._slots.book.get(name)
            reason = self._against(slot, line, now) if takes_jobs else NOT_ANY_MORE
            if reason is not None:
                self._return_all(line, reason, now)
            elif slot is not None and slot.attempt is None:
                instructions += self._next(name, line, now)
            if not line.waiting:
                del self._lines[name]
        return instructions

    def _against(self, slot: NodeSlot | None, line: _Line, now: Moment) -> str | None:
        """Return why nobody of a line is to wait any longer; None = nothing is against it."""
        is_kept = slot is not None and slot.doing[0] is SlotState.CLAIMED and slot.doing[1] is not Activity.RETIRING
        if slot is None or not is_kept or slot.machine.preemption is not None:
            return "its slot is not kept for its account any more"
        if line.turn_boot_s + LONGEST_TURN_S <= now.boot_s:
            return "the job before it in its slot takes long"
        return None

    def _next(self, name: str, line: _Line, now: Moment) -> Instructions:
        job = line.waiting[0]
        slot = self._slots.book.get(name)
        if slot is None or not slot.suits(job):
            return []  # files of the job before may still be on its disk
        line.waiting.popleft()
        lease_end_boot_s = self._lease_ends[job.key]
        if lease_end_boot_s <= now.boot_s:
            self._return(job, Ending(Outcome.KILLED, "its lease was not renewed in time"), now)
            return []
        entered = self._slots.enter(name, job, now)
        if isinstance(entered, PrepareJob):
            del self._lease_ends[job.key]
            line.turn_boot_s = now.boot_s
            return self._payloads.begin(entered, lease_end_boot_s)
        self._offers.decline(name, job.task_queue, now)
        line.waiting.appendleft(job)
        self._return_all(line, entered, now)
        return []

    def _return_all(self, line: _Line, reason: str, now: Moment) -> None:
        while line.waiting:
            self._return(line.waiting.popleft(), Ending(Outcome.DECLINED, reason), now)

    def _return(self, job: GrantedJob, ending: Ending, now: Moment) -> None:
        del self._lease_ends[job.key]
        self._payloads.give_back(job, ending, now)

    def alarms(self) -> Iterator[float]:
        """Yield the times, on the boot clock, at which `due` may have something to do."""
        for line in self._lines.values():
            yield line.turn_boot_s + LONGEST_TURN_S

    def validate(self) -> None:
        """Raise AssertionError where the lines do not go together."""
        waiting = [job.key for line in self._lines.values() for job in line.waiting]
        assert len(waiting) == len(set(waiting)), "a job waits twice"
        assert set(waiting) == set(self._lease_ends), "a job waits without a lease"
        assert not any(self._payloads.get(key) for key in waiting), "an attempt waits for its turn"
