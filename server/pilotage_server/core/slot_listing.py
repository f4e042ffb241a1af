"""The ads of slots as people and programs are shown them: what the pilot said, and what the server knows better.

Rules
-----
A pilot tells a slot's ad without what changes from moment to moment; that comes from its report of states. What it
tells of its node, all slots there show unless they say it themselves. What slots show each other (HTCondor manual,
STARTD_SLOT_ATTRS) is put together here, of all of a pilot's slots. Where a slot is, and when it was heard, the server
says. A pilot that tells no ads has them made from its report.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from datetime import datetime

from pilotage.ad_text import ad_text
from pilotage.classad_evaluation import CURRENT_TIME, Ad, CompiledExpression, NoValue, evaluate, is_true
from pilotage.classads import AdValue
from pilotage_server.core.pilots import SlotInfo

_KIB_PER_MIB = 1024
_SHARED = "SharedSlotAttributes"
"""The attribute that lists which others the slots of a node show each other."""


def slot_ads(infos: Iterable[SlotInfo], now: datetime) -> list[tuple[SlotInfo, Ad]]:
    """Return slots with their whole ads as they are at `now`, in order; of a pilot's slots none must be missing."""
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
    """Yield what a slot shows the others of its node, by the names that it has in their ads."""
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
    """Return the ad of a slot as it is at `now`, without what the others of its node show it."""
    ad = Ad({**info.node_attributes, **_sizes(info)})
    if info.slot.ad:
        ad.update(info.slot.ad)
    for name, value in _present(info, now):
        ad.set(name, value)
    return ad


def passes(ad: Ad, constraint: CompiledExpression) -> bool:
    """Whether the constraint is true of the ad."""
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
    }


def _present(info: SlotInfo, now: datetime) -> Iterator[tuple[str, AdValue]]:
    slot = info.slot
    yield "LoadAvg", slot.load
    yield from slot.attributes.items()
    yield "State", slot.state
    yield "Activity", slot.activity
    times = {
        "EnteredCurrentState": slot.since_state or slot.since,
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
    yield "PilotStamp", info.pilot_stamp
