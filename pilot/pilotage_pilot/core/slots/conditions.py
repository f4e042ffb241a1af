"""Conditions of a slot's state, in order of precedence, and the times that they depend on.

Rules
-----
The first condition that fires wins; it changes nothing itself. Its action is applied in `machine`.
Every end is a time on the boot clock and the same sum for alarm and test, so that no alarm rings before its time.
Retirement counts the time for which the job's processes ran; it stands still while they are suspended.
Sources: HTCondor's startd (order of its periodic evaluation); manual, MaxJobRetirementTime, MachineMaxVacateTime,
CLAIM_WORKLIFE, condor_drain.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from pilotage_pilot.core.model import Now
from pilotage_pilot.core.slots.evaluator import (
    CLAIM_WORKLIFE_S,
    MAX_VACATE_S,
    NEVER,
    SlotEvaluator,
    duration_s,
    is_true,
    poll_interval_s,
)
from pilotage_pilot.core.slots.states import RUNNING, Activity, Claim, DrainHow, JobInSlot, SlotState, SlotStatus


def retirement_s(evaluator: SlotEvaluator) -> float:
    """Return the total run time that a retiring job is granted: the smaller of the slot's and the job's values.

    An undefined value of the slot grants nothing.
    """
    granted_s = evaluator.number("MaxJobRetirementTime") or 0.0
    requested_s = evaluator.job_number("MaxJobRetirementTime")
    if requested_s is not None and requested_s < granted_s:
        granted_s = requested_s
    return max(0.0, granted_s)


def vacate_s(evaluator: SlotEvaluator) -> float:
    """Return the time between SIGTERM and kill: the smaller of the machine's and the job's values.

    A broken expression of the machine grants HTCondor's default, since it is not the job's fault.
    """
    granted_s = duration_s(evaluator, "MachineMaxVacateTime", MAX_VACATE_S)
    requested_s = evaluator.job_number("JobMaxVacateTime")
    if requested_s is not None and requested_s < granted_s:
        granted_s = requested_s
    return max(0.0, granted_s)


def retirement_end_boot_s(status: SlotStatus, evaluator: SlotEvaluator) -> float:
    """Return when the job in a claimed slot has to be vacated, so that it is gone when its retirement is over.

    On a node that drains gracefully, a job that the slot would start again may stay as long as the longest of the
    others. In a peaceful drain it may stay for ever, unless the slot's expression is negative ("at once").
    """
    job, draining = status.job, status.draining
    assert job is not None, "no job retires"
    if draining is not None and draining.how is DrainHow.PEACEFUL and not status.must_leave:
        # Unlike HTCondor, PREEMPT still applies (`must_leave`): a pilot may drain for days under its site's policy.
        return -NEVER if (evaluator.number("MaxJobRetirementTime") or 0.0) < 0 else NEVER
    granted_s, needed_s = retirement_s(evaluator), vacate_s(evaluator)
    job_end = job.run.reaches_boot_s(granted_s - needed_s)
    if draining is None or draining.how is not DrainHow.GRACEFUL or draining.originals_until_boot_s is None:
        return job_end
    others_end = draining.originals_until_boot_s - needed_s
    if others_end > job_end and is_true(evaluator, "START"):
        return min(others_end, job.run.reaches_boot_s(granted_s))
    return job_end


def own_retirement_end_boot_s(job: JobInSlot, evaluator: SlotEvaluator, now: Now) -> float:
    """Return when a running job has used up its own retirement; not before `now`."""
    left_s = retirement_s(evaluator) - job.run.seconds(now)
    return now.boot_s + max(0.0, left_s)


def worklife_end_boot_s(claim: Claim, evaluator: SlotEvaluator) -> float:
    """Return when the claim is too old for another job; NEVER before its first job has started.

    A negative worklife has no end, 0 means one job. As in HTCondor, the age in whole seconds has to exceed it.
    """
    worklife_s = duration_s(evaluator, "CLAIM_WORKLIFE", CLAIM_WORKLIFE_S)
    if claim.activations == 0 or worklife_s < 0:
        return NEVER
    return claim.since.boot_s + (int(worklife_s) + 1 if worklife_s >= 1 else 0)


class SlotAction(StrEnum):
    """An action on a slot that results from its policy, orders or timers."""

    END_RETIREMENT = "end retirement"
    RELEASE = "release"
    RETIRE = "retire for good"
    RETIRE_FOR_ORDER = "retire for now"
    UNRETIRE = "unretire"
    SUSPEND = "suspend"
    CONTINUE = "continue"
    KILL = "kill"
    ENTER_OWNER = "be the owner's"
    ENTER_UNCLAIMED = "be unclaimed"
    ENTER_DRAINED = "be drained"
    DELETE = "be deleted"


class SlotSnapshot(NamedTuple):
    """A slot and the evaluator of its expressions at one time."""

    status: SlotStatus
    evaluator: SlotEvaluator
    now: Now


@dataclass(frozen=True, slots=True)
class Condition:
    """A test with its action; `reason` empty = the reason of the slot's retirement."""

    fires: Callable[[SlotSnapshot], bool]
    action: SlotAction
    reason: str = ""


def _retirement_is_over(snapshot: SlotSnapshot) -> bool:
    if not (snapshot.status.has_processes and snapshot.status.in_retirement):
        return False
    return snapshot.now.boot_s >= retirement_end_boot_s(snapshot.status, snapshot.evaluator)


def _policy_preempts(snapshot: SlotSnapshot) -> bool:
    """Whether PREEMPT applies and is true. WANT_SUSPEND protects a job from it until the job is suspended."""
    status = snapshot.status
    if not status.has_processes or status.must_leave:
        return False
    if status.activity is not Activity.SUSPENDED and is_true(snapshot.evaluator, "WANT_SUSPEND"):
        return False
    return is_true(snapshot.evaluator, "PREEMPT")


def _may_unretire(snapshot: SlotSnapshot) -> bool:
    return snapshot.status.activity is Activity.RETIRING and not snapshot.status.in_retirement


def _policy_suspends(snapshot: SlotSnapshot) -> bool:
    return (
        snapshot.status.activity in RUNNING
        and is_true(snapshot.evaluator, "WANT_SUSPEND")
        and is_true(snapshot.evaluator, "SUSPEND")
    )


def _policy_continues(snapshot: SlotSnapshot) -> bool:
    suspended = snapshot.status.activity is Activity.SUSPENDED and not snapshot.status.by_command
    return suspended and is_true(snapshot.evaluator, "CONTINUE")


def _order_waits(snapshot: SlotSnapshot) -> bool:
    return snapshot.status.activity is Activity.BUSY and snapshot.status.preemption is not None


def _idle_and_ordered(snapshot: SlotSnapshot) -> bool:
    return snapshot.status.activity is Activity.IDLE and snapshot.status.preemption is not None


def _idle_and_owned(snapshot: SlotSnapshot) -> bool:
    return snapshot.status.activity is Activity.IDLE and is_true(snapshot.evaluator, "IS_OWNER")


def _idle_and_too_old(snapshot: SlotSnapshot) -> bool:
    status = snapshot.status
    if status.activity is not Activity.IDLE or status.job is not None or status.claim is None:
        return False
    return snapshot.now.boot_s >= worklife_end_boot_s(status.claim, snapshot.evaluator)


def _idle_and_draining(snapshot: SlotSnapshot) -> bool:
    # A job in preparation has the slot already: it starts, and then gets what the drain grants.
    status = snapshot.status
    return status.activity is Activity.IDLE and status.job is None and status.draining is not None


def _vacate_time_is_over(snapshot: SlotSnapshot) -> bool:
    return _is_vacating(snapshot.status) and snapshot.now.boot_s >= snapshot.status.stop_end_boot_s


def _policy_kills(snapshot: SlotSnapshot) -> bool:
    return _is_vacating(snapshot.status) and is_true(snapshot.evaluator, "KILL")


def _is_vacating(status: SlotStatus) -> bool:
    return status.activity is Activity.VACATING


def _is_dynamic(snapshot: SlotSnapshot) -> bool:
    return snapshot.status.dynamic


def _drains(snapshot: SlotSnapshot) -> bool:
    return snapshot.status.draining is not None


def _is_owned(snapshot: SlotSnapshot) -> bool:
    return is_true(snapshot.evaluator, "IS_OWNER")


CONDITIONS: dict[SlotState, tuple[Condition, ...]] = {
    SlotState.CLAIMED: (
        Condition(_retirement_is_over, SlotAction.END_RETIREMENT),
        Condition(_policy_preempts, SlotAction.RETIRE, "PREEMPT of its slot is true"),
        Condition(_may_unretire, SlotAction.UNRETIRE),
        Condition(_policy_suspends, SlotAction.SUSPEND),
        Condition(_policy_continues, SlotAction.CONTINUE),
        Condition(_order_waits, SlotAction.RETIRE_FOR_ORDER),
        Condition(_idle_and_ordered, SlotAction.RELEASE),
        Condition(_idle_and_owned, SlotAction.RELEASE, "IS_OWNER of its slot is true"),
        Condition(_idle_and_too_old, SlotAction.RELEASE, "its worklife is over"),
        Condition(_idle_and_draining, SlotAction.RELEASE),
    ),
    SlotState.PREEMPTING: (
        Condition(_vacate_time_is_over, SlotAction.KILL),
        Condition(_policy_kills, SlotAction.KILL),
    ),
    SlotState.UNCLAIMED: (
        Condition(_is_dynamic, SlotAction.DELETE),
        Condition(_drains, SlotAction.ENTER_DRAINED),
        Condition(_is_owned, SlotAction.ENTER_OWNER),
    ),
    SlotState.OWNER: (
        Condition(_is_dynamic, SlotAction.DELETE),
        Condition(_drains, SlotAction.ENTER_DRAINED),
        Condition(lambda snapshot: not _is_owned(snapshot), SlotAction.ENTER_UNCLAIMED),
    ),
    SlotState.DRAINED: (),
}
"""The conditions of each state, in order of precedence."""


def first_firing(snapshot: SlotSnapshot) -> Condition | None:
    """Return the condition that applies; None = no change."""
    return next((condition for condition in CONDITIONS[snapshot.status.state] if condition.fires(snapshot)), None)


def next_poll_boot_s(status: SlotStatus, evaluator: SlotEvaluator) -> float:
    """Return when the slot has to be polled if no event comes before; NEVER = not at all."""
    if status.deleted:
        return NEVER
    if status.polled_boot_s is None:
        return status.entered_state.boot_s
    return min(_poll_boot_s(status, evaluator, status.polled_boot_s), _timer_boot_s(status, evaluator))


def _poll_boot_s(status: SlotStatus, evaluator: SlotEvaluator, polled_boot_s: float) -> float:
    nothing_to_ask = status.state is SlotState.DRAINED or status.activity is Activity.KILLING
    if nothing_to_ask:
        return NEVER
    return polled_boot_s + poll_interval_s(evaluator, claimed=status.claim is not None)


def _timer_boot_s(status: SlotStatus, evaluator: SlotEvaluator) -> float:
    if _is_vacating(status):
        return status.stop_end_boot_s
    if status.has_processes and status.in_retirement:
        return retirement_end_boot_s(status, evaluator)
    if status.activity is Activity.IDLE and status.claim is not None and status.job is None:
        return worklife_end_boot_s(status.claim, evaluator)
    return NEVER
