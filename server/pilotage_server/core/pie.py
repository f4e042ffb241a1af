"""The pie that quotas are parts of: the weighted cores of all slots that count.

Rules
-----
Slots may overlap, as those of a node that can be one whole or many parts do; a constraint leaves out what would be
counted twice: the operators', and where they have none that of the slot's own policy. A partitionable slot counts with
what is left of it, for its parts are slots of their own. A slot's weight is the SlotWeight of its ad, and its cores
where that has none.
Source: HTCondor manual, GROUP_DYNAMIC_MACH_CONSTRAINT and SLOT_WEIGHT.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import datetime

from pilotage.classad_evaluation import Ad, NoValue, compile_expression
from pilotage_server.core.accounting import slot_weight
from pilotage_server.core.amounts import Amounts
from pilotage_server.core.pilots import SlotInfo
from pilotage_server.core.slot_facts import sizes
from pilotage_server.core.slot_listing import passes, slot_ad, slot_ads

_OWN_CONSTRAINT = "GroupDynamicMachConstraint"
"""The attribute that says whether a slot counts, of those whose policy has GROUP_DYNAMIC_MACH_CONSTRAINT."""


def pie_of(slots: Iterable[SlotInfo], constraint: str, now: datetime) -> float:
    """Return the weighted cores of the slots of whose ads the constraint is true; "" = what their policies say."""
    if not constraint:
        return math.fsum(_piece(info, now) for info in slots)
    asked = compile_expression(constraint, refuse_random=True)
    return math.fsum(_weight_of(ad, _cores(info)) for info, ad in slot_ads(slots, now) if passes(ad, asked))


def _piece(info: SlotInfo, now: datetime) -> float:
    if not info.slot.ad:
        return _cores(info)
    ad = slot_ad(info, now)
    own = ad.value(_OWN_CONSTRAINT)
    return _weight_of(ad, _cores(info)) if own is True or own is NoValue.UNDEFINED else 0.0


def _cores(info: SlotInfo) -> int:
    return info.slot.free.cpus if info.slot.partitionable else info.slot.amounts.cpus


def weight_given(info: SlotInfo, asked: Amounts, now: datetime) -> float:
    """Return the weight of what a job that asks so much would get of a slot."""
    given = info.offer(now).given_to(asked)
    ad = slot_ad(info, now)
    for name, value in sizes(given).items():
        ad.set(name, value)
    return _weight_of(ad, given.cpus)


def _weight_of(ad: Ad, cores: float) -> float:
    """Return the weight of the slot with this ad."""
    return slot_weight(ad.value("SlotWeight"), cores)
