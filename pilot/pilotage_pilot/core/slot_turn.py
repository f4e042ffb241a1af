"""One event's turn at a slot: every deed that changes the slot, and what it wants done for it.

Rules
-----
A turn works on a copy: a step that fails has changed nothing. What is done is here; when, and after which event, is
in `slot_evaluation` and `slot_steps`. Whether a job's processes are to be stopped or to go on is the difference
between the slot before the turn and after it, so that no turn says both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from pilotage_pilot.core.jobs import HoldWish
from pilotage_pilot.core.moment import Moment
from pilotage_pilot.core.retirement import vacate_s
from pilotage_pilot.core.slot_evaluation import Deed, Look, first_that_fires
from pilotage_pilot.core.slot_events import (
    ContinueJob,
    DeleteSlot,
    EndClaim,
    KillJob,
    RefuseClaim,
    SlotEffect,
    StopJob,
    SuspendJob,
)
from pilotage_pilot.core.slot_judge import NEVER, Judge, holds
from pilotage_pilot.core.slot_states import Activity, SlotState
from pilotage_pilot.core.slot_status import SlotStatus

_LOOKED_AT_ONCE = frozenset({Activity.IDLE, Activity.RETIRING})
"""A slot that enters one of these is looked at again at once; the others wait for the next poll."""

_LARGEST_SUBCODE = 2**31 - 1
"""What the wire and HTCondor's ads have room for."""

_UNHELD: Mapping[str, Any] = {
    "claim": None,
    "job": None,
    "preemption": None,
    "must_leave": False,
    "reason": "",
    "hold": None,
    "stop_end_boot_s": NEVER,
}
"""What a slot forgets with its claim."""


class Turn:
    """A slot while one event moves it."""

    def __init__(self, status: SlotStatus, judge: Judge, now: Moment) -> None:
        self._before = status
        self._settled = False
        self.status = status
        self.judge = judge
        self.now = now
        self.said: list[SlotEffect] = []

    def change(self, **changes: Any) -> None:
        """Change what is known of the slot, but its state and activity."""
        self.status = replace(self.status, **changes)

    def enter(self, state: SlotState, activity: Activity, **changes: Any) -> None:
        """Put the slot into another state or activity."""
        if (state, activity) != (self.status.state, self.status.activity):
            self._settled = activity not in _LOOKED_AT_ONCE
        if activity is not Activity.SUSPENDED:
            changes["by_command"] = False
        self.status = self.status.entered(state, activity, self.now, **changes)

    def look(self) -> None:
        """Do what the slot's conditions want, until none fires or the slot has to be polled first."""
        while not self._settled:
            fired = first_that_fires(Look(self.status, self.judge, self.now))
            if fired is None:
                self._settled = True
            else:
                _DEEDS[fired.deed](self, fired.reason or self.status.retirement_reason)

    def run_on(self, **changes: Any) -> None:
        """Let the job's processes run: on their own, or for as long as the retirement lasts."""
        activity = Activity.RETIRING if self.status.in_retirement else Activity.BUSY
        self.enter(SlotState.CLAIMED, activity, **changes)

    def retire(self, reason: str) -> None:
        """Let the job run on for as long as its retirement lasts; there is no way back."""
        self.enter(SlotState.CLAIMED, Activity.RETIRING, must_leave=True, reason=reason)

    def end_retirement(self, reason: str) -> None:
        """Get a job out of the slot whose retirement is over; WANT_VACATE and WANT_HOLD count if PREEMPT is why."""
        if self.status.must_leave or holds(self.judge, "PREEMPT"):
            grace_s = vacate_s(self.judge) if holds(self.judge, "WANT_VACATE") else 0.0
            self._preempt(reason, grace_s, self._hold_wish())
        else:
            self.preempt(reason)

    def preempt(self, reason: str, *, hard: bool = False, longest_s: float = NEVER) -> None:
        """Get the job out of the slot, at once or within its vacate time and `longest_s`; then the claim ends."""
        if self.status.job is None:
            self.leave(reason)
        else:
            self._preempt(reason, 0.0 if hard else min(vacate_s(self.judge), longest_s), None)

    def _preempt(self, reason: str, grace_s: float, hold: HoldWish | None) -> None:
        self.change(must_leave=True, reason=reason, hold=hold)
        if grace_s <= 0:
            self.kill()
            return
        self.said.append(StopJob(grace_s, reason, hold))
        self.enter(SlotState.PREEMPTING, Activity.VACATING, stop_end_boot_s=self.now.boot_s + grace_s)

    def kill(self) -> None:
        """End what is left of the job that has to leave."""
        self.said.append(KillJob(self.status.reason, self.status.hold))
        self.enter(SlotState.PREEMPTING, Activity.KILLING, stop_end_boot_s=NEVER)

    def _hold_wish(self) -> HoldWish | None:
        if not holds(self.judge, "WANT_HOLD"):
            return None
        subcode = self.judge.number("WANT_HOLD_SUBCODE")
        code = int(subcode) if subcode is not None and abs(subcode) <= _LARGEST_SUBCODE else 0
        return HoldWish(self.judge.text("WANT_HOLD_REASON") or "the policy of its slot wants it held", code)

    def leave(self, reason: str) -> None:
        """End the claim: the slot is its owner's until it is looked at."""
        assert self.status.claim is not None, "nobody holds the slot that is left"
        self.said.append(EndClaim(self.status.claim, reason))
        self.enter(SlotState.OWNER, Activity.IDLE, **_UNHELD)

    def refuse(self, reason: str) -> None:
        """Have the slot as it was before the job that it was to take."""
        self.status = self._before
        self.said = [RefuseClaim(reason)]
        self._settled = True

    def delete(self) -> None:
        """Give the dynamic slot back."""
        self.change(deleted=True)
        self.said.append(DeleteSlot())
        self._settled = True

    def effects(self) -> tuple[SlotEffect, ...]:
        """Return what is wanted; the processes of a job that stays in the slot come first."""
        stood = self._before.activity is Activity.SUSPENDED
        stands = self.status.activity is Activity.SUSPENDED
        if stands and not stood:
            return (SuspendJob(), *self.said)
        if stood and not stands and self.status.has_processes:
            return (ContinueJob(), *self.said)
        return tuple(self.said)


def _entering(state: SlotState, activity: Activity) -> Callable[[Turn, str], None]:
    return lambda turn, _: turn.enter(state, activity)


_DEEDS: Mapping[Deed, Callable[[Turn, str], None]] = {
    Deed.END_RETIREMENT: Turn.end_retirement,
    Deed.RELEASE: Turn.preempt,
    Deed.RETIRE: Turn.retire,
    Deed.RETIRE_FOR_ORDER: _entering(SlotState.CLAIMED, Activity.RETIRING),
    Deed.UNRETIRE: _entering(SlotState.CLAIMED, Activity.BUSY),
    Deed.SUSPEND: _entering(SlotState.CLAIMED, Activity.SUSPENDED),
    Deed.CONTINUE: lambda turn, _: turn.run_on(),
    Deed.KILL: lambda turn, _: turn.kill(),
    Deed.BE_OWNED: _entering(SlotState.OWNER, Activity.IDLE),
    Deed.BE_UNCLAIMED: _entering(SlotState.UNCLAIMED, Activity.IDLE),
    Deed.BE_DRAINED: _entering(SlotState.DRAINED, Activity.RETIRING),
    Deed.BE_DELETED: lambda turn, _: turn.delete(),
}
"""What each deed does; with the reason, for people."""
