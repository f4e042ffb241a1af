"""One slot of a node: its states and activities, and which event may move it in which of them.

Rules
-----
Every change of a slot goes through `SlotMachine.handle`: the table below says by state, activity and event which step
is taken (`slot_steps`), then the slot's conditions are looked at (`slot_evaluation`) and done (`slot_turn`). An event
that the table lacks is an error and changes nothing. Orders may cross with a claim's end: one that comes too late is
in the table, and does nothing. Source: the states and transitions of HTCondor's startd.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from pilotage_pilot.core import slot_events as ev
from pilotage_pilot.core import slot_steps as steps
from pilotage_pilot.core.moment import Moment
from pilotage_pilot.core.slot_evaluation import next_look_boot_s
from pilotage_pilot.core.slot_judge import Judge
from pilotage_pilot.core.slot_states import ACTIVITIES, STATES, Activity, SlotState
from pilotage_pilot.core.slot_status import Claim, Draining, JobInSlot, PreemptionOrder, SlotStatus
from pilotage_pilot.core.slot_turn import Turn

_Pair = tuple[SlotState, Activity]
_Step = Callable[[Turn, Any], None]


def _pairs(state: SlotState, *activities: Activity) -> frozenset[_Pair]:
    return frozenset((state, activity) for activity in activities or ACTIVITIES[state])


_FREE = _pairs(SlotState.OWNER) | _pairs(SlotState.UNCLAIMED)
_CLAIMED = _pairs(SlotState.CLAIMED)
_IDLE_CLAIM = _pairs(SlotState.CLAIMED, Activity.IDLE)
_PROCESSES = _pairs(SlotState.CLAIMED, Activity.BUSY, Activity.SUSPENDED, Activity.RETIRING)
_SUSPENDED = _pairs(SlotState.CLAIMED, Activity.SUSPENDED)
_PREEMPTING = _pairs(SlotState.PREEMPTING)
_VACATING = _pairs(SlotState.PREEMPTING, Activity.VACATING)
_DRAINING = _pairs(SlotState.DRAINED, Activity.RETIRING)
_DRAINED = _pairs(SlotState.DRAINED, Activity.IDLE)

_ORDERS: tuple[tuple[type[ev.SlotEvent], frozenset[_Pair], _Step], ...] = (
    (ev.PreemptionOrdered, _CLAIMED, steps.preemption_ordered),
    (ev.PreemptionWithdrawn, _CLAIMED, steps.preemption_withdrawn),
    (ev.ReleaseOrdered, _CLAIMED, steps.release),
    (ev.KillOrdered, _CLAIMED, steps.kill),
    (ev.SuspendOrdered, _PROCESSES, steps.suspend),
    (ev.ContinueOrdered, _SUSPENDED, steps.go_on),
)
"""Where an order does something; everywhere else it comes too late."""

_ROWS: tuple[tuple[type[ev.SlotEvent], frozenset[_Pair], _Step], ...] = (
    *((order, STATES, steps.nothing) for order, _, _ in _ORDERS),
    *_ORDERS,
    (ev.KillOrdered, _VACATING, steps.kill_sooner),
    (ev.Polled, STATES, steps.polled),
    (ev.Claimed, _FREE | _IDLE_CLAIM, steps.claimed),
    (ev.JobStarted, _IDLE_CLAIM | _PREEMPTING, steps.job_started),
    (ev.JobEnded, _CLAIMED | _PREEMPTING, steps.job_ended),
    (ev.DrainOrdered, STATES, steps.drain),
    (ev.DrainTimeCounted, STATES, steps.drain_time_counted),
    (ev.NodeDrained, _DRAINING, steps.node_drained),
    (ev.NodeDrained, _DRAINED, steps.nothing),
)


def _table(
    rows: Iterable[tuple[type[ev.SlotEvent], frozenset[_Pair], _Step]],
) -> dict[tuple[SlotState, Activity, type[ev.SlotEvent]], _Step]:
    return {(state, activity, event): step for event, pairs, step in rows for state, activity in pairs}


TRANSITIONS = _table(_ROWS)
"""What is done first: state, activity and kind of event → step. A later row wins over an earlier one."""


class SlotMachine:
    """A slot, moved by what happens to it.

    A static slot begins as its owner's and wants to be polled at once; a dynamic one is made for a job and wants to be
    claimed at once, since one that nobody holds is deleted.
    """

    def __init__(self, now: Moment, *, dynamic: bool = False) -> None:
        state = SlotState.UNCLAIMED if dynamic else SlotState.OWNER
        self._status = SlotStatus(state, Activity.IDLE, now, now, dynamic=dynamic)

    @property
    def state(self) -> SlotState:
        """Its state."""
        return self._status.state

    @property
    def activity(self) -> Activity:
        """Its activity."""
        return self._status.activity

    @property
    def entered_state(self) -> Moment:
        """Since when it has its state, or its present claim."""
        return self._status.entered_state

    @property
    def entered_activity(self) -> Moment:
        """Since when it has both its state and its activity."""
        return self._status.entered_activity

    @property
    def claim(self) -> Claim | None:
        """Who holds it; None = nobody."""
        return self._status.claim

    @property
    def job(self) -> JobInSlot | None:
        """The job in it, or made ready for it; None = there is none."""
        return self._status.job

    @property
    def preemption(self) -> PreemptionOrder | None:
        """Who waits for it; None = nobody."""
        return self._status.preemption

    @property
    def draining(self) -> Draining | None:
        """The drain of its node; None = the node does not drain."""
        return self._status.draining

    @property
    def deleted(self) -> bool:
        """Whether it was a dynamic slot and is gone."""
        return self._status.deleted

    def handle(self, event: ev.SlotEvent, judge: Judge, now: Moment) -> tuple[ev.SlotEffect, ...]:
        """Return what is to be done for the slot after `event`.

        Raises
        ------
        IllegalSlotEventError
            When the slot cannot have had it; nothing has changed then.
        """
        before = self._status
        step = TRANSITIONS.get((before.state, before.activity, type(event)))
        if step is None or before.deleted:
            raise steps.IllegalSlotEventError(before, event)
        turn = Turn(before, judge, now)
        step(turn, event)
        turn.look()
        self._status = turn.status
        return turn.effects()

    def alarm_boot_s(self, judge: Judge) -> float:
        """Return when, on the boot clock, it wants to be polled if nothing happens before; NEVER = it does not."""
        return next_look_boot_s(self._status, judge)

    def validate(self) -> None:
        """Raise AssertionError where what is known of the slot does not go together."""
        self._status.validate()
