"""What happens to a slot, and what its machine wants done: the only things that it hears and says.

Rules
-----
Events are past tense, effects imperative; frozen and complete. Which attempt is in the slot, and over which wire an
order came, is not known here.
"""

from __future__ import annotations

from dataclasses import dataclass

from pilotage_pilot.core.jobs import Account, HoldWish
from pilotage_pilot.core.slot_status import Claim, DrainHow


@dataclass(frozen=True, slots=True)
class Polled:
    """The slot's alarm is due, or something that its expressions look at has changed."""


@dataclass(frozen=True, slots=True)
class Claimed:
    """A job of this account was granted to the slot; `rank` is what the slot's RANK is of it."""

    holder: Account
    rank: float = 0.0


@dataclass(frozen=True, slots=True)
class JobStarted:
    """The job's payload runs."""


@dataclass(frozen=True, slots=True)
class JobEnded:
    """Nothing of the job is in the slot any more; or it never started, and will not."""


@dataclass(frozen=True, slots=True)
class PreemptionOrdered:
    """The server wants the slot for a better job."""

    reason: str


@dataclass(frozen=True, slots=True)
class PreemptionWithdrawn:
    """The server does not want it any more."""


@dataclass(frozen=True, slots=True)
class ReleaseOrdered:
    """The claim ends; a job in the slot has its vacate time and no retirement."""

    reason: str


@dataclass(frozen=True, slots=True)
class KillOrdered:
    """The job itself is to end (a limit, its owner, its lease); `hard` = at once, else within `grace_s`.

    Without `grace_s` it has its vacate time. The claim ends with the job.
    """

    reason: str
    hard: bool = False
    grace_s: float | None = None


@dataclass(frozen=True, slots=True)
class SuspendOrdered:
    """Somebody wants the job suspended until he says otherwise."""


@dataclass(frozen=True, slots=True)
class ContinueOrdered:
    """Somebody wants the job to go on, whoever suspended it."""


@dataclass(frozen=True, slots=True)
class DrainOrdered:
    """The node drains, for good: a pilot that does ends."""

    how: DrainHow
    reason: str


@dataclass(frozen=True, slots=True)
class DrainTimeCounted:
    """Until then, on the boot clock, a job that was there before a graceful drain may stay on this node."""

    until_boot_s: float


@dataclass(frozen=True, slots=True)
class NodeDrained:
    """All slots of the node are drained."""


Order = PreemptionOrdered | ReleaseOrdered | KillOrdered | SuspendOrdered | ContinueOrdered
"""What is wanted of a claim; comes too late where the claim has ended meanwhile."""

Drain = DrainOrdered | DrainTimeCounted | NodeDrained
"""What happens to the whole node."""

SlotEvent = Polled | Claimed | JobStarted | JobEnded | PreemptionWithdrawn | Order | Drain
"""All that a slot's machine hears."""


@dataclass(frozen=True, slots=True)
class SuspendJob:
    """Stop all processes of the job for a while."""


@dataclass(frozen=True, slots=True)
class ContinueJob:
    """Let all processes of the job go on."""


@dataclass(frozen=True, slots=True)
class StopJob:
    """Ask the job, which may be suspended or not started yet, to end itself within `grace_s`; `hold` = hold it then."""

    grace_s: float
    reason: str
    hold: HoldWish | None = None


@dataclass(frozen=True, slots=True)
class KillJob:
    """End all processes of the job, or what is done to start it."""

    reason: str
    hold: HoldWish | None = None


@dataclass(frozen=True, slots=True)
class RefuseClaim:
    """Give the granted job back; the slot is as it was before."""

    reason: str


@dataclass(frozen=True, slots=True)
class EndClaim:
    """Note that this claim is over."""

    claim: Claim
    reason: str


@dataclass(frozen=True, slots=True)
class DeleteSlot:
    """Give the dynamic slot's part back; its machine hears nothing any more."""


JobEffect = SuspendJob | ContinueJob | StopJob | KillJob
"""What a slot's machine wants done with the job in it."""

SlotEffect = JobEffect | RefuseClaim | EndClaim | DeleteSlot
"""All that a slot's machine says."""
