"""The requests for jobs: what each offers, when they are repeated, taken back and made into one again.

Rules
-----
Requests that are under way offer disjoint parts of the partitionable slot. A request is repeated as it was, with its
id, until the server has answered or refused it, for its answer may have been given and lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from pilotage_pilot.core.amounts import NOTHING, Amounts
from pilotage_pilot.core.events import Failure
from pilotage_pilot.core.instructions import Instruction, RequestJobs, TakeBackRequest, without_waiting
from pilotage_pilot.core.moment import Moment
from pilotage_pilot.core.rules import Rules, backoff_s

TAKING_BACK_S = 2.0
"""A request that is taken back is answered within this time where the server is there."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request under way: when it was first sent, when it is sent again, since when it is being taken back."""

    call: RequestJobs
    first_boot_s: float
    failures: int = 0
    retry_boot_s: float | None = None
    taken_back_boot_s: float | None = None

    @property
    def taken_back(self) -> bool:
        """Whether it is to be answered at once."""
        return self.taken_back_boot_s is not None

    @property
    def offered(self) -> Amounts:
        """What the request offers, of all slots in it."""
        return sum((slot.free for slot in self.call.slots), NOTHING)


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

    @property
    def offered(self) -> Amounts:
        """What all requests under way offer together."""
        return sum((request.offered for request in self._requests.values()), NOTHING)

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

    def ask(self, call: RequestJobs, now: Moment) -> Instruction:
        """Put a request on its way."""
        self._requests[call.request_id] = Request(call, now.boot_s)
        return call

    def failed(self, request_id: str, failure: Failure, now: Moment) -> None:
        """Plan the repetition of a request that got no answer."""
        request = self._requests.get(request_id)
        if request is not None:
            failures = request.failures + 1
            retry = now.boot_s + backoff_s(failures, failure.jitter)
            self._requests[request_id] = replace(request, failures=failures, retry_boot_s=retry)

    def take_back_all(self, now: Moment) -> list[Instruction]:
        """Let every request that waits be answered at once."""
        waiting = [key for key, request in self._requests.items() if not request.taken_back]
        for key in waiting:
            self._requests[key] = replace(self._requests[key], taken_back_boot_s=now.boot_s)
        return [TakeBackRequest(key) for key in waiting if self._requests[key].retry_boot_s is None]

    def due(self, now: Moment) -> list[Instruction]:
        """Repeat what is to be repeated, and make several waiting requests into one."""
        instructions: list[Instruction] = []
        for key, request in self._requests.items():
            if request.retry_boot_s is not None and request.retry_boot_s <= now.boot_s:
                self._requests[key] = replace(request, retry_boot_s=None)
                # Who has waited for the server long enough does not wait for a job as well.
                instructions.append(without_waiting(request.call))
        if self._merge_boot_s() <= now.boot_s:
            instructions += self.take_back_all(now)
        return instructions

    def _merge_boot_s(self) -> float:
        waiting = [request.first_boot_s for request in self._requests.values() if not request.taken_back]
        return max(waiting) + self._rules.merge_after_s if len(waiting) > 1 else float("inf")

    def alarms(self) -> Iterator[float]:
        """Yield the times, on the boot clock, at which `due` may have something to do."""
        yield self._merge_boot_s()
        for request in self._requests.values():
            if request.retry_boot_s is not None:
                yield request.retry_boot_s

    def validate(self, free: Amounts) -> None:
        """Raise AssertionError where more is offered than is free."""
        assert self.offered.fits_in(free), f"{self.offered} is offered, {free} is free"
        assert len(self) <= self._rules.requests_at_once, f"{len(self)} requests are under way"
