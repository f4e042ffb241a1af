"""A node where every slot has just become idle and nobody works.

Rules
-----
What people ask a policy about when they try it. The ads are those of a real pilot, from the same code.
"""

from __future__ import annotations

from pilotage.classads import AdValue
from pilotage_pilot.core.moment import Moment
from pilotage_pilot.core.policy import Policy
from pilotage_pilot.core.slot_ads import SlotAds
from pilotage_pilot.core.slot_facts import NodeFacts, NodeSample, SlotFacts
from pilotage_pilot.core.slot_layout import Layout, StaticSlot
from pilotage_pilot.core.slot_machine import SlotMachine

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
