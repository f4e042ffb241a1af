"""The state of a slot: HTCondor's states and activities, its claim, job and orders, and its resources.

Values only; transitions are in `machine`. HTCondor's Matched, Backfill and Cleaning do not exist here: a pilot requests
its jobs, so nothing waits between match and claim, and output is stored outside the slot.
A slot's resources are never over-allocated. A GPU belongs to one dynamic slot. Disk that holds files after their job is
lent until they are stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple

from pilotage.values.accounts import Account
from pilotage.values.amounts import NOTHING, Amounts
from pilotage.values.attempts import JobHold
from pilotage_pilot.core.model import Now
from pilotage_pilot.core.slots.evaluator import NEVER


class SlotResources:
    """The resources of one static slot. Its dynamic slots are known by number; None is the slot itself."""

    def __init__(self, amounts: Amounts, gpu_ids: tuple[str, ...]) -> None:
        assert len(gpu_ids) == amounts.gpus, "every GPU has an id"
        self._total = amounts
        self._gpu_ids = gpu_ids
        self._allocated: dict[int, tuple[Amounts, tuple[str, ...]]] = {}
        self._lent = NOTHING
        self.free = amounts

    def carve(self, amounts: Amounts) -> int:
        """Allocate free resources to a new dynamic slot; returns its number, the smallest unused one."""
        assert amounts.fits_in(self.free), f"{amounts} does not fit in {self.free}"
        number = next(n for n in range(1, len(self._allocated) + 2) if n not in self._allocated)
        taken = {gpu for _, gpu_ids in self._allocated.values() for gpu in gpu_ids}
        self._allocated[number] = (amounts, tuple(gpu for gpu in self._gpu_ids if gpu not in taken)[: amounts.gpus])
        self.free -= amounts
        return number

    def put_back(self, number: int) -> None:
        """Release the resources of a dynamic slot."""
        self.free += self._allocated.pop(number)[0]

    def amounts(self, number: int | None) -> Amounts:
        """Return the resources of a slot."""
        return self._total if number is None else self._allocated[number][0]

    def gpu_ids(self, number: int | None) -> tuple[str, ...]:
        """Return the GPUs of a slot."""
        return self._gpu_ids if number is None else self._allocated[number][1]

    def lend(self, disk_mib: int, number: int | None) -> Amounts:
        """Reserve disk of a slot for files that outlive their job; returns the loan for `end_loan`.

        The job had that much disk in the slot, so a loan never exceeds what the slot has.
        """
        loan = Amounts(disk_mib=disk_mib)
        available = self.free if number is None else self.amounts(number)
        assert loan.fits_in(available), f"{loan} is more than {available}"
        self._lent += loan
        if number is None:
            self.free -= loan
        else:
            self._allocated[number] = (self.amounts(number) - loan, self.gpu_ids(number))
        return loan

    def end_loan(self, loan: Amounts, number: int | None) -> None:
        """Return lent disk to a dynamic slot; None = to the free resources."""
        assert loan.fits_in(self._lent), f"{loan} was not lent"
        self._lent -= loan
        if number is None:
            self.free += loan
        else:
            self._allocated[number] = (self.amounts(number) + loan, self.gpu_ids(number))

    def validate(self) -> None:
        """Raise AssertionError if allocated, lent and free resources do not add up."""
        total = sum((amounts for amounts, _ in self._allocated.values()), self.free + self._lent)
        assert total == self._total, f"the parts make {total}, there is {self._total}"
        gpus = [gpu for _, gpu_ids in self._allocated.values() for gpu in gpu_ids]
        assert len(gpus) == len(set(gpus)), f"a GPU is given twice: {gpus}"
        assert all(len(ids) == amounts.gpus for amounts, ids in self._allocated.values()), "GPUs are missing"


class SlotState(StrEnum):
    """HTCondor's slot states."""

    OWNER = "Owner"
    """Its policy takes no job (START is false), or it has not been evaluated yet."""
    UNCLAIMED = "Unclaimed"
    """It may take a job, and has none."""
    CLAIMED = "Claimed"
    """It is kept for one account, with a job or between two jobs."""
    PREEMPTING = "Preempting"
    """Its job has to leave, and is not gone yet."""
    DRAINED = "Drained"
    """Its node is drained: it takes no job."""


class Activity(StrEnum):
    """HTCondor's slot activities."""

    IDLE = "Idle"
    """No payload runs."""
    BUSY = "Busy"
    """The payload runs."""
    SUSPENDED = "Suspended"
    """The payload is suspended."""
    RETIRING = "Retiring"
    """The payload may run until its retirement time is over; in state Drained: other slots have jobs."""
    VACATING = "Vacating"
    """The payload has got SIGTERM, and has time to end."""
    KILLING = "Killing"
    """The payload gets SIGKILL."""


ACTIVITIES = {
    SlotState.OWNER: (Activity.IDLE,),
    SlotState.UNCLAIMED: (Activity.IDLE,),
    SlotState.CLAIMED: (
        Activity.IDLE,
        Activity.BUSY,
        Activity.SUSPENDED,
        Activity.RETIRING,
    ),
    SlotState.PREEMPTING: (Activity.VACATING, Activity.KILLING),
    SlotState.DRAINED: (Activity.RETIRING, Activity.IDLE),
}
"""The legal activities of each state."""

STATES = frozenset((state, activity) for state, activities in ACTIVITIES.items() for activity in activities)
"""All legal pairs of state and activity."""

RUNNING = frozenset({Activity.BUSY, Activity.RETIRING})
"""Activities of a claimed slot whose job runs."""


class Stopwatch(NamedTuple):
    """Accumulated time on the boot clock; `since_boot_s` None = stopped."""

    counted_s: float = 0.0
    since_boot_s: float | None = None

    @property
    def is_running(self) -> bool:
        """Whether it counts."""
        return self.since_boot_s is not None

    def seconds(self, now: Now) -> float:
        """Return the accumulated time."""
        return self.counted_s if self.since_boot_s is None else self.counted_s + now.boot_s - self.since_boot_s

    def running(self, runs: bool, now: Now) -> Stopwatch:
        """Return the watch started or stopped at `now`."""
        if runs == self.is_running:
            return self
        return Stopwatch(self.seconds(now), now.boot_s if runs else None)

    def reaches_boot_s(self, seconds: float) -> float:
        """Return when it reaches `seconds`: a past time or -NEVER if it has, NEVER if it is stopped before."""
        if self.since_boot_s is not None:
            return self.since_boot_s + (seconds - self.counted_s)
        return -NEVER if self.counted_s >= seconds else NEVER


class JobInSlot(NamedTuple):
    """The job in a slot; `started` None = it is being prepared."""

    started: Now | None = None
    run: Stopwatch = Stopwatch()
    suspended: Stopwatch = Stopwatch()


class Claim(NamedTuple):
    """A slot that is kept for one account over several jobs.

    `activations` counts its started jobs; `rank` is the slot's RANK of the present or last one.
    """

    holder: Account
    since: Now
    activations: int = 0
    rank: float = 0.0
    run: Stopwatch = Stopwatch()
    suspended: Stopwatch = Stopwatch()


@dataclass(frozen=True, slots=True)
class PreemptionOrder:
    """The server's order to free the slot for a better job."""

    reason: str


class DrainHow(StrEnum):
    """How much time a drain gives running jobs: HTCondor's schedules, and PEACEFUL for a pilot that ends."""

    PEACEFUL = "peaceful"
    """Until they end, unless the policy's retirement time is negative."""

    GRACEFUL = "graceful"
    """Retirement and vacate time."""

    QUICK = "quick"
    """Vacate time only."""

    FAST = "fast"
    """None."""


@dataclass(frozen=True, slots=True)
class Draining:
    """A drain; `originals_until_boot_s` is how long the jobs from before it may stay, None = not counted yet."""

    how: DrainHow
    reason: str
    originals_until_boot_s: float | None = None


class SlotStatus(NamedTuple):
    """The complete state of a slot.

    `must_leave`: the job has to leave for `reason`; a running job since PREEMPT was true. `by_command`: the job was
    suspended by an order, not by the policy. `stop_end_boot_s`: end of the vacate time. `polled_boot_s`: when the
    expressions were last evaluated; None = never. `last_claim_end`: when its last claim ended; None = it had none, as
    far as the node remembers.
    """

    state: SlotState
    activity: Activity
    entered_state: Now
    entered_activity: Now
    dynamic: bool = False
    claim: Claim | None = None
    job: JobInSlot | None = None
    preemption: PreemptionOrder | None = None
    draining: Draining | None = None
    must_leave: bool = False
    reason: str = ""
    by_command: bool = False
    hold: JobHold | None = None
    stop_end_boot_s: float = NEVER
    polled_boot_s: float | None = None
    last_claim_end: datetime | None = None
    deleted: bool = False

    @property
    def in_retirement(self) -> bool:
        """Whether its job may run only until its retirement ends."""
        return self.must_leave or self.preemption is not None or self.draining is not None

    @property
    def has_processes(self) -> bool:
        """Whether it is claimed and its job has processes, running or suspended."""
        return self.state is SlotState.CLAIMED and (self.activity in RUNNING or self.activity is Activity.SUSPENDED)

    @property
    def retirement_reason(self) -> str:
        """Why its job has to leave, for people."""
        if self.must_leave:
            return self.reason
        if self.preemption is not None:
            return self.preemption.reason
        return self.draining.reason if self.draining is not None else ""

    def entered(self, state: SlotState, activity: Activity, now: Now, **changes: Any) -> SlotStatus:
        """Return the slot in another state or activity, with its times and stopwatches updated."""
        new_state = state is not self.state
        if not new_state and activity is self.activity:
            return self._replace(**changes) if changes else self
        changes.setdefault("entered_state", now if new_state else self.entered_state)
        # The poll interval depends on the state; a job that starts gets a full one.
        if new_state or activity is Activity.BUSY:
            changes["polled_boot_s"] = now.boot_s
        job, claim = changes.get("job", self.job), changes.get("claim", self.claim)
        if job is not None and claim is not None:
            runs, is_suspended = state is SlotState.CLAIMED and activity in RUNNING, activity is Activity.SUSPENDED
            changes["job"] = job._replace(**_watches(job, runs, is_suspended, now))
            changes["claim"] = claim._replace(**_watches(claim, runs, is_suspended, now))
        return self._replace(state=state, activity=activity, entered_activity=now, **changes)

    def validate(self) -> None:
        """Raise AssertionError if the fields contradict each other."""
        assert (self.state, self.activity) in STATES, f"a slot is never {self.state}/{self.activity}"
        held = self.state in (SlotState.CLAIMED, SlotState.PREEMPTING)
        assert held == (self.claim is not None), f"{self.state} with claim {self.claim}"
        assert held or self.job is None, f"a job in a slot in state {self.state}"
        assert held or not (self.must_leave or self.preemption), f"{self.state} with an order to leave"
        assert self.state is not SlotState.PREEMPTING or self.job is not None, "nothing to preempt"
        assert not self.has_processes or (self.job is not None and self.job.started), f"{self.activity} without a job"
        assert (self.stop_end_boot_s < NEVER) == (self.activity is Activity.VACATING), "vacate time without end"
        assert not self.by_command or self.activity is Activity.SUSPENDED, f"suspended by command, and {self.activity}"
        assert self.state is not SlotState.DRAINED or self.draining is not None, "drained without a drain"
        assert not self.deleted or (self.dynamic and not held), "a slot that is not free is gone"
        runs = self.has_processes and self.activity in RUNNING
        for watched in (self.job, self.claim):
            if watched is not None:
                assert (watched.run.since_boot_s is not None) == runs, f"{self.activity}, and its run time is wrong"
                is_suspended = watched.suspended.since_boot_s is not None
                assert is_suspended == (self.activity is Activity.SUSPENDED), f"{self.activity}, and its watch is wrong"


def _watches(value: JobInSlot | Claim, runs: bool, is_suspended: bool, now: Now) -> dict[str, Stopwatch]:
    """Return the stopwatches of a job or claim as the activity demands."""
    return {"run": value.run.running(runs, now), "suspended": value.suspended.running(is_suspended, now)}
