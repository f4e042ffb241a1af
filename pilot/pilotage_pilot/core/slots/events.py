"""The events of a slot and the effects that its machine returns.

Events are past tense, effects imperative; both frozen and complete. A slot's machine does not know the attempt in the
slot, or where an order came from.
"""

from __future__ import annotations

from dataclasses import dataclass

from pilotage.values.accounts import Account
from pilotage.values.attempts import JobHold
from pilotage_pilot.core.slots.states import Claim, DrainHow


@dataclass(frozen=True, slots=True)
class Polled:
    """The slot's alarm is due, or an input of its expressions has changed."""


@dataclass(frozen=True, slots=True)
class ClaimGranted:
    """A job of account `holder` was granted to the slot; `rank` is the slot's RANK of it."""

    holder: Account
    rank: float = 0.0


@dataclass(frozen=True, slots=True)
class JobStarted:
    """The job's payload runs."""


@dataclass(frozen=True, slots=True)
class JobEnded:
    """The job has left the slot, or could not be started."""


@dataclass(frozen=True, slots=True)
class PreemptionOrdered:
    """The server needs the slot for a better job."""

    reason: str


@dataclass(frozen=True, slots=True)
class PreemptionWithdrawn:
    """The server does not need the slot any more."""


@dataclass(frozen=True, slots=True)
class ReleaseOrdered:
    """The claim ends; a job in the slot gets its vacate time and no retirement."""

    reason: str


@dataclass(frozen=True, slots=True)
class KillOrdered:
    """The job has to end (a limit, its owner, its lease): `hard` = at once, else within `grace_s` or its vacate time.

    The claim ends with the job.
    """

    reason: str
    hard: bool = False
    grace_s: float | None = None


@dataclass(frozen=True, slots=True)
class SuspendOrdered:
    """The job has to be suspended until `ContinueOrdered`."""


@dataclass(frozen=True, slots=True)
class ContinueOrdered:
    """The job has to continue, whatever suspended it."""


@dataclass(frozen=True, slots=True)
class DrainOrdered:
    """The node drains; the pilot ends after it."""

    how: DrainHow
    reason: str


@dataclass(frozen=True, slots=True)
class DrainTimeCounted:
    """Jobs from before a graceful drain may stay until this time on the boot clock."""

    until_boot_s: float


@dataclass(frozen=True, slots=True)
class NodeDrained:
    """All slots of the node are drained."""


SlotOrder = PreemptionOrdered | ReleaseOrdered | KillOrdered | SuspendOrdered | ContinueOrdered
"""Orders for a claim; late if the claim has ended."""

DrainEvent = DrainOrdered | DrainTimeCounted | NodeDrained
"""Events of the whole node."""

SlotEvent = Polled | ClaimGranted | JobStarted | JobEnded | PreemptionWithdrawn | SlotOrder | DrainEvent
"""All events of a slot."""


@dataclass(frozen=True, slots=True)
class SuspendJob:
    """Suspend the processes of the job."""


@dataclass(frozen=True, slots=True)
class ContinueJob:
    """Resume the processes of the job."""


@dataclass(frozen=True, slots=True)
class StopJob:
    """Stop the job, which may be suspended or not started, within `grace_s`; `hold` = hold it then."""

    grace_s: float
    reason: str
    hold: JobHold | None = None


@dataclass(frozen=True, slots=True)
class KillJob:
    """Kill the processes of the job, or stop its preparation."""

    reason: str
    hold: JobHold | None = None


@dataclass(frozen=True, slots=True)
class RefuseClaim:
    """Return the granted job; the slot is unchanged."""

    reason: str


@dataclass(frozen=True, slots=True)
class EndClaim:
    """The claim is over."""

    claim: Claim
    reason: str


@dataclass(frozen=True, slots=True)
class DeleteSlot:
    """Release the dynamic slot's resources; its machine accepts no more events."""


JobEffect = SuspendJob | ContinueJob | StopJob | KillJob
"""Effects on the job in the slot."""

SlotEffect = JobEffect | RefuseClaim | EndClaim | DeleteSlot
"""All effects of a slot's machine."""
