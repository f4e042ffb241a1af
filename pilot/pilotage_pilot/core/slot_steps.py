"""What each event does to a slot before the slot is looked at.

Rules
-----
A step changes the slot only through its `Turn`; afterwards the slot's conditions are looked at, unless the slot has to
be polled first. In which states and activities a step may be taken at all is the table in `slot_machine`; what no
table can tell, such as a start without a job, is an error here.
"""

from __future__ import annotations

from dataclasses import replace

from pilotage.errors import StateConflictError
from pilotage_pilot.core import slot_events as ev
from pilotage_pilot.core.retirement import worklife_end_boot_s
from pilotage_pilot.core.slot_judge import NEVER
from pilotage_pilot.core.slot_states import Activity, SlotState
from pilotage_pilot.core.slot_status import Claim, DrainHow, Draining, JobInSlot, PreemptionOrder, SlotStatus
from pilotage_pilot.core.slot_turn import Turn


class IllegalSlotEventError(StateConflictError):
    """The slot cannot have had this event; nothing has changed."""

    def __init__(self, status: SlotStatus, event: ev.SlotEvent) -> None:
        kind = "deleted" if status.deleted else f"{status.state}/{status.activity}"
        super().__init__(f"a slot that is {kind} cannot hear {event}")
        self.state = status.state
        self.activity = status.activity
        self.event = event


def polled(turn: Turn, event: ev.Polled) -> None:
    """Note that the slot is looked at now."""
    turn.change(polled_boot_s=turn.now.boot_s)


def nothing(turn: Turn, event: ev.SlotEvent) -> None:
    """Leave the slot as it is: the event came too late, or says nothing new."""


def claimed(turn: Turn, event: ev.Claimed) -> None:
    """Take a job: the claim's next one, or a new claim's first; refuse it where it would be put out at once."""
    if turn.status.job is not None:
        raise IllegalSlotEventError(turn.status, event)
    held = turn.status.claim
    if held is not None and not _goes_on(turn, held, event):
        turn.leave(f"{event.holder} takes the slot" if event.holder != held.holder else "its worklife is over")
        held = None
    if held is None:
        held = Claim(event.holder, turn.now)
    turn.enter(SlotState.CLAIMED, Activity.IDLE, claim=replace(held, rank=event.rank), job=JobInSlot())
    turn.look()
    if turn.status.state is not SlotState.CLAIMED:
        turn.refuse(turn.status.reason)


def _goes_on(turn: Turn, claim: Claim, event: ev.Claimed) -> bool:
    return claim.holder == event.holder and turn.now.boot_s < worklife_end_boot_s(claim, turn.judge)


def job_started(turn: Turn, event: ev.JobStarted) -> None:
    """Begin to count the time of the job's payload."""
    job, claim = turn.status.job, turn.status.claim
    if job is None or claim is None or job.started is not None:
        raise IllegalSlotEventError(turn.status, event)
    begun = replace(job, started=turn.now)
    if turn.status.state is SlotState.CLAIMED:
        turn.run_on(job=begun, claim=replace(claim, activations=claim.activations + 1))
    else:
        turn.change(job=begun)


def job_ended(turn: Turn, event: ev.JobEnded) -> None:
    """Keep the claim for another job, unless it had to end with this one or has never had one that started."""
    status = turn.status
    if status.job is None or status.claim is None:
        raise IllegalSlotEventError(status, event)
    if status.state is SlotState.CLAIMED:
        turn.enter(SlotState.CLAIMED, Activity.IDLE)
    turn.change(job=None)
    if status.must_leave:
        turn.leave(status.retirement_reason)
    elif status.claim.activations == 0:
        turn.leave("its first job did not start")


def preemption_ordered(turn: Turn, event: ev.PreemptionOrdered) -> None:
    """Note who waits for the slot."""
    turn.change(preemption=PreemptionOrder(event.reason))


def preemption_withdrawn(turn: Turn, event: ev.PreemptionWithdrawn) -> None:
    """Forget who waited for the slot."""
    turn.change(preemption=None)


def release(turn: Turn, event: ev.ReleaseOrdered) -> None:
    """Let the claim end without retirement."""
    turn.preempt(event.reason)


def kill(turn: Turn, event: ev.KillOrdered) -> None:
    """Get the job out of the slot, if there is one."""
    longest_s = NEVER if event.grace_s is None else event.grace_s
    if turn.status.job is not None:
        turn.preempt(event.reason, hard=event.hard, longest_s=longest_s)


def kill_sooner(turn: Turn, event: ev.KillOrdered) -> None:
    """Give a vacating job less time."""
    if event.hard:
        turn.kill()
    elif event.grace_s is not None:
        turn.change(stop_end_boot_s=min(turn.status.stop_end_boot_s, turn.now.boot_s + event.grace_s))


def suspend(turn: Turn, event: ev.SuspendOrdered) -> None:
    """Suspend the job until somebody wants it to go on."""
    turn.enter(SlotState.CLAIMED, Activity.SUSPENDED, by_command=True)


def go_on(turn: Turn, event: ev.ContinueOrdered) -> None:
    """Let a suspended job go on; the policy may suspend it again."""
    turn.run_on()


def drain(turn: Turn, event: ev.DrainOrdered) -> None:
    """Note the drain, and begin to get the job out of the slot."""
    status = turn.status
    turn.change(draining=Draining(event.how, event.reason))
    at_once = event.how in (DrainHow.QUICK, DrainHow.FAST)
    match status.state, status.activity:
        case SlotState.CLAIMED, _ if at_once:
            turn.preempt(event.reason, hard=event.how is DrainHow.FAST)
        case SlotState.CLAIMED, Activity.BUSY:
            turn.enter(SlotState.CLAIMED, Activity.RETIRING)
        case SlotState.PREEMPTING, Activity.VACATING if event.how is DrainHow.FAST:
            turn.kill()


def drain_time_counted(turn: Turn, event: ev.DrainTimeCounted) -> None:
    """Note how long the jobs that were there before the drain may stay."""
    if turn.status.draining is not None:
        turn.change(draining=replace(turn.status.draining, originals_until_boot_s=event.until_boot_s))


def node_drained(turn: Turn, event: ev.NodeDrained) -> None:
    """Be done, like all other slots of the node."""
    turn.enter(SlotState.DRAINED, Activity.IDLE)
