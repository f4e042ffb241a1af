"""Wire ↔ domain for the small things that several services speak of."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeVar, cast

from google.protobuf.message import Message

from pilotage.errors import InvalidInputError, Violation
from pilotage.faults import Faults
from pilotage.report_bounds import LONGEST_REASON
from pilotage.resource_tree import QueueId
from pilotage.v1 import values_pb2
from pilotage.wire import length_from_wire, queue_from_wire, text_from_wire, time_from_wire
from pilotage_server.core.amounts import Amounts

MOST_IDS = 10_000
"""No call names more jobs, stamps or queues than this."""

Result = TypeVar("Result")
Other = TypeVar("Other")


def amounts_to_wire(amounts: Amounts) -> values_pb2.Amounts:
    """Return the message of amounts."""
    return values_pb2.Amounts(
        cpus=amounts.cpus, memory_mib=amounts.memory_mib, disk_mib=amounts.disk_mib, gpus=amounts.gpus
    )


def amounts_from_wire(message: values_pb2.Amounts) -> Amounts:
    """Return amounts, none of them below zero."""
    faults = Faults()
    for name in ("cpus", "memory_mib", "disk_mib", "gpus"):
        amount = getattr(message, name)
        faults.unless(amount >= 0, name, f"{amount} is less than 0")
    faults.raise_any()
    return Amounts(message.cpus, message.memory_mib, message.disk_mib, message.gpus)


def each(messages: Collection[Any], take: Callable[[Any], Result]) -> tuple[Result, ...]:
    """Return what `take` makes of every message; the faults of all are raised together, placed by number."""
    if not messages:
        return ()
    faults, taken = Faults(), []
    for place, message in enumerate(messages):
        try:
            taken.append(take(message))
        except InvalidInputError as error:
            faults.extend(f"[{place}]", error.violations)
    faults.raise_any()
    return tuple(taken)


def each_by_itself(
    messages: Collection[Any], take: Callable[[Any], Result], malformed: Callable[[Any, str], Other]
) -> tuple[Result | Other, ...]:
    """Return what `take` makes of every message, and of one with faults what `malformed` makes of it and these."""

    def one(message: Any) -> Result | Other:
        try:
            return take(message)
        except InvalidInputError as error:
            return malformed(message, str(error))

    return tuple(map(one, messages))


def job_ids_from_wire(job_ids: Sequence[int]) -> tuple[int, ...]:
    """Return the ids of jobs that a call names: at least one, not too many."""
    faults = Faults()
    with faults.within("job_ids"):
        not_too_many(job_ids)
        some(job_ids)
        each(job_ids, job_id_from_wire)
    faults.raise_any()
    return tuple(job_ids)


def job_id_from_wire(job_id: int) -> int:
    """Return the id of a job."""
    if job_id <= 0:
        raise InvalidInputError(Violation("", f"{job_id} is not the id of a job"))
    return job_id


def some(things: Sequence[Any]) -> None:
    """Raise InvalidInputError where nothing is named."""
    if not things:
        raise InvalidInputError(Violation("", "names nothing"))


def not_too_many(things: Sequence[Any]) -> None:
    """Raise InvalidInputError where more is named than one call may."""
    if len(things) > MOST_IDS:
        raise InvalidInputError(Violation("", f"names {len(things)}, and one call may name {MOST_IDS}"))


def queues_from_wire(messages: Sequence[values_pb2.QueueId]) -> tuple[QueueId, ...]:
    """Return the queues that a call names; the faults are placed in its field `queues`."""
    faults = Faults()
    queues: tuple[QueueId, ...] = ()
    with faults.within("queues"):
        not_too_many(messages)
        queues = each(messages, queue_from_wire)
    faults.raise_any()
    return queues


def name_from_wire(text: str) -> str:
    """Return a name that people read: it is not empty."""
    if not text.strip():
        raise InvalidInputError(Violation("", "is missing"))
    return text_from_wire(text)


def reason_from_wire(reason: str) -> str:
    """Return a reason for people, cut where it is too long to keep."""
    return text_from_wire(reason)[:LONGEST_REASON]


class Fields:
    """Reads the fields of one message and collects what is wrong with them; `done` raises it."""

    def __init__(self, message: Message) -> None:
        self.faults = Faults()
        self._message = message

    def __call__(self, name: str, take: Callable[[Any], Result]) -> Result:
        """Return what `take` makes of a field; what comes of a faulty one is never used, for `done` raises."""
        try:
            return take(getattr(self._message, name))
        except InvalidInputError as error:
            self.faults.extend(name, error.violations)
            return cast("Result", None)

    def if_set(self, name: str, take: Callable[[Any], Result]) -> Result | None:
        """Return what `take` makes of a field, None where it is not set."""
        return self(name, take) if self._message.HasField(name) else None

    def time(self, name: str) -> datetime | None:
        """Return the time in a field, None where it is not set."""
        return self.if_set(name, time_from_wire)

    def length(self, name: str) -> timedelta:
        """Return the length of time in a field in seconds."""
        return self(name, length_from_wire)

    def text(self, name: str) -> str:
        """Return the text in a field."""
        return self(name, text_from_wire)

    def count(self, name: str) -> int:
        """Return the number in a field, zero or more."""
        return self(name, _not_negative)

    def amount(self, name: str) -> float:
        """Return the number with a fraction in a field, zero or more and finite."""
        return self(name, _finite)

    def number(self, name: str) -> float:
        """Return the finite number in a field, of either sign."""
        return self(name, _number)

    def done(self) -> None:
        """Raise InvalidInputError with every fault, when there is any."""
        self.faults.raise_any()


def _not_negative(number: int) -> int:
    if number < 0:
        raise InvalidInputError(Violation("", f"{number} is less than 0"))
    return number


def _number(number: float) -> float:
    if not math.isfinite(number):
        raise InvalidInputError(Violation("", f"{number} is no number"))
    return number


def _finite(number: float) -> float:
    if not 0 <= number < float("inf"):
        raise InvalidInputError(Violation("", f"{number} is not a number from 0 up"))
    return number
