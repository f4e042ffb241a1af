"""Complete ads of slots, and the pool size that quotas are fractions of.

Rules
-----
- A pilot sends a slot's ad without values that change all the time; these come with its reports. Slots show the
  attributes of their node unless they have their own. Queue, pilot and last contact come from the server. Without an ad
  from the pilot, the report alone makes the ad.
- Attributes that slots of a node show each other (HTCondor manual, STARTD_SLOT_ATTRS) are added here.
- The pool size is the sum of the slots' SlotWeight, or of their cores where that is missing. Slots may overlap, so a
  constraint leaves some out: the operators', else that of the slot's own policy. A partitionable slot counts with its
  remaining cores. (HTCondor manual, GROUP_DYNAMIC_MACH_CONSTRAINT, SLOT_WEIGHT.)
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from datetime import datetime

from pilotage.classads.evaluation import (
    CURRENT_TIME,
    Ad,
    CompiledExpression,
    NoValue,
    compile_expression,
    evaluate,
    is_true,
)
from pilotage.classads.library import AdValue, Expression
from pilotage.classads.text import ad_text
from pilotage.resources.parameters import ISOLATION
from pilotage.values.amounts import Amounts
from pilotage_server.core.identity import slot_weight
from pilotage_server.core.pilots.pilots import SlotInfo
from pilotage_server.core.queueing.slot_offers import size_attributes

_KIB_PER_MIB = 1024
_SHARED = "SharedSlotAttributes"
"""The attribute that lists the attributes that slots of a node show each other."""


def slot_ads(infos: Iterable[SlotInfo], now: datetime) -> list[tuple[SlotInfo, Ad]]:
    """Return slots with their complete ads at `now`, in order. The slots of a pilot must be complete."""
    found = [(info, slot_ad(info, now)) for info in infos]
    of_pilots: dict[str, list[tuple[SlotInfo, Ad]]] = defaultdict(list)
    for info, ad in found:
        of_pilots[info.pilot_stamp].append((info, ad))
    for of_pilot in of_pilots.values():
        shown = {name: value for info, ad in of_pilot for name, value in _shown(info, ad)}
        if shown:
            text = ad_text(shown)
            for _, ad in of_pilot:
                ad.update(text)
    return found


def _shown(info: SlotInfo, ad: Ad) -> Iterator[tuple[str, AdValue]]:
    """Yield the attributes that a slot shows the others of its node, by their names there."""
    shared = ad.value(_SHARED)
    if not isinstance(shared, str):
        return
    number = ad.value("SlotID")
    prefixes = (info.slot.name,) if ad.value("DynamicSlot") is True else (f"slot{number}", f"vm{number}")
    for name in shared.replace(",", " ").split():
        value = ad.value(name)
        if not isinstance(value, NoValue):
            yield from ((f"{prefix}_{name}", value) for prefix in prefixes)


def slot_ad(info: SlotInfo, now: datetime) -> Ad:
    """Return the ad of a slot at `now`, without attributes of the other slots."""
    ad = Ad({**info.node_attributes, **_sizes(info)})
    if info.slot.ad:
        ad.update(info.slot.ad)
    for name, value in _present(info, now):
        ad.set(name, value)
    return ad


def satisfies(ad: Ad, constraint: CompiledExpression) -> bool:
    """Whether the constraint is true in the ad."""
    return is_true(evaluate(constraint, ad))


def _sizes(info: SlotInfo) -> dict[str, AdValue]:
    amounts = info.slot.amounts
    return {
        "MyType": "Machine",
        "Name": f"{info.slot.name}@{info.node}",
        "Machine": info.node,
        "Cpus": amounts.cpus,
        "Memory": amounts.memory_mib,
        "Disk": amounts.disk_mib * _KIB_PER_MIB,
        "GPUs": amounts.gpus,
        "SlotWeight": Expression("Cpus"),
    }


def _present(info: SlotInfo, now: datetime) -> Iterator[tuple[str, AdValue]]:
    slot = info.slot
    yield "LoadAvg", slot.load
    yield from slot.attributes.items()
    yield "State", slot.state
    yield "Activity", slot.activity
    times = {
        "EnteredCurrentState": slot.since_state,
        "EnteredCurrentActivity": slot.since,
        "LastHeardFrom": info.last_seen,
        CURRENT_TIME: now,
    }
    yield from ((name, int(time.timestamp())) for name, time in times.items() if time is not None)
    if slot.partitionable:
        yield "Cpus", slot.free.cpus
        yield "Memory", slot.free.memory_mib
        yield "Disk", slot.free.disk_mib * _KIB_PER_MIB
        yield "GPUs", slot.free.gpus
    if slot.job_id:
        yield "JobId", str(slot.job_id)
    yield "Site", info.queue.site
    yield "CE", info.queue.ce
    yield "Queue", info.queue.queue
    yield ISOLATION, info.isolation.value
    yield "PilotStamp", info.pilot_stamp


_SLOT_CONSTRAINT = "GroupDynamicMachConstraint"
"""The attribute with the value of GROUP_DYNAMIC_MACH_CONSTRAINT in the slot's policy."""


def pool_size(slots: Iterable[SlotInfo], constraint: str, now: datetime) -> float:
    """Return the weighted cores of the slots that satisfy the constraint; "" = that of each slot's policy."""
    if not constraint:
        return math.fsum(_counted_weight(info, now) for info in slots)
    asked = compile_expression(constraint, refuse_random=True)
    return math.fsum(_weight_of(ad, _cores(info)) for info, ad in slot_ads(slots, now) if satisfies(ad, asked))


def _counted_weight(info: SlotInfo, now: datetime) -> float:
    if not info.slot.ad:
        return _cores(info)
    ad = slot_ad(info, now)
    own = ad.value(_SLOT_CONSTRAINT)
    return _weight_of(ad, _cores(info)) if own is True or own is NoValue.UNDEFINED else 0.0


def _cores(info: SlotInfo) -> int:
    return info.slot.free.cpus if info.slot.partitionable else info.slot.amounts.cpus


def match_weight(info: SlotInfo, asked: Amounts, now: datetime) -> float:
    """Return the weight of the allocation that a job of these amounts would get of a slot."""
    given = info.offer(now).allocation_for(asked)
    ad = slot_ad(info, now)
    for name, value in size_attributes(given).items():
        ad.set(name, value)
    return _weight_of(ad, given.cpus)


def _weight_of(ad: Ad, cores: float) -> float:
    return slot_weight(ad.value("SlotWeight"), cores)
