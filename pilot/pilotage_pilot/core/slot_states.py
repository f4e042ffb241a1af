"""A slot's states and activities, in HTCondor's words, and which of them go together.

Rules
-----
Words only: what leads from one to the other is in `slot_machine` and `slot_evaluation`. HTCondor's Matched and
Backfill are no states of ours: a pilot asks for its jobs, so nothing waits between a match and its claim. Nor is
Cleaning an activity: what a job leaves is stored outside its slot.
"""

from __future__ import annotations

from enum import StrEnum


class SlotState(StrEnum):
    """A slot's state, in HTCondor's words."""

    OWNER = "Owner"
    UNCLAIMED = "Unclaimed"
    CLAIMED = "Claimed"
    PREEMPTING = "Preempting"
    DRAINED = "Drained"


class Activity(StrEnum):
    """A slot's activity, in HTCondor's words."""

    IDLE = "Idle"
    BUSY = "Busy"
    SUSPENDED = "Suspended"
    RETIRING = "Retiring"
    VACATING = "Vacating"
    KILLING = "Killing"


ACTIVITIES = {
    SlotState.OWNER: (Activity.IDLE,),
    SlotState.UNCLAIMED: (Activity.IDLE,),
    SlotState.CLAIMED: (
        Activity.IDLE,
        Activity.BUSY,
        Activity.SUSPENDED,
        Activity.RETIRING,
    ),
    SlotState.PREEMPTING: (Activity.VACATING, Activity.KILLING),
    SlotState.DRAINED: (Activity.RETIRING, Activity.IDLE),
}
"""What a slot may do in each state."""

STATES = frozenset((state, activity) for state, activities in ACTIVITIES.items() for activity in activities)
"""Every state with the activities that it can have."""

RUNNING = frozenset({Activity.BUSY, Activity.RETIRING})
"""Activities of a claimed slot in which its job's processes run."""
