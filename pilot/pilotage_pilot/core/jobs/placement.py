"""Places the jobs of an answer on the slots that were offered, and applies its orders to slots.

Rules
-----
A job takes at most what was offered. An idle claim lasts until the request that offers it is answered. A pilot with one
owner at a time declines another owner's job.
A preemption order stands until an answer to a request with that slot no longer contains it. An answer for which the
server did not match the slot, because it first needs other data, does not count.
"""

from __future__ import annotations

from dataclasses import dataclass

from pilotage.values.amounts import NOTHING, Amounts
from pilotage.values.attempts import Outcome
from pilotage.values.offers import SlotOffer, VacateOrder
from pilotage_pilot.core.attempts.attempt import Ending
from pilotage_pilot.core.attempts.payloads import Instructions, Payloads
from pilotage_pilot.core.events import JobsGranted
from pilotage_pilot.core.jobs.prefetch import TAKES_NO_JOBS, Prefetch
from pilotage_pilot.core.jobs.requests import JobRequest, SlotOffers
from pilotage_pilot.core.model import GrantedJob, Now

_OTHER_OWNER = "the pilot holds jobs of another owner, and runs those of one owner at a time"


@dataclass(slots=True)
class _RemainingOffer:
    """The rest of an offer while its jobs are placed; `slot` is that of the last job, None = none yet."""

    free: Amounts
    partitionable: bool
    ahead: int
    slot: str | None = None

    @classmethod
    def of(cls, offer: SlotOffer) -> _RemainingOffer:
        """Return the whole offer; an occupied slot has no free resources."""
        return cls(offer.free if offer.occupied is None else NOTHING, offer.partitionable, offer.ahead)

    def take(self, amounts: Amounts, slot: str) -> None:
        """Allocate the amounts of a job."""
        assert amounts.fits_in(self.free), f"{amounts} does not fit in {self.free}"
        self.free = self.free - amounts if self.partitionable else NOTHING
        self.slot = slot


class JobPlacement:
    """Places jobs on the slots of one pilot."""

    def __init__(self, payloads: Payloads, offers: SlotOffers, prefetch: Prefetch, *, has_one_owner: bool) -> None:
        self._has_one_owner = has_one_owner
        self._payloads = payloads
        self._prefetch = prefetch
        self._slots = payloads.slots
        self._offers = offers

    def place(self, event: JobsGranted, request: JobRequest, now: Now, *, takes_jobs: bool) -> Instructions:
        """Apply the answer to a request: place, prefetch or return its jobs, and apply its orders."""
        offers = {offer.name: offer for offer in request.call.slots}
        offers_left = {name: _RemainingOffer.of(offer) for name, offer in offers.items()}
        instructions: Instructions = []
        for job in event.jobs:
            if self._payloads.get(job.key) is None and job.key not in self._prefetch:
                instructions += self._take(job, request, offers_left.get(job.slot), now, takes_jobs=takes_jobs)
        instructions += self._make_room(event.vacate, offers, now)
        matched = matched_offers(event, request)
        instructions += self._withdraw(event.vacate, matched, now)
        unused = tuple(offer.name for offer in matched if offer.claim)
        self._slots.release(unused, "its account has no job for it", now)
        return instructions

    def _take(
        self, job: GrantedJob, request: JobRequest, offer_left: _RemainingOffer | None, now: Now, *, takes_jobs: bool
    ) -> Instructions:
        if job.fault:
            self._payloads.give_back(job, Ending(Outcome.REFUSED_BY_JOB, job.fault), now)
            return []
        lease_end = self._payloads.lease_end_boot_s(job.lease_s, request.first_boot_s)
        if lease_end <= now.boot_s:
            return self._give_back(job, "its lease had ended when it arrived", now)
        if not takes_jobs:
            return self._give_back(job, TAKES_NO_JOBS, now)
        if self._has_one_owner and self._prefetch.owner not in (None, job.account.owner_id):
            return self._decline(job, _OTHER_OWNER, now)
        if offer_left is not None and offer_left.slot is not None and offer_left.ahead:
            offer_left.ahead -= 1
            self._prefetch.add(offer_left.slot, job, lease_end, now)
            return []
        if offer_left is None or not job.amounts.fits_in(offer_left.free):
            return self._decline(job, f"it asks for {job.amounts}, more than was offered", now)
        entered = self._slots.enter(job.slot, job, now)
        if isinstance(entered, str):
            return self._decline(job, entered, now)
        offer_left.take(job.amounts, entered.slot.name)
        return self._payloads.begin(entered, lease_end)

    def _decline(self, job: GrantedJob, reason: str, now: Now) -> Instructions:
        self._offers.decline(job.slot, job.task_queue, now)
        return self._give_back(job, reason, now)

    def _give_back(self, job: GrantedJob, reason: str, now: Now) -> Instructions:
        self._payloads.give_back(job, Ending(Outcome.DECLINED, reason), now)
        return []

    def _make_room(self, orders: tuple[VacateOrder, ...], offers: dict[str, SlotOffer], now: Now) -> Instructions:
        instructions: Instructions = []
        for order in orders:
            offer = offers.get(order.slot)
            if offer is not None and offer.occupied is not None:
                wanted = self._slots.preempt(offer.occupied.key, order.reason, now)
                instructions += self._payloads.apply_orders(wanted, now)
        return instructions

    def _withdraw(self, orders: tuple[VacateOrder, ...], matched: list[SlotOffer], now: Now) -> Instructions:
        ordered_again = {order.slot for order in orders}
        instructions: Instructions = []
        for offer in matched:
            if offer.occupied is not None and offer.occupied.ordered and offer.name not in ordered_again:
                stays = self._slots.withdraw_preemption(offer.occupied.key, now)
                instructions += self._payloads.apply_orders(stays, now)
        return instructions


def matched_offers(event: JobsGranted, request: JobRequest) -> list[SlotOffer]:
    """Return the offers that the server matched."""
    if event.node_attributes is not None:
        return []
    missing = set(event.ad_parts_wanted)
    return [offer for offer in request.call.slots if not missing & set(offer.ad_parts)]
