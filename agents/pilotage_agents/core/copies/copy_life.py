"""What a copy's status at its target means for the original: a table.

Rules
-----
A target that says nothing of a copy decides nothing. A copy that is no more without having ended by itself lets its
original wait again, and is a failure of its route. One whose original was removed, held or rescheduled meanwhile is
stopped, and is neither failure nor success. Of one that its target holds the server is told first: it holds the
original for the target's reason and wants the copy no more, and knows why whatever becomes of the router. One that
was never seen is looked for `Patience` long. Source: HTCondor's Job Router.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import NamedTuple, Self

from pilotage_agents.router.route_edges import CopyOutcome, CopyState, CopyStatus, KnownCopy

NOT_SEEN = CopyStatus(CopyState.IDLE)
"""Of a copy that nobody has asked after yet."""


STOPPED = "KILLED"
"""The outcome of a copy whose end is not its own."""

HELD_THERE = "its target holds the copy"
"""Why a job is held for a copy of which its target does not say why it holds it."""


class Key(NamedTuple):
    """What tells a copy apart: the attempt of its original."""

    job_id: int
    attempt: int


class Weight(StrEnum):
    """What the end of a copy says of its route."""

    SUCCESS = "success"
    FAILURE = "failure"
    NEITHER = "neither"


class Wish(StrEnum):
    """What is to become of a copy."""

    KEEP = "keep"
    STOP = "stop"
    """Its original was removed, held or rescheduled."""
    HOLD = "hold"
    """Its target holds it, and the original is to be held; then its original does not want it any more."""


class Deed(StrEnum):
    """What is to be done about a copy."""

    NOTHING = "nothing"
    TELL = "tell"
    """Say where it is, if that was not said before."""
    CANCEL = "cancel"
    HOLD = "hold"
    """Say that its target holds it."""
    COLLECT = "collect"
    """Its payload has ended: bring home what it left."""
    END = "end"
    """It is no more."""


_KEPT: Mapping[CopyState, Deed] = {
    CopyState.IDLE: Deed.NOTHING,
    CopyState.RUNNING: Deed.TELL,
    CopyState.SUSPENDED: Deed.TELL,
    CopyState.HELD: Deed.HOLD,
    CopyState.COMPLETED: Deed.COLLECT,
    CopyState.GONE: Deed.END,
    CopyState.UNKNOWN: Deed.NOTHING,
}
_DEEDS: Mapping[Wish, Mapping[CopyState, Deed]] = {
    Wish.KEEP: _KEPT,
    Wish.STOP: dict.fromkeys(CopyState, Deed.CANCEL) | {CopyState.COMPLETED: Deed.END, CopyState.GONE: Deed.END},
    Wish.HOLD: dict.fromkeys(CopyState, Deed.NOTHING) | {CopyState.COMPLETED: Deed.COLLECT, CopyState.GONE: Deed.END},
}
"""What is to be done about a copy that is to be kept or to end, in each state."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a copy is looked for that its target does not have.

    `submitted`: from its submission, where the answer to that was lost. `adopted`: from the adoption, where nobody
    knows whether it was submitted at all.
    """

    submitted: timedelta
    adopted: timedelta


@dataclass(frozen=True, slots=True)
class HeldCopy:
    """A copy of a job that the router has still to bring to an end.

    `since` is when it was routed or adopted. `reference` "" = nobody knows what finds it at its target. `was_sent`:
    this router has asked the target to make it. `status` is the last that was known. `reason` says why it is to end.
    `outcome` is set once it is over, and is still to be told.
    """

    key: Key
    route: str
    target: str
    since: datetime
    reference: str = ""
    was_sent: bool = False
    status: CopyStatus = NOT_SEEN
    wish: Wish = Wish.KEEP
    reason: str = ""
    outcome: CopyOutcome | None = None

    @classmethod
    def adopted(cls, known: KnownCopy, now: datetime) -> Self:
        """Return a copy that the server says is ours."""
        state = CopyState.RUNNING if known.is_running else CopyState.IDLE
        return cls(
            Key(known.job_id, known.attempt),
            known.route,
            known.target,
            now,
            known.reference,
            status=CopyStatus(state),
            wish=Wish.STOP if known.unwanted else Wish.KEEP,
            reason=known.unwanted,
        )

    @property
    def name(self) -> str:
        """What the copy is called at its target."""
        return copy_name(self.key)

    @property
    def is_running(self) -> bool:
        """Whether it is not idle: also while what it left is brought home."""
        return self.status.state in (CopyState.RUNNING, CopyState.COMPLETED)

    @property
    def is_unwanted(self) -> bool:
        """Whether its original was taken away."""
        return self.wish is Wish.STOP

    def unwanted(self, reason: str) -> Self:
        """Return the copy as one that is to end because its original was taken away."""
        return replace(self, wish=Wish.STOP, reason=reason)

    def seen(self, status: CopyStatus) -> Self:
        """Return the copy with what its target says of it, if that is anything."""
        return self if status.state is CopyState.UNKNOWN else replace(self, status=status)


def copy_name(key: Key) -> str:
    """Return what a copy is called at its target: the same whenever the same attempt is asked for."""
    return f"pilotage-{key.job_id}-{key.attempt}"


def deed(copy: HeldCopy, status: CopyStatus) -> Deed:
    """Return what is to be done about a copy of which its target says this."""
    return _DEEDS[copy.wish][status.state]


def held(copy: HeldCopy, status: CopyStatus) -> HeldCopy:
    """Return a copy that its target holds: its original is to be held."""
    return replace(copy, status=status, wish=Wish.HOLD, reason=status.reason or HELD_THERE)


def gone(copy: HeldCopy) -> tuple[CopyOutcome, Weight]:
    """Return how a copy ended that is no more, as its status says, and what that says of its route."""
    status = copy.status
    match copy.wish:
        case Wish.STOP | Wish.HOLD:
            return CopyOutcome(STOPPED, status, copy.reason), Weight.NEITHER
        case Wish.KEEP:
            return CopyOutcome("EVICTED", status, status.reason or "the copy is gone"), Weight.FAILURE


def not_found(copy: HeldCopy, patience: Patience, now: datetime) -> tuple[CopyOutcome, Weight] | None:
    """Return how a copy ended of which its target knows nothing by its name; None = it is looked for still."""
    waited = now - copy.since
    status = CopyStatus(CopyState.GONE)
    if copy.was_sent and waited >= patience.submitted:
        reason = f"the submission was not answered, and no copy was seen for {waited.total_seconds():.0f} s"
        weight = Weight.FAILURE if copy.wish is Wish.KEEP else Weight.NEITHER
        return _over(copy, status, reason), weight
    if not copy.was_sent and waited >= patience.adopted:
        return _over(copy, status, "the copy was never submitted"), Weight.NEITHER
    return None


def _over(copy: HeldCopy, status: CopyStatus, reason: str) -> CopyOutcome:
    if copy.wish is not Wish.KEEP:
        return CopyOutcome(STOPPED, status, copy.reason)
    return CopyOutcome("EVICTED", status, reason)
