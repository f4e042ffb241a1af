"""Slots in the database, as their pilots last reported them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sqlalchemy import delete, insert, select, update
from sqlmodel import Session

from pilotage.resource_tree import QueueId
from pilotage_server.core.node_json import node_facts, slot_from_json, slot_to_json
from pilotage_server.core.pilots import PilotState, SlotInfo
from pilotage_server.core.reports import SlotState
from pilotage_server.storage.jobs import chunks
from pilotage_server.storage.pilots import IS_ALIVE, PILOTS, at_queue
from pilotage_server.storage.tables import metadata

SLOTS = metadata.tables["slots"]


def store_slots(session: Session, pilot_stamp: str, slots: Iterable[SlotState]) -> None:
    """Make these the slots of a pilot; only what has changed is written, and an ad that is not told stays."""
    before = _texts(session, pilot_stamp)
    after = {slot.name: _columns(slot) for slot in slots}
    new = [
        {"pilot_stamp": pilot_stamp, "name": name, "ad": "", **columns}
        for name, columns in after.items()
        if name not in before
    ]
    if new:
        session.connection().execute(insert(SLOTS), new)
    for name in before.keys() & after.keys():
        if "ad" in after[name] or before[name] != after[name]["state_json"]:
            of_slot = (SLOTS.c.pilot_stamp == pilot_stamp, SLOTS.c.name == name)
            session.execute(update(SLOTS).where(*of_slot).values(**after[name]))
    gone = sorted(before.keys() - after.keys())
    if gone:
        session.execute(delete(SLOTS).where(SLOTS.c.pilot_stamp == pilot_stamp, SLOTS.c.name.in_(gone)))


def _columns(slot: SlotState) -> dict[str, str]:
    """Return what is to be written of a slot."""
    return {"state_json": slot_to_json(slot), **({"ad": slot.ad} if slot.ad else {})}


def remove_slots(session: Session, pilot_stamps: Iterable[str]) -> None:
    """Forget the slots of pilots that are over."""
    for chunk in chunks(pilot_stamps):
        session.execute(delete(SLOTS).where(SLOTS.c.pilot_stamp.in_(chunk)))


def load_slots(session: Session, queue: QueueId | None = None) -> tuple[SlotInfo, ...]:
    """Return the slots of living pilots of a queue (None = of all), by node and name."""
    pilots = select(PILOTS).where(IS_ALIVE)
    columns = (SLOTS.c.pilot_stamp, SLOTS.c.state_json, SLOTS.c.ad)
    slots = select(*columns).join(PILOTS, PILOTS.c.stamp == SLOTS.c.pilot_stamp)
    if queue is not None:
        pilots, slots = pilots.where(at_queue(queue)), slots.where(at_queue(queue))
    by_stamp = {row.stamp: (row, *node_facts(row.node_json)) for row in session.execute(pilots)}
    found = [
        SlotInfo(
            slot=slot_from_json(text, ad),
            node=pilot.node,
            pilot_stamp=stamp,
            queue=QueueId(pilot.site, pilot.ce, pilot.queue),
            last_seen=pilot.last_seen,
            ends=pilot.ends,
            cpu_power=power,
            draining=pilot.state == PilotState.DRAINING.value,
            node_attributes=attributes,
            settable_attributes=settable,
        )
        for stamp, text, ad in session.execute(slots.where(IS_ALIVE))
        for pilot, power, attributes, settable in (by_stamp[stamp],)
    ]
    return tuple(sorted(found, key=lambda info: (info.node, info.pilot_stamp, info.slot.name)))


def _texts(session: Session, pilot_stamp: str) -> Mapping[str, str]:
    query = select(SLOTS.c.name, SLOTS.c.state_json).where(SLOTS.c.pilot_stamp == pilot_stamp)
    return {row[0]: row[1] for row in session.execute(query)}
