"""One slot as a state machine: the transitions that each event causes, and their effects.

Rules
-----
Every change goes through `SlotMachine.handle`. The table gives the step for a state, activity and event; then the
conditions are evaluated and their actions applied, unless the slot has to be polled first.
An event that the table lacks is an error and changes nothing; a step that fails changes nothing either, since it works
on a copy. Orders may cross with a claim's end: a late order is in the table and does nothing.
Suspending and resuming is the difference between the slot before and after the transition, so that no transition asks
for both. Source: states and transitions of HTCondor's startd.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from pilotage.errors import StateConflictError
from pilotage.values.attempts import JobHold
from pilotage_pilot.core.model import Now
from pilotage_pilot.core.slots import events as ev
from pilotage_pilot.core.slots.conditions import (
    SlotAction,
    SlotSnapshot,
    first_firing,
    next_poll_boot_s,
    vacate_s,
    worklife_end_boot_s,
)
from pilotage_pilot.core.slots.evaluator import NEVER, SlotEvaluator, is_true
from pilotage_pilot.core.slots.events import (
    ContinueJob,
    DeleteSlot,
    EndClaim,
    KillJob,
    RefuseClaim,
    SlotEffect,
    StopJob,
    SuspendJob,
)
from pilotage_pilot.core.slots.states import (
    ACTIVITIES,
    STATES,
    Activity,
    Claim,
    DrainHow,
    Draining,
    JobInSlot,
    PreemptionOrder,
    SlotState,
    SlotStatus,
)

_EVALUATED_AT_ONCE = frozenset({Activity.IDLE, Activity.RETIRING})
"""Activities whose conditions are evaluated at once; others wait for the next poll."""

_LARGEST_SUBCODE = 2**31 - 1
"""The largest value on the wire and in HTCondor's ads."""

_WITHOUT_CLAIM: Mapping[str, Any] = {
    "claim": None,
    "job": None,
    "preemption": None,
    "must_leave": False,
    "reason": "",
    "hold": None,
    "stop_end_boot_s": NEVER,
}
"""The fields that are reset with the claim."""


class SlotTransition:
    """The transition of a slot that one event causes."""

    def __init__(self, status: SlotStatus, evaluator: SlotEvaluator, now: Now) -> None:
        self._before = status
        self._settled = False
        self.status = status
        self.evaluator = evaluator
        self.now = now
        self.pending: list[SlotEffect] = []

    def change(self, **changes: Any) -> None:
        """Change fields of the slot other than state and activity."""
        self.status = self.status._replace(**changes)

    def enter(self, state: SlotState, activity: Activity, **changes: Any) -> None:
        """Enter another state or activity."""
        if (state, activity) != (self.status.state, self.status.activity):
            self._settled = activity not in _EVALUATED_AT_ONCE
        if activity is not Activity.SUSPENDED:
            changes["by_command"] = False
        self.status = self.status.entered(state, activity, self.now, **changes)

    def apply_conditions(self) -> None:
        """Apply the actions of the conditions that fire, until none fires or the slot has to be polled first."""
        while not self._settled:
            fired = first_firing(SlotSnapshot(self.status, self.evaluator, self.now))
            if fired is None:
                self._settled = True
            else:
                _ACTIONS[fired.action](self, fired.reason or self.status.retirement_reason)

    def resume(self, **changes: Any) -> None:
        """Let the job run, until its retirement ends if it has to leave."""
        activity = Activity.RETIRING if self.status.in_retirement else Activity.BUSY
        self.enter(SlotState.CLAIMED, activity, **changes)

    def retire(self, reason: str) -> None:
        """Let the job run until its retirement ends; it has to leave then."""
        self.enter(SlotState.CLAIMED, Activity.RETIRING, must_leave=True, reason=reason)

    def end_retirement(self, reason: str) -> None:
        """Preempt a job whose retirement is over; WANT_VACATE and WANT_HOLD apply if PREEMPT is the cause."""
        if self.status.must_leave or is_true(self.evaluator, "PREEMPT"):
            grace_s = vacate_s(self.evaluator) if is_true(self.evaluator, "WANT_VACATE") else 0.0
            self._preempt(reason, grace_s, self._hold_request())
        else:
            self.preempt(reason)

    def preempt(self, reason: str, *, hard: bool = False, longest_s: float = NEVER) -> None:
        """Remove the job at once (`hard`), or within its vacate time and `longest_s`; then the claim ends."""
        if self.status.job is None:
            self.end_claim(reason)
        else:
            self._preempt(reason, 0.0 if hard else min(vacate_s(self.evaluator), longest_s), None)

    def _preempt(self, reason: str, grace_s: float, hold: JobHold | None) -> None:
        self.change(must_leave=True, reason=reason, hold=hold)
        if grace_s <= 0:
            self.kill()
            return
        self.pending.append(StopJob(grace_s, reason, hold))
        self.enter(SlotState.PREEMPTING, Activity.VACATING, stop_end_boot_s=self.now.boot_s + grace_s)

    def kill(self) -> None:
        """Kill the job that has to leave."""
        self.pending.append(KillJob(self.status.reason, self.status.hold))
        self.enter(SlotState.PREEMPTING, Activity.KILLING, stop_end_boot_s=NEVER)

    def _hold_request(self) -> JobHold | None:
        if not is_true(self.evaluator, "WANT_HOLD"):
            return None
        subcode = self.evaluator.number("WANT_HOLD_SUBCODE")
        code = int(subcode) if subcode is not None and abs(subcode) <= _LARGEST_SUBCODE else 0
        return JobHold(self.evaluator.text("WANT_HOLD_REASON") or "the policy of its slot wants it held", code)

    def end_claim(self, reason: str) -> None:
        """End the claim: the slot is in state Owner until it is polled."""
        assert self.status.claim is not None, "the slot has no claim to end"
        self.pending.append(EndClaim(self.status.claim, reason))
        self.enter(SlotState.OWNER, Activity.IDLE, **_WITHOUT_CLAIM, last_claim_end=self.now.utc)

    def refuse(self, reason: str) -> None:
        """Refuse the granted job and restore the slot."""
        self.status = self._before
        self.pending = [RefuseClaim(reason)]
        self._settled = True

    def delete(self) -> None:
        """Delete the dynamic slot."""
        self.change(deleted=True)
        self.pending.append(DeleteSlot())
        self._settled = True

    def effects(self) -> tuple[SlotEffect, ...]:
        """Return the effects; suspending or continuing the job comes first."""
        was_suspended = self._before.activity is Activity.SUSPENDED
        is_suspended = self.status.activity is Activity.SUSPENDED
        if is_suspended and not was_suspended:
            return (SuspendJob(), *self.pending)
        if was_suspended and not is_suspended and self.status.has_processes:
            return (ContinueJob(), *self.pending)
        return tuple(self.pending)


def _entering(state: SlotState, activity: Activity) -> Callable[[SlotTransition, str], None]:
    return lambda transition, _: transition.enter(state, activity)


_ACTIONS: Mapping[SlotAction, Callable[[SlotTransition, str], None]] = {
    SlotAction.END_RETIREMENT: SlotTransition.end_retirement,
    SlotAction.RELEASE: SlotTransition.preempt,
    SlotAction.RETIRE: SlotTransition.retire,
    SlotAction.RETIRE_FOR_ORDER: _entering(SlotState.CLAIMED, Activity.RETIRING),
    SlotAction.UNRETIRE: _entering(SlotState.CLAIMED, Activity.BUSY),
    SlotAction.SUSPEND: _entering(SlotState.CLAIMED, Activity.SUSPENDED),
    SlotAction.CONTINUE: lambda transition, _: transition.resume(),
    SlotAction.KILL: lambda transition, _: transition.kill(),
    SlotAction.ENTER_OWNER: _entering(SlotState.OWNER, Activity.IDLE),
    SlotAction.ENTER_UNCLAIMED: _entering(SlotState.UNCLAIMED, Activity.IDLE),
    SlotAction.ENTER_DRAINED: _entering(SlotState.DRAINED, Activity.RETIRING),
    SlotAction.DELETE: lambda transition, _: transition.delete(),
}
"""The change that each action makes; with the reason, for people."""


class IllegalSlotEventError(StateConflictError):
    """The event is impossible in the slot's state; nothing has changed."""

    def __init__(self, status: SlotStatus, event: ev.SlotEvent) -> None:
        state = "deleted" if status.deleted else f"{status.state}/{status.activity}"
        super().__init__(f"a slot in {state} cannot have {event}")
        self.state = status.state
        self.activity = status.activity
        self.event = event


def polled(transition: SlotTransition, event: ev.Polled) -> None:
    """Record the time of the poll."""
    transition.change(polled_boot_s=transition.now.boot_s)


def nothing(transition: SlotTransition, event: ev.SlotEvent) -> None:
    """Ignore an event that is late or changes nothing."""


def claim_granted(transition: SlotTransition, event: ev.ClaimGranted) -> None:
    """Accept the next job of the claim or the first of a new one; refuse it if the policy would evict it at once."""
    if transition.status.job is not None:
        raise IllegalSlotEventError(transition.status, event)
    previous = transition.status.claim
    if previous is not None and not _claim_continues(transition, previous, event):
        holder = "/".join(filter(None, event.holder))
        transition.end_claim(f"{holder} takes the slot" if event.holder != previous.holder else "its worklife is over")
        previous = None
    if previous is None:
        previous = Claim(event.holder, transition.now)
    transition.enter(SlotState.CLAIMED, Activity.IDLE, claim=previous._replace(rank=event.rank), job=JobInSlot())
    transition.apply_conditions()
    if transition.status.state is not SlotState.CLAIMED:
        transition.refuse(transition.status.reason)


def _claim_continues(transition: SlotTransition, claim: Claim, event: ev.ClaimGranted) -> bool:
    return claim.holder == event.holder and transition.now.boot_s < worklife_end_boot_s(claim, transition.evaluator)


def job_started(transition: SlotTransition, event: ev.JobStarted) -> None:
    """Start counting the job's run time."""
    job, claim = transition.status.job, transition.status.claim
    if job is None or claim is None or job.started is not None:
        raise IllegalSlotEventError(transition.status, event)
    started_job = job._replace(started=transition.now)
    if transition.status.state is SlotState.CLAIMED:
        transition.resume(job=started_job, claim=claim._replace(activations=claim.activations + 1))
    else:
        transition.change(job=started_job)


def job_ended(transition: SlotTransition, event: ev.JobEnded) -> None:
    """Keep the claim for another job, unless it has to end or none of its jobs has started."""
    status = transition.status
    if status.job is None or status.claim is None:
        raise IllegalSlotEventError(status, event)
    if status.state is SlotState.CLAIMED:
        transition.enter(SlotState.CLAIMED, Activity.IDLE)
    transition.change(job=None)
    if status.must_leave:
        transition.end_claim(status.retirement_reason)
    elif status.claim.activations == 0:
        transition.end_claim("its first job did not start")


def preemption_ordered(transition: SlotTransition, event: ev.PreemptionOrdered) -> None:
    """Record the order."""
    transition.change(preemption=PreemptionOrder(event.reason))


def preemption_withdrawn(transition: SlotTransition, event: ev.PreemptionWithdrawn) -> None:
    """Remove the order."""
    transition.change(preemption=None)


def release(transition: SlotTransition, event: ev.ReleaseOrdered) -> None:
    """End the claim without retirement."""
    transition.preempt(event.reason)


def kill(transition: SlotTransition, event: ev.KillOrdered) -> None:
    """Preempt the job, if there is one."""
    longest_s = NEVER if event.grace_s is None else event.grace_s
    if transition.status.job is not None:
        transition.preempt(event.reason, hard=event.hard, longest_s=longest_s)


def kill_sooner(transition: SlotTransition, event: ev.KillOrdered) -> None:
    """Shorten the time of a vacating job."""
    if event.hard:
        transition.kill()
    elif event.grace_s is not None:
        transition.change(stop_end_boot_s=min(transition.status.stop_end_boot_s, transition.now.boot_s + event.grace_s))


def suspend(transition: SlotTransition, event: ev.SuspendOrdered) -> None:
    """Suspend the job until `ContinueOrdered`."""
    transition.enter(SlotState.CLAIMED, Activity.SUSPENDED, by_command=True)


def go_on(transition: SlotTransition, event: ev.ContinueOrdered) -> None:
    """Continue a suspended job; the policy may suspend it again."""
    transition.resume()


def drain(transition: SlotTransition, event: ev.DrainOrdered) -> None:
    """Record the drain and start to retire or vacate the job."""
    status = transition.status
    transition.change(draining=Draining(event.how, event.reason))
    at_once = event.how in (DrainHow.QUICK, DrainHow.FAST)
    match status.state, status.activity:
        case SlotState.CLAIMED, _ if at_once:
            transition.preempt(event.reason, hard=event.how is DrainHow.FAST)
        case SlotState.CLAIMED, Activity.BUSY:
            transition.enter(SlotState.CLAIMED, Activity.RETIRING)
        case SlotState.PREEMPTING, Activity.VACATING if event.how is DrainHow.FAST:
            transition.kill()


def drain_time_counted(transition: SlotTransition, event: ev.DrainTimeCounted) -> None:
    """Record how long the jobs from before the drain may stay."""
    if transition.status.draining is not None:
        transition.change(draining=replace(transition.status.draining, originals_until_boot_s=event.until_boot_s))


def node_drained(transition: SlotTransition, event: ev.NodeDrained) -> None:
    """Enter Drained/Idle with all other slots of the node."""
    transition.enter(SlotState.DRAINED, Activity.IDLE)


_Pair = tuple[SlotState, Activity]
_Step = Callable[[SlotTransition, Any], None]


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
    (ev.PreemptionOrdered, _CLAIMED, preemption_ordered),
    (ev.PreemptionWithdrawn, _CLAIMED, preemption_withdrawn),
    (ev.ReleaseOrdered, _CLAIMED, release),
    (ev.KillOrdered, _CLAIMED, kill),
    (ev.SuspendOrdered, _PROCESSES, suspend),
    (ev.ContinueOrdered, _SUSPENDED, go_on),
)
"""The states in which an order has an effect; in all others it is late."""

_ROWS: tuple[tuple[type[ev.SlotEvent], frozenset[_Pair], _Step], ...] = (
    *((order, STATES, nothing) for order, _, _ in _ORDERS),
    *_ORDERS,
    (ev.KillOrdered, _VACATING, kill_sooner),
    (ev.Polled, STATES, polled),
    (ev.ClaimGranted, _FREE | _IDLE_CLAIM, claim_granted),
    (ev.JobStarted, _IDLE_CLAIM | _PREEMPTING, job_started),
    (ev.JobEnded, _CLAIMED | _PREEMPTING, job_ended),
    (ev.DrainOrdered, STATES, drain),
    (ev.DrainTimeCounted, STATES, drain_time_counted),
    (ev.NodeDrained, _DRAINING, node_drained),
    (ev.NodeDrained, _DRAINED, nothing),
)


def _table(
    rows: Iterable[tuple[type[ev.SlotEvent], frozenset[_Pair], _Step]],
) -> dict[tuple[SlotState, Activity, type[ev.SlotEvent]], _Step]:
    return {(state, activity, event): step for event, pairs, step in rows for state, activity in pairs}


TRANSITIONS = _table(_ROWS)
"""State, activity and type of event → step. A later row wins over an earlier one."""


class SlotMachine:
    """The state machine of one slot.

    A static slot starts in state Owner and has to be polled at once. A dynamic slot is made for a job and has to be
    claimed at once, since one without a claim is deleted. `last_claim_end` is that of an earlier pilot's claim.
    """

    def __init__(self, now: Now, *, dynamic: bool = False, last_claim_end: datetime | None = None) -> None:
        state = SlotState.UNCLAIMED if dynamic else SlotState.OWNER
        self._status = SlotStatus(state, Activity.IDLE, now, now, dynamic=dynamic, last_claim_end=last_claim_end)

    @property
    def state(self) -> SlotState:
        """Its state."""
        return self._status.state

    @property
    def activity(self) -> Activity:
        """Its activity."""
        return self._status.activity

    @property
    def entered_state(self) -> Now:
        """When it entered its state, or got its present claim."""
        return self._status.entered_state

    @property
    def entered_activity(self) -> Now:
        """When it entered its state and activity."""
        return self._status.entered_activity

    @property
    def claim(self) -> Claim | None:
        """Its claim; None = unclaimed."""
        return self._status.claim

    @property
    def last_claim_end(self) -> datetime | None:
        """When its last claim ended; None = not known."""
        return self._status.last_claim_end

    @property
    def job(self) -> JobInSlot | None:
        """The job in it, running or in preparation."""
        return self._status.job

    @property
    def preemption(self) -> PreemptionOrder | None:
        """The order to free it for a better job."""
        return self._status.preemption

    @property
    def draining(self) -> Draining | None:
        """The drain of its node."""
        return self._status.draining

    @property
    def deleted(self) -> bool:
        """Whether it was a dynamic slot and is deleted."""
        return self._status.deleted

    def handle(self, event: ev.SlotEvent, evaluator: SlotEvaluator, now: Now) -> tuple[ev.SlotEffect, ...]:
        """Apply an event and return its effects.

        Raises
        ------
        IllegalSlotEventError
            When the event is impossible in this state; nothing has changed then.
        """
        before = self._status
        step = TRANSITIONS.get((before.state, before.activity, type(event)))
        if step is None or before.deleted:
            raise IllegalSlotEventError(before, event)
        transition = SlotTransition(before, evaluator, now)
        step(transition, event)
        transition.apply_conditions()
        self._status = transition.status
        return transition.effects()

    def alarm_boot_s(self, evaluator: SlotEvaluator) -> float:
        """Return when, on the boot clock, it has to be polled if no event comes before; NEVER = not at all."""
        return next_poll_boot_s(self._status, evaluator)

    def validate(self) -> None:
        """Raise AssertionError if the state contradicts itself."""
        self._status.validate()
