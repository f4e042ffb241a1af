"""How a pilot seeks jobs: when it asks for them, for which of its slots, and what it learns from the answers.

Rules
-----
What is free is asked for unless a request under way offers it, the last one was in vain a moment ago, or the pilot
rests (`hearing`). A slot that somebody waits for is asked about in any case.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from pilotage_pilot.core.amounts import Amounts
from pilotage_pilot.core.asking import Asking, Request
from pilotage_pilot.core.events import Failure, FailureKind, JobsGranted
from pilotage_pilot.core.hearing import Hearing, SlotsVersion
from pilotage_pilot.core.instructions import Instruction, RequestJobs
from pilotage_pilot.core.moment import Moment
from pilotage_pilot.core.node_slots import NodeSlots
from pilotage_pilot.core.rules import Lifetime, Rules
from pilotage_pilot.core.slot_book import NodeSlot
from pilotage_pilot.core.slot_offers import SlotOffers

ASK_AGAIN_AFTER_S = 1.0
"""A request that was answered with nothing is not followed by another one sooner than this."""


class JobSeeking:
    """The search of one pilot for jobs."""

    def __init__(self, slots: NodeSlots, rules: Rules, lifetime: Lifetime, now: Moment) -> None:
        self._slots = slots
        self._rules = rules
        self._asking = Asking(rules)
        self._ask_after_boot_s = now.boot_s
        self.offers = SlotOffers(slots, rules, lifetime)
        self.hearing = Hearing(rules)
        self.asked_in_vain = False

    @property
    def is_over(self) -> bool:
        """Whether no request is under way."""
        return not len(self._asking)

    @property
    def taking_back_until_boot_s(self) -> float:
        """By when the requests that are being taken back should be answered; until then they can bring jobs."""
        return self._asking.taking_back_until_boot_s

    # Questions --------------------------------------------------------------------------------------------------

    def slots_to_ask_for(self, now: Moment) -> list[tuple[NodeSlot, Amounts]]:
        """Return the slots that a request is to be sent for now, and how much of each; empty = none is to be sent."""
        if not self._asking.may_ask or now.boot_s < self._ask_after_boot_s:
            return []
        found = self._worth_asking_for(now)
        if not found:
            return []
        is_ordered = any(slot.machine.preemption is not None for slot, _ in found)
        return [] if self.hearing.rests(self._version(), now) and not is_ordered else found

    def _worth_asking_for(self, now: Moment) -> list[tuple[NodeSlot, Amounts]]:
        """Return the slots that no request offers, and how much of them, if it is worth a request."""
        under_way = self._asking.slots()
        found: list[tuple[NodeSlot, Amounts]] = []
        for slot in self.offers.offerable(now):
            if slot.is_partitionable:
                left = slot.free - self._asking.offered_of(slot)
                found += [(slot, left)] if left.cpus >= 1 else []
            elif slot not in under_way:
                found.append((slot, slot.free))
        return found if any(self.offers.is_urgent(slot, now) for slot, _ in found) else []

    def _version(self) -> SlotsVersion:
        slots = self._slots
        return self.hearing.connection, slots.version, *(slots.ads.version(slot.name) for slot in slots.book)

    def ask(self, call: RequestJobs, slots: list[tuple[NodeSlot, Amounts]], now: Moment) -> Instruction:
        """Send a request that offers these slots; it waits as long as `call` says, where nothing is against it."""
        offered = tuple(self.offers.of(slot, amounts, now) for slot, amounts in slots)
        offers = tuple(each.offer for each in offered)
        is_answered_at_once = self.hearing.is_connected or any(each.is_quick for each in offered)
        call = replace(
            call,
            slots=offers,
            wait_s=0.0 if is_answered_at_once else call.wait_s,
            ad_parts=self.offers.parts_for(offers),
        )
        self.hearing.asked()
        return self._asking.ask(call, offered, self._version(), now)

    def due(self, now: Moment) -> list[Instruction]:
        """Repeat, take back and join requests where it is time to."""
        return self._asking.due(self.offers.is_stale, now)

    def take_back(self, now: Moment) -> list[Instruction]:
        """Let every request that waits be answered at once."""
        return self._asking.take_back_all(now)

    def forget(self) -> None:
        """Give up every request that the server has not answered."""
        self._asking = Asking(self._rules)

    # Answers ----------------------------------------------------------------------------------------------------

    def answered(self, event: JobsGranted, now: Moment) -> Request | None:
        """Take out the request that was answered, and learn from it when to ask again; None = it was before."""
        request = self._asking.answered(event.request_id)
        if request is None:
            return None
        self.offers.parts_answered(request.call, event.ad_parts_wanted)
        if not request.is_quick and _was_looked_at(event, request.call):
            self.asked_in_vain = not (event.jobs or event.vacate)
            if self.asked_in_vain:
                self._was_in_vain(request, now)
        return request

    def _was_in_vain(self, request: Request, now: Moment) -> None:
        self.hearing.answered_in_vain(request.slots_version, now)
        if not request.taken_back:
            self._ask_after_boot_s = max(now.boot_s, request.first_boot_s + ASK_AGAIN_AFTER_S)

    def failed(self, request_id: str, failure: Failure, now: Moment) -> Request | None:
        """Repeat a request later, or take it out where the server refused it; returns it then."""
        if failure.kind is not FailureKind.TRANSIENT:
            return self._asking.answered(request_id)
        self._asking.failed(request_id, failure, now)
        return None

    # The end of patience ----------------------------------------------------------------------------------------

    def found_nothing(self, idle_end_boot_s: float) -> bool:
        """Whether a pilot whose patience ended then has asked in vain, and not only before a rest."""
        return self.asked_in_vain and not self.hearing.has_rested_since_before(idle_end_boot_s)

    def ask_once_more(self, now: Moment) -> list[Instruction]:
        """Have the server's answer as soon as possible, from a new request if none is under way."""
        if self.is_over:
            self.hearing.called()
        return self.take_back(now)

    def alarms(self, now: Moment, *, takes_jobs: bool) -> Iterator[float]:
        """Yield the times, on the boot clock, at which there may be something to send."""
        yield from self._asking.alarms()
        if now.boot_s < self.taking_back_until_boot_s:
            yield self.taking_back_until_boot_s
        if takes_jobs:
            later = (self._ask_after_boot_s, *self.hearing.alarms(), *self.offers.alarms())
            yield from (boot_s for boot_s in later if boot_s > now.boot_s)

    def validate(self) -> None:
        """Raise AssertionError where more is offered than there is."""
        self._asking.validate(iter(self._slots.book))


def _was_looked_at(event: JobsGranted, call: RequestJobs) -> bool:
    """Whether the server looked for jobs at all: it does not where it first wants what the request has not brought."""
    brought = {part.key for part in call.ad_parts}
    return event.node_attributes is None and brought.issuperset(event.ad_parts_wanted)
