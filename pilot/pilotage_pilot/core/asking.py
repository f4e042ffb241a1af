"""The requests for jobs: what each offers, when they are repeated, taken back and made into one again.

Rules
-----
Requests that are under way offer disjoint parts of a partitionable slot, and every other slot at most once. A request
is repeated as it was, with its id, until the server has answered or refused it, for its answer may have been given
and lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from pilotage_pilot.core.amounts import NOTHING, Amounts
from pilotage_pilot.core.events import Failure
from pilotage_pilot.core.hearing import SlotsVersion
from pilotage_pilot.core.instructions import Instruction, RequestJobs, TakeBackRequest, without_waiting
from pilotage_pilot.core.moment import Moment
from pilotage_pilot.core.rules import Rules
from pilotage_pilot.core.slot_book import NodeSlot
from pilotage_pilot.core.slot_offers import Offered

TAKING_BACK_S = 2.0
"""A request that is taken back is answered within this time where the server is there."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request under way: when it was first sent, when it is sent again, since when it is being taken back.

    `slots_version` is that of the slots when it was first sent.
    """

    call: RequestJobs
    offered: tuple[Offered, ...]
    slots_version: SlotsVersion
    first_boot_s: float
    failures: int = 0
    retry_boot_s: float | None = None
    taken_back_boot_s: float | None = None

    @property
    def taken_back(self) -> bool:
        """Whether it is to be answered at once."""
        return self.taken_back_boot_s is not None

    @property
    def waits(self) -> bool:
        """Whether the server may let it wait for a job."""
        return self.call.wait_s > 0 and not self.taken_back

    @property
    def is_quick(self) -> bool:
        """Whether it was sent for slots that somebody waits for, or that wait for somebody."""
        return any(offered.is_quick for offered in self.offered)


class Asking:
    """The requests of one pilot that the server has not answered."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._requests: dict[str, Request] = {}

    def __len__(self) -> int:
        return len(self._requests)

    def answered(self, request_id: str) -> Request | None:
        """Take out a request that was answered or refused; None = it was before."""
        return self._requests.pop(request_id, None)

    def slots(self) -> set[NodeSlot]:
        """Return the slots that requests under way offer, or parts of."""
        return {offered.slot for offered in self._offered()}

    def offered_of(self, slot: NodeSlot) -> Amounts:
        """Return what requests under way offer of a partitionable slot: parts of it, and what dynamic slots had."""
        return sum((each.offer.free for each in self._offered() if _is_of(each, slot)), NOTHING)

    def _offered(self) -> Iterator[Offered]:
        return (offered for request in self._requests.values() for offered in request.offered)

    @property
    def may_ask(self) -> bool:
        """Whether one more request may be sent."""
        return len(self) < self._rules.requests_at_once and not any(
            request.taken_back or request.failures for request in self._requests.values()
        )

    @property
    def taking_back_until_boot_s(self) -> float:
        """By when the requests that are being taken back should be answered; until then they can bring jobs."""
        since = (request.taken_back_boot_s for request in self._requests.values())
        return max((boot_s + TAKING_BACK_S for boot_s in since if boot_s is not None), default=float("-inf"))

    def ask(
        self, call: RequestJobs, offered: tuple[Offered, ...], slots_version: SlotsVersion, now: Moment
    ) -> Instruction:
        """Put a request on its way."""
        self._requests[call.request_id] = Request(call, offered, slots_version, now.boot_s)
        return call

    def failed(self, request_id: str, failure: Failure, now: Moment) -> None:
        """Plan the repetition of a request that got no answer."""
        request = self._requests.get(request_id)
        if request is not None:
            failures = request.failures + 1
            retry = now.boot_s + failure.pause_s(failures)
            self._requests[request_id] = replace(request, failures=failures, retry_boot_s=retry)

    def take_back_all(self, now: Moment) -> list[Instruction]:
        """Let every request that waits be answered at once."""
        return self._take_back(lambda request: not request.taken_back, now)

    def _take_back(self, which: Callable[[Request], bool], now: Moment) -> list[Instruction]:
        found = [(key, request) for key, request in self._requests.items() if which(request)]
        for key, request in found:
            self._requests[key] = replace(request, taken_back_boot_s=now.boot_s)
        return [TakeBackRequest(key) for key, request in found if request.waits and request.retry_boot_s is None]

    def due(self, is_stale: Callable[[Offered], bool], now: Moment) -> list[Instruction]:
        """Repeat what is to be repeated, take back what offers slots as they were, make several requests into one."""
        instructions: list[Instruction] = []
        for key, request in self._requests.items():
            if request.retry_boot_s is not None and request.retry_boot_s <= now.boot_s:
                self._requests[key] = replace(request, retry_boot_s=None)
                # Who has waited for the server long enough does not wait for a job as well.
                instructions.append(without_waiting(request.call))
        if self._merge_boot_s() <= now.boot_s:
            return instructions + self.take_back_all(now)
        return instructions + self._take_back(lambda each: each.waits and any(map(is_stale, each.offered)), now)

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
        """Raise AssertionError where more is offered than there is."""
        for slot in slots:
            offers = [each for each in self._offered() if each.slot is slot]
            if slot.is_partitionable:
                offered = self.offered_of(slot)
                assert offered.fits_in(slot.free), f"of {slot.name} {offered} is offered, {slot.free} is free"
            else:
                assert len(offers) <= 1, f"{slot.name} is in {len(offers)} requests"
        assert len(self) <= self._rules.requests_at_once, f"{len(self)} requests are under way"


def _is_of(offered: Offered, slot: NodeSlot) -> bool:
    if offered.slot is slot:
        return True
    if offered.offer.occupied is not None or not (offered.slot.is_dynamic and offered.slot.machine.deleted):
        return False
    # What a dynamic slot had that is gone is its parent's again, and its request may still bring a job for it.
    return offered.slot.parent == slot.name
