"""Slot offers, and the requests for jobs that carry them.

Rules
-----
Offered are free slots, claimed slots that wait for their account's next job, and occupied slots if the policy may
prefer another job. An offer is stale when the slot or its ad has changed. A task queue whose job was declined is not
offered to the unchanged slot again for UPDATE_INTERVAL. If the whole node declines it, no slot is, changed or not.
A pilot with one owner at a time names the owner whose jobs it holds, and has one request in flight: an offer is stale,
too, when that owner changes.
Requests in flight offer disjoint parts of a partitionable slot, and every other slot at most once. A failed request is
repeated with its id until the server answers or refuses it, because the answer may have been given and lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta

from pilotage.values.accounts import OwnerId
from pilotage.values.amounts import NOTHING, Amounts
from pilotage.values.offers import AdPart, OccupiedSlot, SlotOffer
from pilotage_pilot.core.events import Failure, SlotsVersion
from pilotage_pilot.core.instructions import Instruction, RecallRequest, RequestJobs, without_waiting
from pilotage_pilot.core.model import Now
from pilotage_pilot.core.node.node_slots import NodeSlots
from pilotage_pilot.core.node.slot_set import NodeSlot
from pilotage_pilot.core.rules import Lifetime, PilotRules
from pilotage_pilot.core.slots.evaluator import UPDATE_INTERVAL_S
from pilotage_pilot.core.slots.states import Activity, SlotState

RECHECK_ORDER_AFTER_S = 10.0
"""Interval of requests for a slot that is ordered for a better job and not free yet, in case the order is withdrawn."""

OCCUPIED_AFTER_S = 1.0
"""Least run time of a job whose slot is offered for a better one; most short jobs end before it."""

PREFETCH_S = 0.5
"""Prefetched jobs of a slot may take this long together, judged by its last job."""

MAX_PREFETCH = 63
"""The largest number of prefetched jobs of a slot."""

_MAX_KNOWN_PARTS = 512


@dataclass(frozen=True, slots=True)
class SentOffer:
    """A slot as offered by a request; `stamp` and `version` are those of the slot and its ad at that time."""

    offer: SlotOffer
    slot: NodeSlot
    stamp: int
    version: int

    @property
    def is_quick(self) -> bool:
        """Whether it needs an answer at once: the slot waits for its account, or a better job for the slot."""
        occupied = self.offer.occupied
        return self.offer.claim is not None or (occupied is not None and occupied.ordered)


@dataclass(frozen=True, slots=True)
class _Declined:
    stamp: int
    version: int
    until_boot_s: float


class SlotOffers:
    """The offers of one pilot's slots."""

    def __init__(self, slots: NodeSlots, rules: PilotRules, lifetime: Lifetime) -> None:
        self._slots = slots
        self._rules = rules
        self._lifetime = lifetime
        self._declined: dict[tuple[str, int], _Declined] = {}
        self._declined_on_node: dict[int, float] = {}
        self._known_parts: set[str] = set()
        self.bound_to: OwnerId | None = None
        """The owner whose jobs the pilot holds, if it runs those of one owner at a time; else None."""

    # Offers -----------------------------------------------------------------------------------------------------

    def of(self, slot: NodeSlot, free: Amounts, now: Now) -> SentOffer:
        """Return the offer of a slot; `free` is what no request offers yet."""
        ads, name = self._slots.ads, slot.name
        ad, left_s = ads.offer(name, now), self._lifetime.time_left_s(now)
        as_it_is = (slot.stamp, self._slots.ads.version(slot.name))
        self._declined = {key: each for key, each in self._declined.items() if each.until_boot_s > now.boot_s}
        self._declined_on_node = {key: end for key, end in self._declined_on_node.items() if end > now.boot_s}
        of_slot = ((queue, each) for (name, queue), each in self._declined.items() if name == slot.name)
        offer = SlotOffer(
            name,
            slot.amounts if slot.attempt is not None else free,
            partitionable=slot.is_partitionable,
            time_left=None if left_s is None else timedelta(seconds=left_s),
            cpu_power=self._rules.cpu_power,
            declined_task_queues=frozenset(
                (*self._declined_on_node, *(queue for queue, each in of_slot if (each.stamp, each.version) == as_it_is))
            ),
            ad_parts=ad.part_keys,
            ad_changes=ad.changes,
            claim=slot.machine.claim.holder if slot.machine.claim is not None and slot.attempt is None else None,
            ahead=_prefetch_count(slot),
            isolation=self._rules.isolation,
            bound_to=self.bound_to,
            has_containers=self._rules.has_containers,
            occupied=self._occupied(slot),
            job_ad_wanted=self._slots.has_policy,
        )
        return SentOffer(offer, slot, slot.stamp, ads.version(name))

    def _occupied(self, slot: NodeSlot) -> OccupiedSlot | None:
        if slot.attempt is None or slot.machine.claim is None:
            return None
        return OccupiedSlot(*slot.attempt, slot.machine.claim.rank, slot.machine.preemption is not None)

    def offerable(self, now: Now) -> Iterator[NodeSlot]:
        """Yield the slots that may be offered."""
        for slot in self._slots.book:
            if slot.is_free or slot.waits_for_its_account or self._may_be_preempted(slot, now):
                yield slot

    def _may_be_preempted(self, slot: NodeSlot, now: Now) -> bool:
        if slot.state_and_activity[0] is not SlotState.CLAIMED or slot.state_and_activity[1] is Activity.IDLE:
            return False
        if slot.machine.preemption is None:
            return self._slots.ads.preempts
        # An order outlives a change of the policy: only an answer withdraws it.
        return slot.ordered_boot_s + RECHECK_ORDER_AFTER_S <= now.boot_s

    def alarms(self) -> Iterator[float]:
        """Yield when, on the boot clock, occupied slots become offerable."""
        preempts = self._slots.ads.preempts
        for slot in self._slots.book:
            if slot.machine.preemption is not None:
                yield slot.ordered_boot_s + RECHECK_ORDER_AFTER_S
            elif preempts and slot.attempt is not None:
                yield slot.machine.entered_activity.boot_s + OCCUPIED_AFTER_S

    def is_urgent(self, slot: NodeSlot, now: Now) -> bool:
        """Whether an offerable slot justifies a request."""
        if slot.attempt is None or slot.machine.preemption is not None:
            return True
        return slot.machine.entered_activity.boot_s + OCCUPIED_AFTER_S <= now.boot_s

    def is_stale(self, offered: SentOffer) -> bool:
        """Whether the slot, its ad or what the node declines has changed since the offer."""
        slot = offered.slot
        if not self._declined_on_node.keys() <= offered.offer.declined_task_queues:
            return True
        if slot.machine.deleted or slot.stamp != offered.stamp or offered.offer.bound_to != self.bound_to:
            return True
        return self._slots.ads.version(slot.name) != offered.version

    def decline(self, name: str, task_queue: int, now: Now) -> None:
        """Record that a slot, in its present state, declines the jobs of a task queue."""
        slot = self._slots.book.get(name)
        if slot is not None:
            version = self._slots.ads.version(name)
            until = now.boot_s + UPDATE_INTERVAL_S
            self._declined[name, task_queue] = _Declined(slot.stamp, version, until)

    def decline_on_node(self, task_queue: int, now: Now) -> None:
        """Record that no slot takes the jobs of a task queue for a while."""
        self._declined_on_node[task_queue] = now.boot_s + UPDATE_INTERVAL_S

    # Parts of ads -----------------------------------------------------------------------------------------------

    def missing_parts(self, offers: tuple[SlotOffer, ...]) -> tuple[AdPart, ...]:
        """Return the ad parts of these offers that the server may not have."""
        keys = {key: None for offer in offers for key in offer.ad_parts if key not in self._known_parts}
        texts = ((key, self._slots.ads.part(key)) for key in keys)
        return tuple(AdPart(key, text) for key, text in texts if text is not None)

    def record_parts(self, call: RequestJobs, wanted: tuple[str, ...]) -> None:
        """Record which parts the server has and which it lacks."""
        sent = {key for offer in call.slots for key in offer.ad_parts}
        kept = self._known_parts if len(self._known_parts) < _MAX_KNOWN_PARTS else set()
        self._known_parts = (kept | sent) - set(wanted)


def _prefetch_count(slot: NodeSlot) -> int:
    """Return how many jobs a slot may prefetch."""
    if not slot.waits_for_its_account or slot.last_occupied_s is None:
        return 0
    return min(MAX_PREFETCH, int(PREFETCH_S / slot.last_occupied_s)) if slot.last_occupied_s > 0 else MAX_PREFETCH


RECALL_TIMEOUT_S = 2.0
"""Time within which a reachable server answers a recalled request."""


@dataclass(frozen=True, slots=True)
class JobRequest:
    """A request in flight, with the times of its first sending, its retry and its recall.

    `slots_version` is that of the slots at the first sending.
    """

    call: RequestJobs
    offered: tuple[SentOffer, ...]
    slots_version: SlotsVersion
    first_boot_s: float
    failures: int = 0
    retry_boot_s: float | None = None
    recalled_boot_s: float | None = None

    @property
    def is_recalled(self) -> bool:
        """Whether it has to be answered at once."""
        return self.recalled_boot_s is not None

    @property
    def waits(self) -> bool:
        """Whether it may wait at the server."""
        return self.call.wait_s > 0 and not self.is_recalled

    @property
    def is_quick(self) -> bool:
        """Whether one of its offers needs an answer at once."""
        return any(offered.is_quick for offered in self.offered)


class JobRequests:
    """The unanswered requests of one pilot."""

    def __init__(self, rules: PilotRules) -> None:
        self._rules = rules
        self._requests: dict[str, JobRequest] = {}

    def __len__(self) -> int:
        return len(self._requests)

    def answered(self, request_id: str) -> JobRequest | None:
        """Remove and return an answered or refused request; None = it was removed before."""
        return self._requests.pop(request_id, None)

    def slots(self) -> set[NodeSlot]:
        """Return the slots that requests in flight offer, wholly or in part."""
        return {offered.slot for offered in self._offered()}

    def offered_amounts(self, slot: NodeSlot) -> Amounts:
        """Return what requests in flight offer of a partitionable slot, including its deleted dynamic slots."""
        return sum((each.offer.free for each in self._offered() if _is_of(each, slot)), NOTHING)

    def _offered(self) -> Iterator[SentOffer]:
        return (offered for request in self._requests.values() for offered in request.offered)

    @property
    def may_send(self) -> bool:
        """Whether another request may be sent."""
        return len(self) < self._rules.most_requests and not any(
            request.is_recalled or request.failures for request in self._requests.values()
        )

    @property
    def recall_end_boot_s(self) -> float:
        """When recalled requests should be answered; until then they can bring jobs."""
        since = (request.recalled_boot_s for request in self._requests.values())
        return max((boot_s + RECALL_TIMEOUT_S for boot_s in since if boot_s is not None), default=float("-inf"))

    def send(
        self, call: RequestJobs, offered: tuple[SentOffer, ...], slots_version: SlotsVersion, now: Now
    ) -> Instruction:
        """Record a request as sent."""
        self._requests[call.request_id] = JobRequest(call, offered, slots_version, now.boot_s)
        return call

    def failed(self, request_id: str, failure: Failure, now: Now) -> None:
        """Schedule the retry of a request without an answer."""
        request = self._requests.get(request_id)
        if request is not None:
            failures = request.failures + 1
            retry = now.boot_s + failure.pause_s(failures)
            self._requests[request_id] = replace(request, failures=failures, retry_boot_s=retry)

    def recall_all(self, now: Now) -> list[Instruction]:
        """Recall every waiting request, so that it is answered at once."""
        return self._recall(lambda request: not request.is_recalled, now)

    def _recall(self, which: Callable[[JobRequest], bool], now: Now) -> list[Instruction]:
        found = [(key, request) for key, request in self._requests.items() if which(request)]
        for key, request in found:
            self._requests[key] = replace(request, recalled_boot_s=now.boot_s)
        return [RecallRequest(key) for key, request in found if request.waits and request.retry_boot_s is None]

    def due(self, is_stale: Callable[[SentOffer], bool], now: Now) -> list[Instruction]:
        """Repeat failed requests, recall those with stale offers, and recall all to merge several into one."""
        instructions: list[Instruction] = []
        for key, request in self._requests.items():
            if request.retry_boot_s is not None and request.retry_boot_s <= now.boot_s:
                self._requests[key] = replace(request, retry_boot_s=None)
                # After the delay of a failure the request does not wait for a job as well.
                instructions.append(without_waiting(request.call))
        if self._merge_boot_s() <= now.boot_s:
            return instructions + self.recall_all(now)
        return instructions + self._recall(lambda each: each.waits and any(map(is_stale, each.offered)), now)

    def _merge_boot_s(self) -> float:
        waiting = [request.first_boot_s for request in self._requests.values() if request.waits]
        return max(waiting) + self._rules.merge_after_s if len(waiting) > 1 else float("inf")

    def alarms(self) -> Iterator[float]:
        """Yield the times, on the boot clock, at which `due` may have something to do."""
        yield self._merge_boot_s()
        for request in self._requests.values():
            if request.retry_boot_s is not None:
                yield request.retry_boot_s

    def validate(self, slots: Iterator[NodeSlot]) -> None:
        """Raise AssertionError if more is offered than exists."""
        for slot in slots:
            offers = [each for each in self._offered() if each.slot is slot]
            if slot.is_partitionable:
                offered = self.offered_amounts(slot)
                assert offered.fits_in(slot.free), f"of {slot.name} {offered} is offered, {slot.free} is free"
            else:
                assert len(offers) <= 1, f"{slot.name} is in {len(offers)} requests"
        assert len(self) <= self._rules.most_requests, f"{len(self)} requests are under way"


def _is_of(offered: SentOffer, slot: NodeSlot) -> bool:
    if offered.slot is slot:
        return True
    if offered.offer.occupied is not None or not (offered.slot.is_dynamic and offered.slot.machine.deleted):
        return False
    # The resources of a deleted dynamic slot are its parent's again, and the request may still bring a job for them.
    return offered.slot.parent == slot.name
