"""All that is known of a slot at one moment: its state, its claim, the job in it, and what is wanted of it.

Rules
-----
Values only, and what must hold of them; a slot's next status is decided in `slot_steps`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, TypeVar

from pilotage_pilot.core.jobs import Account, HoldWish
from pilotage_pilot.core.moment import Moment
from pilotage_pilot.core.slot_judge import NEVER
from pilotage_pilot.core.slot_states import RUNNING, STATES, Activity, SlotState


@dataclass(frozen=True, slots=True)
class Stopwatch:
    """How long something has gone on in all, on the boot clock; `since_boot_s` None = it stands still."""

    counted_s: float = 0.0
    since_boot_s: float | None = None

    @property
    def is_running(self) -> bool:
        """Whether it does not stand still."""
        return self.since_boot_s is not None

    def seconds(self, now: Moment) -> float:
        """Return what it shows."""
        return self.counted_s if self.since_boot_s is None else self.counted_s + now.boot_s - self.since_boot_s

    def running(self, runs: bool, now: Moment) -> Stopwatch:
        """Return the watch so that it runs, or stands still, from now on."""
        if runs == self.is_running:
            return self
        return Stopwatch(self.seconds(now), now.boot_s if runs else None)

    def reaches_boot_s(self, seconds: float) -> float:
        """Return when it shows so much: in the past, if it does; NEVER, if it stands still before."""
        if self.since_boot_s is not None:
            return self.since_boot_s + (seconds - self.counted_s)
        return -NEVER if self.counted_s >= seconds else NEVER


@dataclass(frozen=True, slots=True)
class JobInSlot:
    """The job in a slot: since when its payload runs (None = it is still made ready), and for how long in all."""

    started: Moment | None = None
    run: Stopwatch = Stopwatch()
    suspended: Stopwatch = Stopwatch()


@dataclass(frozen=True, slots=True)
class Claim:
    """A slot held for one account over several jobs.

    `activations`: how many of its jobs have started. `rank`: what the slot's RANK is of the present or last one.
    """

    holder: Account
    since: Moment
    activations: int = 0
    rank: float = 0.0
    run: Stopwatch = Stopwatch()
    suspended: Stopwatch = Stopwatch()


@dataclass(frozen=True, slots=True)
class PreemptionOrder:
    """The server's wish to have the slot for a better job."""

    reason: str


class DrainHow(StrEnum):
    """What a drain leaves to the jobs that run: HTCondor's words, and one for a node that ends by itself."""

    PEACEFUL = "peaceful"
    """They run to their end, unless the policy gives them less than no time."""

    GRACEFUL = "graceful"
    """Retirement and vacate time."""

    QUICK = "quick"
    """Vacate time only."""

    FAST = "fast"
    """Nothing."""


@dataclass(frozen=True, slots=True)
class Draining:
    """A drain under way; `originals_until_boot_s` None = nobody has counted how long the jobs may stay."""

    how: DrainHow
    reason: str
    originals_until_boot_s: float | None = None


@dataclass(frozen=True, slots=True)
class SlotStatus:
    """A slot at one moment.

    `must_leave`: there is no way back for the job, for `reason`; while it runs, since PREEMPT has been true of it.
    `by_command`: the job is suspended because somebody wanted it. `stop_end_boot_s`: when a vacating job's time is
    over. `polled_boot_s`: since when its expressions have not been looked at; None = they never were.
    """

    state: SlotState
    activity: Activity
    entered_state: Moment
    entered_activity: Moment
    dynamic: bool = False
    claim: Claim | None = None
    job: JobInSlot | None = None
    preemption: PreemptionOrder | None = None
    draining: Draining | None = None
    must_leave: bool = False
    reason: str = ""
    by_command: bool = False
    hold: HoldWish | None = None
    stop_end_boot_s: float = NEVER
    polled_boot_s: float | None = None
    deleted: bool = False

    @property
    def in_retirement(self) -> bool:
        """Whether its job runs on only for as long as its retirement lasts."""
        return self.must_leave or self.preemption is not None or self.draining is not None

    @property
    def has_processes(self) -> bool:
        """Whether it is claimed and its job has processes, running or stopped."""
        return self.state is SlotState.CLAIMED and (self.activity in RUNNING or self.activity is Activity.SUSPENDED)

    @property
    def retirement_reason(self) -> str:
        """Why its job has to go, for people."""
        if self.must_leave:
            return self.reason
        if self.preemption is not None:
            return self.preemption.reason
        return self.draining.reason if self.draining is not None else ""

    def entered(self, state: SlotState, activity: Activity, now: Moment, **changes: Any) -> SlotStatus:
        """Return the slot in another state or activity, with its clocks and watches turned accordingly."""
        new_state = state is not self.state
        if not new_state and activity is self.activity:
            return replace(self, **changes) if changes else self
        changes.setdefault("entered_state", now if new_state else self.entered_state)
        # The interval between two looks is another one; a job that has just begun to run is given a whole one.
        if new_state or activity is Activity.BUSY:
            changes["polled_boot_s"] = now.boot_s
        job, claim = changes.get("job", self.job), changes.get("claim", self.claim)
        if job is not None and claim is not None:
            runs, stands = state is SlotState.CLAIMED and activity in RUNNING, activity is Activity.SUSPENDED
            changes |= {"job": _watched(job, runs, stands, now), "claim": _watched(claim, runs, stands, now)}
        return replace(self, state=state, activity=activity, entered_activity=now, **changes)

    def validate(self) -> None:
        """Raise AssertionError where what is known of the slot does not go together."""
        assert (self.state, self.activity) in STATES, f"a slot is never {self.state}/{self.activity}"
        held = self.state in (SlotState.CLAIMED, SlotState.PREEMPTING)
        assert held == (self.claim is not None), f"{self.state} with claim {self.claim}"
        assert held or self.job is None, f"a job in a slot that is {self.state}"
        assert held or not (self.must_leave or self.preemption), f"{self.state} and somebody waits for it to leave"
        assert self.state is not SlotState.PREEMPTING or self.job is not None, "nothing to preempt"
        assert not self.has_processes or (self.job is not None and self.job.started), f"{self.activity} without a job"
        assert (self.stop_end_boot_s < NEVER) == (self.activity is Activity.VACATING), "vacate time without end"
        assert not self.by_command or self.activity is Activity.SUSPENDED, f"suspended by command, and {self.activity}"
        assert self.state is not SlotState.DRAINED or self.draining is not None, "drained by nobody"
        assert not self.deleted or (self.dynamic and not held), "a slot that is not free is gone"
        self._validate_watches()

    def _validate_watches(self) -> None:
        runs = self.has_processes and self.activity in RUNNING
        for watched in (self.job, self.claim):
            if watched is not None:
                assert (watched.run.since_boot_s is not None) == runs, f"{self.activity}, and its run time is wrong"
                stands = watched.suspended.since_boot_s is not None
                assert stands == (self.activity is Activity.SUSPENDED), f"{self.activity}, and its watch is wrong"


_Watched = TypeVar("_Watched", JobInSlot, Claim)


def _watched(value: _Watched, runs: bool, stands: bool, now: Moment) -> _Watched:
    """Return a job or claim with its watches running as its slot's activity says."""
    if value.run.is_running == runs and value.suspended.is_running == stands:
        return value
    return replace(value, run=value.run.running(runs, now), suspended=value.suspended.running(stands, now))
