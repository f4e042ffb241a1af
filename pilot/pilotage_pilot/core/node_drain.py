"""The drain of a whole node: how long its jobs may stay, and when it is done.

Rules
-----
Arithmetic over the node's slots; the slots themselves are moved by the events that are named here. Source:
HTCondor's startd.
"""

from __future__ import annotations

from collections.abc import Iterable

from pilotage_pilot.core.moment import Moment
from pilotage_pilot.core.retirement import stays_until_boot_s
from pilotage_pilot.core.slot_judge import Judge
from pilotage_pilot.core.slot_machine import SlotMachine
from pilotage_pilot.core.slot_states import SlotState


def originals_stay_until_boot_s(slots: Iterable[tuple[SlotMachine, Judge]], now: Moment) -> float:
    """Return, on the boot clock, how long the longest of the jobs may stay: `now` = there are none.

    It is what the slots have to hear as `DrainTimeCounted`, and holds until one of these jobs starts, ends, or is
    suspended or continued; while one is suspended it moves with the time.
    """
    ends = (
        stays_until_boot_s(slot.job, judge, now)
        for slot, judge in slots
        if slot.state is SlotState.CLAIMED and slot.job is not None
    )
    return max(ends, default=now.boot_s)


def is_drained(slots: Iterable[SlotMachine]) -> bool:
    """Whether every slot is drained: what they have to hear then is `NodeDrained`."""
    return all(slot.state is SlotState.DRAINED for slot in slots)
