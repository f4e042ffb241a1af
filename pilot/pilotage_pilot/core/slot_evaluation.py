"""What a slot's policy and its clocks say at one look: the tests of each state, in the order in which they count.

Rules
-----
The first test that fires wins; none changes anything. What is done then is in `slot_turn`. The order is that of
HTCondor's startd (its periodic evaluation of a resource's state).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from pilotage_pilot.core.moment import Moment
from pilotage_pilot.core.retirement import retirement_end_boot_s, worklife_end_boot_s
from pilotage_pilot.core.slot_judge import NEVER, Judge, holds, poll_interval_s
from pilotage_pilot.core.slot_states import RUNNING, Activity, SlotState
from pilotage_pilot.core.slot_status import SlotStatus


class Deed(StrEnum):
    """What is done with a slot after a look at it."""

    END_RETIREMENT = "end retirement"
    RELEASE = "release"
    RETIRE = "retire for good"
    RETIRE_FOR_ORDER = "retire for now"
    UNRETIRE = "unretire"
    SUSPEND = "suspend"
    CONTINUE = "continue"
    KILL = "kill"
    BE_OWNED = "be the owner's"
    BE_UNCLAIMED = "be unclaimed"
    BE_DRAINED = "be drained"
    BE_DELETED = "be deleted"


@dataclass(frozen=True, slots=True)
class Look:
    """A slot with who answers for its expressions, at the moment at which it is looked at."""

    status: SlotStatus
    judge: Judge
    now: Moment


@dataclass(frozen=True, slots=True)
class Condition:
    """One test of a state; `reason` is for people, empty = the one for which the slot is in retirement."""

    fires: Callable[[Look], bool]
    deed: Deed
    reason: str = ""


def _retirement_is_over(look: Look) -> bool:
    if not (look.status.has_processes and look.status.in_retirement):
        return False
    return look.now.boot_s >= retirement_end_boot_s(look.status, look.judge)


def _policy_preempts(look: Look) -> bool:
    """Whether PREEMPT is looked at, and true: WANT_SUSPEND shields a running job from it, until it is suspended."""
    status = look.status
    if not status.has_processes or status.must_leave:
        return False
    if status.activity is not Activity.SUSPENDED and holds(look.judge, "WANT_SUSPEND"):
        return False
    return holds(look.judge, "PREEMPT")


def _may_unretire(look: Look) -> bool:
    return look.status.activity is Activity.RETIRING and not look.status.in_retirement


def _policy_suspends(look: Look) -> bool:
    return look.status.activity in RUNNING and holds(look.judge, "WANT_SUSPEND") and holds(look.judge, "SUSPEND")


def _policy_continues(look: Look) -> bool:
    suspended = look.status.activity is Activity.SUSPENDED and not look.status.by_command
    return suspended and holds(look.judge, "CONTINUE")


def _order_waits(look: Look) -> bool:
    return look.status.activity is Activity.BUSY and look.status.preemption is not None


def _idle_and_ordered(look: Look) -> bool:
    return look.status.activity is Activity.IDLE and look.status.preemption is not None


def _idle_and_owned(look: Look) -> bool:
    return look.status.activity is Activity.IDLE and holds(look.judge, "IS_OWNER")


def _idle_and_too_old(look: Look) -> bool:
    status = look.status
    if status.activity is not Activity.IDLE or status.job is not None or status.claim is None:
        return False
    return look.now.boot_s >= worklife_end_boot_s(status.claim, look.judge)


def _idle_and_draining(look: Look) -> bool:
    # A job that is still made ready was promised the slot: it runs, and then has what the drain leaves to it.
    status = look.status
    return status.activity is Activity.IDLE and status.job is None and status.draining is not None


def _time_is_over(look: Look) -> bool:
    return _waits_for_its_end(look.status) and look.now.boot_s >= look.status.stop_end_boot_s


def _policy_kills(look: Look) -> bool:
    return _waits_for_its_end(look.status) and holds(look.judge, "KILL")


def _waits_for_its_end(status: SlotStatus) -> bool:
    return status.activity is Activity.VACATING


def _is_dynamic(look: Look) -> bool:
    return look.status.dynamic


def _drains(look: Look) -> bool:
    return look.status.draining is not None


def _is_owned(look: Look) -> bool:
    return holds(look.judge, "IS_OWNER")


CONDITIONS: dict[SlotState, tuple[Condition, ...]] = {
    SlotState.CLAIMED: (
        Condition(_retirement_is_over, Deed.END_RETIREMENT),
        Condition(_policy_preempts, Deed.RETIRE, "PREEMPT of its slot is true"),
        Condition(_may_unretire, Deed.UNRETIRE),
        Condition(_policy_suspends, Deed.SUSPEND),
        Condition(_policy_continues, Deed.CONTINUE),
        Condition(_order_waits, Deed.RETIRE_FOR_ORDER),
        Condition(_idle_and_ordered, Deed.RELEASE),
        Condition(_idle_and_owned, Deed.RELEASE, "IS_OWNER of its slot is true"),
        Condition(_idle_and_too_old, Deed.RELEASE, "its worklife is over"),
        Condition(_idle_and_draining, Deed.RELEASE),
    ),
    SlotState.PREEMPTING: (
        Condition(_time_is_over, Deed.KILL),
        Condition(_policy_kills, Deed.KILL),
    ),
    SlotState.UNCLAIMED: (
        Condition(_is_dynamic, Deed.BE_DELETED),
        Condition(_drains, Deed.BE_DRAINED),
        Condition(_is_owned, Deed.BE_OWNED),
    ),
    SlotState.OWNER: (
        Condition(_is_dynamic, Deed.BE_DELETED),
        Condition(_drains, Deed.BE_DRAINED),
        Condition(lambda look: not _is_owned(look), Deed.BE_UNCLAIMED),
    ),
    SlotState.DRAINED: (),
}
"""The tests of each state."""


def first_that_fires(look: Look) -> Condition | None:
    """Return the test that decides; None = the slot stays as it is."""
    return next((each for each in CONDITIONS[look.status.state] if each.fires(look)), None)


def next_look_boot_s(status: SlotStatus, judge: Judge) -> float:
    """Return when the slot has to be looked at again if nothing happens before; NEVER = it need not be."""
    if status.deleted:
        return NEVER
    if status.polled_boot_s is None:
        return status.entered_state.boot_s
    return min(_poll_boot_s(status, judge, status.polled_boot_s), _timer_boot_s(status, judge))


def _poll_boot_s(status: SlotStatus, judge: Judge, polled_boot_s: float) -> float:
    nothing_to_ask = status.state is SlotState.DRAINED or status.activity is Activity.KILLING
    if nothing_to_ask:
        return NEVER
    return polled_boot_s + poll_interval_s(judge, claimed=status.claim is not None)


def _timer_boot_s(status: SlotStatus, judge: Judge) -> float:
    if _waits_for_its_end(status):
        return status.stop_end_boot_s
    if status.has_processes and status.in_retirement:
        return retirement_end_boot_s(status, judge)
    if status.activity is Activity.IDLE and status.claim is not None and status.job is None:
        return worklife_end_boot_s(status.claim, judge)
    return NEVER
