"""One slot of a node as its ads know it.

Rules
-----
Data only; who writes what into it is `fact_ads`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pilotage_pilot.core.amounts import NOTHING, Amounts
from pilotage_pilot.core.layered_ad import LayeredAd
from pilotage_pilot.core.slot_facts import ShownSlot, SlotFacts


@dataclass(slots=True)
class SlotEntry:
    """A slot and its ad; `free` is a partitionable one's free part.

    `machine` is the slot itself, None = it has not shown itself yet. `part` is the key of its own part and `told` its
    full text, None = it has changed since; `readings` are its loads and idle times.
    """

    facts: SlotFacts
    ad: LayeredAd
    free: Amounts = NOTHING
    machine: ShownSlot | None = None
    is_owners: bool = False
    job_id: str = ""
    version: int = 0
    part: str | None = None
    told: str | None = None
    readings: Mapping[str, float] = field(default_factory=dict)
