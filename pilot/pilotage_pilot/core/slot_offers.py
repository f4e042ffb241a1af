"""What a pilot offers of its slots: which, how much of them, and with which ads.

Rules
-----
Offered are free slots, slots that wait for a job of their claim's account, and, where the policy may prefer another
job, occupied ones. A slot is offered as it is now: an offer is stale as soon as the slot or its ad is another. A task
queue whose job was declined is not offered to the slot again as long as both are the same, or for UPDATE_INTERVAL.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pilotage_pilot.core.amounts import Amounts
from pilotage_pilot.core.instructions import AdPart, Occupied, RequestJobs, SlotOffer
from pilotage_pilot.core.moment import Moment
from pilotage_pilot.core.node_slots import NodeSlots
from pilotage_pilot.core.rules import Lifetime, Rules
from pilotage_pilot.core.slot_book import NodeSlot
from pilotage_pilot.core.slot_judge import UPDATE_INTERVAL_S
from pilotage_pilot.core.slot_states import Activity, SlotState

ASK_WHETHER_ORDERED_S = 10.0
"""So often it is asked whether a slot that was ordered for a better job, and is not free yet, is still wanted."""

OCCUPIED_AFTER_S = 1.0
"""A slot is offered for a better job than its own when that has run so long: most short jobs never are."""

AHEAD_S = 0.5
"""A slot that is kept for an account may have jobs ahead that take it so long, if they are like its last one."""

MOST_AHEAD = 63
"""A slot has never more jobs ahead than this."""

_MOST_KNOWN_PARTS = 512


@dataclass(frozen=True, slots=True)
class Offered:
    """A slot as a request offers it; `stamp` and `version` are those of the slot and of its ad at that time."""

    offer: SlotOffer
    slot: NodeSlot
    stamp: int
    version: int

    @property
    def is_quick(self) -> bool:
        """Whether its question is to be answered at once: somebody waits for the slot, or the slot for somebody."""
        occupied = self.offer.occupied
        return self.offer.claim is not None or (occupied is not None and occupied.ordered)


@dataclass(frozen=True, slots=True)
class _Declined:
    stamp: int
    version: int
    until_boot_s: float


class SlotOffers:
    """The slots of one pilot as the server sees them."""

    def __init__(self, slots: NodeSlots, rules: Rules, lifetime: Lifetime) -> None:
        self._slots = slots
        self._rules = rules
        self._lifetime = lifetime
        self._declined: dict[tuple[str, int], _Declined] = {}
        self._known_parts: set[str] = set()

    # Offers -----------------------------------------------------------------------------------------------------

    def of(self, slot: NodeSlot, free: Amounts, now: Moment) -> Offered:
        """Return the offer of a slot, of which `free` is not offered yet."""
        ads, name = self._slots.ads, slot.name
        ad = ads.offer(name, now)
        offer = SlotOffer(
            name,
            slot.amounts if slot.attempt is not None else free,
            self._lifetime.time_left_s(now),
            self._rules.cpu_power,
            self._declined_queues(slot, now),
            slot.is_partitionable,
            ad.part_keys,
            ad.changes,
            slot.machine.claim.holder if slot.machine.claim is not None and slot.attempt is None else None,
            self._occupied(slot),
            self._slots.has_policy,
            _ahead(slot),
        )
        return Offered(offer, slot, slot.stamp, ads.version(name))

    def _occupied(self, slot: NodeSlot) -> Occupied | None:
        if slot.attempt is None or slot.machine.claim is None:
            return None
        return Occupied(slot.attempt, slot.machine.claim.rank, slot.machine.preemption is not None)

    def _declined_queues(self, slot: NodeSlot, now: Moment) -> tuple[int, ...]:
        as_it_is = (slot.stamp, self._slots.ads.version(slot.name))
        self._declined = {key: each for key, each in self._declined.items() if each.until_boot_s > now.boot_s}
        of_slot = ((queue, each) for (name, queue), each in self._declined.items() if name == slot.name)
        return tuple(sorted(queue for queue, each in of_slot if (each.stamp, each.version) == as_it_is))

    def offerable(self, now: Moment) -> Iterator[NodeSlot]:
        """Yield every slot that may be offered."""
        for slot in self._slots.book:
            if slot.is_free or slot.waits_for_its_account or self._may_be_wanted(slot, now):
                yield slot

    def _may_be_wanted(self, slot: NodeSlot, now: Moment) -> bool:
        if slot.doing[0] is not SlotState.CLAIMED or slot.doing[1] is Activity.IDLE:
            return False
        if slot.machine.preemption is None:
            return self._slots.ads.preempts
        # An order outlives the policy that it was given under: only an answer takes it back.
        return slot.ordered_boot_s + ASK_WHETHER_ORDERED_S <= now.boot_s

    def alarms(self) -> Iterator[float]:
        """Yield when, on the boot clock, slots are offered for better jobs, and asked about again."""
        preempts = self._slots.ads.preempts
        for slot in self._slots.book:
            if slot.machine.preemption is not None:
                yield slot.ordered_boot_s + ASK_WHETHER_ORDERED_S
            elif preempts and slot.attempt is not None:
                yield slot.machine.entered_activity.boot_s + OCCUPIED_AFTER_S

    def is_urgent(self, slot: NodeSlot, now: Moment) -> bool:
        """Whether a slot that may be offered is worth a request of its own."""
        if slot.attempt is None or slot.machine.preemption is not None:
            return True
        return slot.machine.entered_activity.boot_s + OCCUPIED_AFTER_S <= now.boot_s

    def is_stale(self, offered: Offered) -> bool:
        """Whether the slot is not any more as it was offered."""
        slot = offered.slot
        if slot.machine.deleted or slot.stamp != offered.stamp:
            return True
        return self._slots.ads.version(slot.name) != offered.version

    def decline(self, name: str, task_queue: int, now: Moment) -> None:
        """Remember that a slot, as it is, does not take the jobs of a task queue."""
        slot = self._slots.book.get(name)
        if slot is not None:
            version = self._slots.ads.version(name)
            until = now.boot_s + UPDATE_INTERVAL_S
            self._declined[name, task_queue] = _Declined(slot.stamp, version, until)

    # Parts of ads -----------------------------------------------------------------------------------------------

    def parts_for(self, offers: tuple[SlotOffer, ...]) -> tuple[AdPart, ...]:
        """Return those parts of the ads of slots, that are about to be offered, which the server may not have."""
        keys = {key: None for offer in offers for key in offer.ad_parts if key not in self._known_parts}
        texts = ((key, self._slots.ads.part(key)) for key in keys)
        return tuple(AdPart(key, text) for key, text in texts if text is not None)

    def parts_answered(self, call: RequestJobs, wanted: tuple[str, ...]) -> None:
        """Note which parts the server has, and which it wants."""
        sent = {key for offer in call.slots for key in offer.ad_parts}
        kept = self._known_parts if len(self._known_parts) < _MOST_KNOWN_PARTS else set()
        self._known_parts = (kept | sent) - set(wanted)


def _ahead(slot: NodeSlot) -> int:
    """Return how many jobs may come for a slot beyond the first."""
    if not slot.waits_for_its_account or slot.last_turn_s is None:
        return 0
    return min(MOST_AHEAD, int(AHEAD_S / slot.last_turn_s)) if slot.last_turn_s > 0 else MOST_AHEAD
