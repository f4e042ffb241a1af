"""Slots of living pilots, for people and for what draws a picture of the nodes."""

from __future__ import annotations

from dataclasses import dataclass

from pilotage.ad_text import ad_text
from pilotage.classad_evaluation import bounded
from pilotage.classads import InvalidClassAdError
from pilotage.errors import InvalidInputError, Violation
from pilotage.resource_tree import QueueId
from pilotage_server.core.pilots import SlotInfo
from pilotage_server.core.slot_listing import passes, slot_ads
from pilotage_server.storage.engine import Unit
from pilotage_server.storage.slots import load_slots


@dataclass(frozen=True, slots=True)
class ListedSlot:
    """A slot and the text of its whole ad, "" where that is not wanted."""

    info: SlotInfo
    ad: str = ""


def list_slots(
    unit: Unit, queue: QueueId | None = None, constraint: str = "", *, ads_wanted: bool = False
) -> tuple[ListedSlot, ...]:
    """Return the slots of a queue's living pilots (None = of all queues), by node and name.

    With a constraint only those of whose ad it is true; raises InvalidInputError where it is no expression.
    """
    found = load_slots(unit.session, queue)
    if not constraint and not ads_wanted:
        return tuple(ListedSlot(info) for info in found)
    try:
        wanted = bounded(constraint or "true")
    except InvalidClassAdError as error:
        raise InvalidInputError(*(Violation("constraint", each.why) for each in error.violations)) from error
    return tuple(
        ListedSlot(info, ad_text(ad.plain()) if ads_wanted else "")
        for info, ad in slot_ads(found, unit.now)
        if passes(ad, wanted)
    )
