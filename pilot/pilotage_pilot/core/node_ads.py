"""The ads of a node's slots, of whichever kind: under a policy, or without one."""

from __future__ import annotations

from typing import TypeAlias

from pilotage_pilot.core.built_in_ads import BuiltInAds
from pilotage_pilot.core.slot_ads import SlotAds

NodeAds: TypeAlias = SlotAds | BuiltInAds
"""What tells and asks the same of both; only a policy can be changed."""
