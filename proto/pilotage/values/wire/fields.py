"""Reads messages field by field and collects every fault with its place.

The `*_from_wire` functions of values use it. A fault's place is the name of its field, in a list its index.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from datetime import datetime, timedelta
from typing import Any, TypeVar, cast

from google.protobuf.message import Message

from pilotage.errors import Faults, InvalidInputError, Violation
from pilotage.jobs.report_limits import LONGEST_REASON
from pilotage.rpc.wire import length_from_wire, text_from_wire, time_from_wire

Result = TypeVar("Result")
Other = TypeVar("Other")


def all_from_wire(messages: Collection[Any], take: Callable[[Any], Result]) -> tuple[Result, ...]:
    """Return `take` of every message; the faults of all are raised together, placed by index."""
    if not messages:
        return ()
    faults, taken = Faults(), []
    for index, message in enumerate(messages):
        try:
            taken.append(take(message))
        except InvalidInputError as error:
            faults.extend(f"[{index}]", error.violations)
    faults.raise_any()
    return tuple(taken)


def valid_or_malformed(
    messages: Collection[Any], take: Callable[[Any], Result], malformed: Callable[[Any, str], Other]
) -> tuple[Result | Other, ...]:
    """Return `take` of every valid message, and `malformed` of every other with its faults."""

    def one(message: Any) -> Result | Other:
        try:
            return take(message)
        except InvalidInputError as error:
            return malformed(message, str(error))

    return tuple(map(one, messages))


def job_id_from_wire(job_id: int) -> int:
    """Return the id of a job."""
    if job_id <= 0:
        raise InvalidInputError(Violation("", f"{job_id} is not the id of a job"))
    return job_id


def name_from_wire(text: str) -> str:
    """Return a name for people, which must not be empty."""
    if not text.strip():
        raise InvalidInputError(Violation("", "is missing"))
    return text_from_wire(text)


def reason_from_wire(reason: str) -> str:
    """Return a reason for people, cut to the limit."""
    return text_from_wire(reason)[:LONGEST_REASON]


class Fields:
    """Reads the fields of one message and collects their faults; `done` raises them."""

    def __init__(self, message: Message) -> None:
        self.faults = Faults()
        self._message = message

    def __call__(self, name: str, take: Callable[[Any], Result]) -> Result:
        """Return `take` of a field; the value of a faulty one is never used, as `done` raises."""
        try:
            return take(getattr(self._message, name))
        except InvalidInputError as error:
            self.faults.extend(name, error.violations)
            return cast("Result", None)

    def if_set(self, name: str, take: Callable[[Any], Result]) -> Result | None:
        """Return `take` of a field, None if it is not set."""
        return self(name, take) if self._message.HasField(name) else None

    def time(self, name: str) -> datetime | None:
        """Return the time in a field, None if it is not set."""
        return self.if_set(name, time_from_wire)

    def length(self, name: str) -> timedelta:
        """Return the duration in a field in seconds."""
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
        """Raise InvalidInputError with every fault, if there is any."""
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
