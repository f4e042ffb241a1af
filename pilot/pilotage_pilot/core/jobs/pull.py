"""When a pilot requests jobs and for which slots, and what follows from the answers.

Free resources are requested unless a request in flight offers them, the last answer was empty a moment ago, or the
broker back-off pauses requests. A slot that was ordered for a better job is requested in any case.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from pilotage.values.amounts import Amounts
from pilotage_pilot.core.events import BrokerBackoff, Failure, FailureKind, JobsGranted, SlotsVersion
from pilotage_pilot.core.instructions import Instruction, RequestJobs
from pilotage_pilot.core.jobs.requests import JobRequest, JobRequests, SlotOffers
from pilotage_pilot.core.model import Now
from pilotage_pilot.core.node.node_slots import NodeSlots
from pilotage_pilot.core.node.slot_set import NodeSlot
from pilotage_pilot.core.rules import Lifetime, PilotRules

MIN_REQUEST_INTERVAL_S = 1.0
"""Least time between a request with an empty answer and the next."""


class JobPull:
    """Decides when one pilot requests jobs and for which slots."""

    def __init__(self, slots: NodeSlots, rules: PilotRules, lifetime: Lifetime, now: Now) -> None:
        self._slots = slots
        self._rules = rules
        self._requests = JobRequests(rules)
        self._next_request_boot_s = now.boot_s
        self.offers = SlotOffers(slots, rules, lifetime)
        self.broker_backoff = BrokerBackoff(rules)
        self.last_answer_empty = False

    @property
    def is_over(self) -> bool:
        """Whether no request is in flight."""
        return not len(self._requests)

    @property
    def recall_end_boot_s(self) -> float:
        """When recalled requests should be answered; until then they can bring jobs."""
        return self._requests.recall_end_boot_s

    # Requests --------------------------------------------------------------------------------------------------

    def slots_to_request(self, now: Now) -> list[tuple[NodeSlot, Amounts]]:
        """Return the slots to request jobs for now, and how much of each; empty = send no request."""
        if not self._requests.may_send or now.boot_s < self._next_request_boot_s:
            return []
        found = self._requestable_slots(now)
        if not found:
            return []
        is_ordered = any(slot.machine.preemption is not None for slot, _ in found)
        return [] if self.broker_backoff.is_paused(self._version(), now) and not is_ordered else found

    def _requestable_slots(self, now: Now) -> list[tuple[NodeSlot, Amounts]]:
        """Return the slots that no request offers, and how much of each, if one of them is urgent."""
        under_way = self._requests.slots()
        found: list[tuple[NodeSlot, Amounts]] = []
        for slot in self.offers.offerable(now):
            if slot.is_partitionable:
                offered = self._requests.offered_amounts(slot)
                assert offered.fits_in(slot.free), f"{slot.name} is offered twice"
                left = slot.free - offered
                found += [(slot, left)] if left.cpus >= 1 else []
            elif slot not in under_way:
                found.append((slot, slot.free))
        return found if any(self.offers.is_urgent(slot, now) for slot, _ in found) else []

    def _version(self) -> SlotsVersion:
        slots = self._slots
        versions = (slots.ads.version(slot.name) for slot in slots.book)
        return self.broker_backoff.connection, slots.version, self.offers.bound_to, *versions

    def request(self, call: RequestJobs, slots: list[tuple[NodeSlot, Amounts]], now: Now) -> Instruction:
        """Return a request that offers these slots; `call.wait_s` is the longest wait."""
        offered = tuple(self.offers.of(slot, amounts, now) for slot, amounts in slots)
        offers = tuple(each.offer for each in offered)
        is_answered_at_once = self.broker_backoff.is_connected or any(each.is_quick for each in offered)
        call = replace(
            call,
            slots=offers,
            wait_s=0.0 if is_answered_at_once else call.wait_s,
            ad_parts=self.offers.missing_parts(offers),
        )
        self.broker_backoff.request_sent()
        return self._requests.send(call, offered, self._version(), now)

    def due(self, now: Now) -> list[Instruction]:
        """Repeat, recall and merge requests that are due."""
        if self._rules.has_one_owner and not self.is_over and self._requestable_slots(now):
            # There can be no second request for the other slots: one request has to offer all of them.
            return self._requests.due(lambda _: True, now)
        return self._requests.due(self.offers.is_stale, now)

    def recall(self, now: Now) -> list[Instruction]:
        """Recall every waiting request, so that it is answered at once."""
        return self._requests.recall_all(now)

    def abandon(self) -> None:
        """Abandon every unanswered request."""
        self._requests = JobRequests(self._rules)

    # Answers ----------------------------------------------------------------------------------------------------

    def answered(self, event: JobsGranted, now: Now) -> JobRequest | None:
        """Return the answered request and schedule the next; None = it was answered before."""
        request = self._requests.answered(event.request_id)
        if request is None:
            return None
        self.offers.record_parts(request.call, event.ad_parts_wanted)
        if not request.is_quick and _was_matched(event, request.call):
            self.last_answer_empty = not (event.jobs or event.vacate)
            if self.last_answer_empty:
                self.broker_backoff.answered_empty(request.slots_version, now)
                if not request.is_recalled:
                    self._next_request_boot_s = max(now.boot_s, request.first_boot_s + MIN_REQUEST_INTERVAL_S)
        return request

    def failed(self, request_id: str, failure: Failure, now: Now) -> JobRequest | None:
        """Schedule a retry and return None, or remove and return a request that the server refused."""
        if failure.kind is not FailureKind.TRANSIENT:
            return self._requests.answered(request_id)
        self._requests.failed(request_id, failure, now)
        return None

    # Idle timeout -----------------------------------------------------------------------------------------------

    def found_no_job(self, idle_end_boot_s: float) -> bool:
        """Whether the last answer was empty and not older than the idle timeout."""
        return self.last_answer_empty and not self.broker_backoff.paused_before(idle_end_boot_s)

    def request_again(self, now: Now) -> list[Instruction]:
        """Get an answer as soon as possible, by a new request if none is in flight."""
        if self.is_over:
            self.broker_backoff.wake()
        return self.recall(now)

    def alarms(self, now: Now, *, takes_jobs: bool) -> Iterator[float]:
        """Yield the times, on the boot clock, at which a call may be due."""
        yield from self._requests.alarms()
        if now.boot_s < self.recall_end_boot_s:
            yield self.recall_end_boot_s
        if takes_jobs:
            later = (self._next_request_boot_s, *self.broker_backoff.alarms(), *self.offers.alarms())
            yield from (boot_s for boot_s in later if boot_s > now.boot_s)

    def validate(self) -> None:
        """Raise AssertionError if more is offered than exists."""
        self._requests.validate(iter(self._slots.book))


def _was_matched(event: JobsGranted, call: RequestJobs) -> bool:
    """Whether the server matched at all; it does not if it needs other data first."""
    brought = {part.key for part in call.ad_parts}
    return event.node_attributes is None and brought.issuperset(event.ad_parts_wanted)
