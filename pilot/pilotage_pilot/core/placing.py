"""What becomes of the answer to a request: jobs are put into the slots that were offered, orders go to theirs.

Rules
-----
Only what was offered can be taken. An idle claim lasts until the request that carries it is answered: who holds it
had his turn. An order to make room stands until a request that says of it is answered without it. An answer for which
the server did not look at the slot, since it first had to tell or to be told something, is none in this sense.
"""

from __future__ import annotations

from pilotage_pilot.core.amounts import NOTHING, Amounts
from pilotage_pilot.core.asking import Request
from pilotage_pilot.core.events import JobsGranted, VacateOrder
from pilotage_pilot.core.instructions import SlotOffer
from pilotage_pilot.core.jobs import GrantedJob
from pilotage_pilot.core.moment import Moment
from pilotage_pilot.core.payloads import Instructions, Payloads
from pilotage_pilot.core.slot_offers import SlotOffers

NOT_ANY_MORE = "the pilot takes no more jobs"


class Placing:
    """Puts jobs into the slots of one pilot."""

    def __init__(self, payloads: Payloads, offers: SlotOffers) -> None:
        self._payloads = payloads
        self._slots = payloads.slots
        self._offers = offers

    def place(self, event: JobsGranted, request: Request, now: Moment, *, takes_jobs: bool) -> Instructions:
        """Take what came for the slots of a request."""
        offers = {offer.name: offer for offer in request.call.slots}
        left = {name: offer.free if offer.occupied is None else NOTHING for name, offer in offers.items()}
        instructions: Instructions = []
        for job in event.jobs:
            if self._payloads.get(job.key) is None:
                instructions += self._take(job, request, left, now, takes_jobs=takes_jobs)
        instructions += self._make_room(event.vacate, offers, now)
        looked_at = _looked_at(event, request)
        instructions += self._withdraw(event.vacate, looked_at, now)
        unused = tuple(offer.name for offer in looked_at if offer.claim)
        self._slots.release(unused, "nobody of its account has a job for it", now)
        return instructions

    def _take(
        self, job: GrantedJob, request: Request, left: dict[str, Amounts], now: Moment, *, takes_jobs: bool
    ) -> Instructions:
        lease_end = self._payloads.lease_end_boot_s(job.lease_s, request.first_boot_s)
        if lease_end <= now.boot_s:
            return self._payloads.decline(job, "its lease had ended when it arrived", now)
        if not takes_jobs:
            return self._payloads.decline(job, NOT_ANY_MORE, now)
        room = left.get(job.slot, NOTHING)
        if not job.amounts.fits_in(room):
            return self._decline(job, f"it asks {job.amounts}, more than was offered", now)
        entered = self._slots.enter(job.slot, job, now)
        if isinstance(entered, str):
            return self._decline(job, entered, now)
        is_partitionable = any(offer.name == job.slot and offer.partitionable for offer in request.call.slots)
        left[job.slot] = room - job.amounts if is_partitionable else NOTHING
        return self._payloads.begin(entered, lease_end)

    def _decline(self, job: GrantedJob, reason: str, now: Moment) -> Instructions:
        self._offers.decline(job.slot, job.task_queue, now)
        return self._payloads.decline(job, reason, now)

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
