"""How long a job may stay in its slot once it has to go: retirement, vacate time, drains, and the claim's worklife.

Rules
-----
Arithmetic only. Every end is a time on the boot clock, made of the same sums when it is waited for and when it is
looked at, so that an alarm never rings just before its time. Retirement counts the time that the job's processes
ran: while they are suspended it stands still. Sources: HTCondor manual, MaxJobRetirementTime, MachineMaxVacateTime,
CLAIM_WORKLIFE, condor_drain.
"""

from __future__ import annotations

from pilotage_pilot.core.moment import Moment
from pilotage_pilot.core.slot_judge import CLAIM_WORKLIFE_S, MAX_VACATE_S, NEVER, Judge, holds, seconds
from pilotage_pilot.core.slot_status import Claim, DrainHow, JobInSlot, SlotStatus


def retirement_s(judge: Judge) -> float:
    """Return how long the job may run in all once it has to go; what is undefined grants nothing.

    The job can ask for less than the slot grants.
    """
    granted = judge.number("MaxJobRetirementTime") or 0.0
    asked = judge.job_number("MaxJobRetirementTime")
    if asked is not None and asked < granted:
        granted = asked
    return max(0.0, granted)


def vacate_s(judge: Judge) -> float:
    """Return how long the job has to end itself: what the machine grants, less where the job asks for less.

    A machine whose expression is broken grants HTCondor's default: the fault is not the job's.
    """
    granted = seconds(judge, "MachineMaxVacateTime", MAX_VACATE_S)
    asked = judge.job_number("JobMaxVacateTime")
    if asked is not None and asked < granted:
        granted = asked
    return max(0.0, granted)


def retirement_end_boot_s(status: SlotStatus, judge: Judge) -> float:
    """Return when the job in a claimed slot has to be vacated, so that it is gone when its retirement is over.

    On a node that drains gracefully a job with retirement left that the slot would start again may stay as long as
    the longest of the others. Where it drains in peace the job has all the time that it wants, unless the slot's
    expression is negative, which means "at once".
    """
    job, draining = status.job, status.draining
    assert job is not None, "no job retires"
    if draining is not None and draining.how is DrainHow.PEACEFUL and not status.must_leave:
        # HTCondor gives a job this peace even when PREEMPT is true of it. A pilot may drain for days, and its site's
        # policy holds to the end.
        return -NEVER if (judge.number("MaxJobRetirementTime") or 0.0) < 0 else NEVER
    granted_s, needed_s = retirement_s(judge), vacate_s(judge)
    own_end = job.run.reaches_boot_s(granted_s - needed_s)
    if draining is None or draining.how is not DrainHow.GRACEFUL or draining.originals_until_boot_s is None:
        return own_end
    others_end = draining.originals_until_boot_s - needed_s
    if others_end > own_end and holds(judge, "START"):
        return min(others_end, job.run.reaches_boot_s(granted_s))
    return own_end


def stays_until_boot_s(job: JobInSlot, judge: Judge, now: Moment) -> float:
    """Return when a job that goes on running has used up its own retirement; not before `now`."""
    left_s = retirement_s(judge) - job.run.seconds(now)
    return now.boot_s + max(0.0, left_s)


def worklife_end_boot_s(claim: Claim, judge: Judge) -> float:
    """Return when the claim is too old for another job; NEVER before its first one has started.

    A negative worklife has no end, 0 means one job a claim. A claim's age is counted in whole seconds and has to be
    greater than its worklife.
    """
    worklife_s = seconds(judge, "CLAIM_WORKLIFE", CLAIM_WORKLIFE_S)
    if claim.activations == 0 or worklife_s < 0:
        return NEVER
    return claim.since.boot_s + (int(worklife_s) + 1 if worklife_s >= 1 else 0)
