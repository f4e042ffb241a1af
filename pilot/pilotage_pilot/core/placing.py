"""What becomes of the answer to a request: jobs are put into the slots that were offered, orders go to theirs.

Rules
-----
Only what was offered can be taken. An idle claim lasts until the request that carries it is answered: who holds it
had his turn. An order to make room stands until a request that says of it is answered without it. An answer for which
the server did not look at the slot, since it first had to tell or to be told something, is none in this sense.
"""

from __future__ import annotations

from dataclasses import dataclass

from pilotage_pilot.core.amounts import NOTHING, Amounts
from pilotage_pilot.core.asking import Request
from pilotage_pilot.core.attempts import Ending
from pilotage_pilot.core.backlog import NOT_ANY_MORE, Backlog
from pilotage_pilot.core.events import JobsGranted, VacateOrder
from pilotage_pilot.core.instructions import SlotOffer
from pilotage_pilot.core.jobs import GrantedJob, Outcome
from pilotage_pilot.core.moment import Moment
from pilotage_pilot.core.payload_ends import Instructions
from pilotage_pilot.core.payloads import Payloads
from pilotage_pilot.core.slot_offers import SlotOffers


@dataclass(slots=True)
class _Room:
    """What is left of an offer while its jobs are placed; `slot` is where the last one went, None = none has."""

    free: Amounts
    partitionable: bool
    ahead: int
    slot: str | None = None

    @classmethod
    def of(cls, offer: SlotOffer) -> _Room:
        """Return what there is at first; an occupied slot has no room."""
        return cls(offer.free if offer.occupied is None else NOTHING, offer.partitionable, offer.ahead)

    def take(self, amounts: Amounts, slot: str) -> None:
        """Take out what a job was given."""
        self.free = self.free - amounts if self.partitionable else NOTHING
        self.slot = slot


class Placing:
    """Puts jobs into the slots of one pilot."""

    def __init__(self, payloads: Payloads, offers: SlotOffers, backlog: Backlog) -> None:
        self._payloads = payloads
        self._backlog = backlog
        self._slots = payloads.slots
        self._offers = offers

    def place(self, event: JobsGranted, request: Request, now: Moment, *, takes_jobs: bool) -> Instructions:
        """Take what came for the slots of a request."""
        offers = {offer.name: offer for offer in request.call.slots}
        rooms = {name: _Room.of(offer) for name, offer in offers.items()}
        instructions: Instructions = []
        for job in event.jobs:
            if self._payloads.get(job.key) is None and job.key not in self._backlog:
                instructions += self._take(job, request, rooms.get(job.slot), now, takes_jobs=takes_jobs)
        instructions += self._make_room(event.vacate, offers, now)
        looked_at = _looked_at(event, request)
        instructions += self._withdraw(event.vacate, looked_at, now)
        unused = tuple(offer.name for offer in looked_at if offer.claim)
        self._slots.release(unused, "nobody of its account has a job for it", now)
        return instructions

    def _take(
        self, job: GrantedJob, request: Request, room: _Room | None, now: Moment, *, takes_jobs: bool
    ) -> Instructions:
        if job.fault:
            self._payloads.give_back(job, Ending(Outcome.REFUSED_BY_JOB, job.fault), now)
            return []
        lease_end = self._payloads.lease_end_boot_s(job.lease_s, request.first_boot_s)
        if lease_end <= now.boot_s:
            return self._give_back(job, "its lease had ended when it arrived", now)
        if not takes_jobs:
            return self._give_back(job, NOT_ANY_MORE, now)
        if room is not None and room.slot is not None and room.ahead:
            room.ahead -= 1
            self._backlog.put(room.slot, job, lease_end, now)
            return []
        if room is None or not job.amounts.fits_in(room.free):
            return self._decline(job, f"it asks {job.amounts}, more than was offered", now)
        entered = self._slots.enter(job.slot, job, now)
        if isinstance(entered, str):
            return self._decline(job, entered, now)
        room.take(job.amounts, entered.slot.name)
        return self._payloads.begin(entered, lease_end)

    def _decline(self, job: GrantedJob, reason: str, now: Moment) -> Instructions:
        self._offers.decline(job.slot, job.task_queue, now)
        return self._give_back(job, reason, now)

    def _give_back(self, job: GrantedJob, reason: str, now: Moment) -> Instructions:
        self._payloads.give_back(job, Ending(Outcome.DECLINED, reason), now)
        return []

    def _make_room(self, orders: tuple[VacateOrder, ...], offers: dict[str, SlotOffer], now: Moment) -> Instructions:
        instructions: Instructions = []
        for order in orders:
            offer = offers.get(order.slot)
            if offer is not None and offer.occupied is not None:
                wanted = self._slots.preempt(offer.occupied.key, order.reason, now)
                instructions += self._payloads.obey(wanted, now)
        return instructions

    def _withdraw(self, orders: tuple[VacateOrder, ...], looked_at: list[SlotOffer], now: Moment) -> Instructions:
        again = {order.slot for order in orders}
        instructions: Instructions = []
        for offer in looked_at:
            if offer.occupied is not None and offer.occupied.ordered and offer.name not in again:
                stays = self._slots.withdraw_preemption(offer.occupied.key, now)
                instructions += self._payloads.obey(stays, now)
        return instructions


def _looked_at(event: JobsGranted, request: Request) -> list[SlotOffer]:
    """Return the offers for which the server looked for jobs."""
    if event.node_attributes is not None:
        return []
    missing = set(event.ad_parts_wanted)
    return [offer for offer in request.call.slots if not missing & set(offer.ad_parts)]
