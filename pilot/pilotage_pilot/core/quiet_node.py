"""A node where every slot has just become idle and nobody works, and a job that has just been queued.

Rules
-----
What people ask a policy about when they try it. The ads are those of a real pilot, from the same code.
"""

from __future__ import annotations

from collections.abc import Mapping

from pilotage.classads import AdValue
from pilotage_pilot.core.moment import Moment
from pilotage_pilot.core.policy import Policy
from pilotage_pilot.core.slot_ads import SlotAds
from pilotage_pilot.core.slot_facts import NodeFacts, NodeSample, SlotFacts
from pilotage_pilot.core.slot_layout import Layout, StaticSlot
from pilotage_pilot.core.slot_machine import SlotMachine

_VANILLA_UNIVERSE = 5
_JOB_IDLE = 1
_UNTOUCHED_S = 24 * 3600
"""How long nobody has touched the keyboard of a quiet node, in seconds."""


def quiet_slot_ad(policy: Policy, slot: StaticSlot, layout: Layout, node: NodeFacts, now: Moment) -> dict[str, AdValue]:
    """Return the ad of a slot on a quiet node with slots laid out so.

    Raises
    ------
    InvalidInputError
        When the policy publishes an attribute that is no expression.
    """
    ads = SlotAds(policy, node)
    slots = layout.slots if slot in layout.slots else (slot,)
    for each in slots:
        ads.add(SlotFacts.of(each))
        ads.show(each.name, SlotMachine(now, dynamic=True))
    ads.sample(NodeSample(now.boot_s, keyboard_idle_s=_UNTOUCHED_S, console_idle_s=_UNTOUCHED_S))
    return ads.plain(slot.name, now)


def new_job_ad(now_s: int) -> dict[str, AdValue]:
    """Return what every job's ad says that has just been queued: one core, vanilla, never run."""
    return {
        "MyType": "Job",
        "JobUniverse": _VANILLA_UNIVERSE,
        "JobStatus": _JOB_IDLE,
        "JobPrio": 0,
        "RequestCpus": 1,
        "RemoteWallClockTime": 0.0,
        "NumJobStarts": 0,
        "QDate": now_s,
        "EnteredCurrentStatus": now_s,
    }


def overlaid(ad: Mapping[str, AdValue], changes: Mapping[str, AdValue]) -> dict[str, AdValue]:
    """Return `ad` with `changes` made, whatever the case of their names."""
    folded = {name.lower() for name in changes}
    return {name: value for name, value in ad.items() if name.lower() not in folded} | dict(changes)
