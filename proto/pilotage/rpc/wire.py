"""Wire ↔ values, for all processes: values, sections, queues, times, enumerations.

`*_to_wire` takes a valid value. `*_from_wire` takes any input and raises InvalidInputError with every fault, placed
relative to the given message. No text on the wire holds a NUL character, as databases and operating systems reject it.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Protocol

from google.protobuf.timestamp_pb2 import Timestamp

from pilotage.accounts import Quota, QuotaUnit, checked_quota
from pilotage.errors import Faults, InvalidInputError, Violation
from pilotage.resources.queue_id import QueueId
from pilotage.text import given_value, scalar_fault, text_fault
from pilotage.v1 import share_service_pb2, values_pb2

if TYPE_CHECKING:
    from pilotage.job_description import Scalar, Value

LONGEST_S = 1e10
"""The longest duration on the wire: about 317 years, in seconds."""


class WireEnum(Protocol):
    """The methods of a generated enumeration."""

    def Name(self, number: Any) -> str:  # noqa: N802 - the generated code's own name
        """Return the full name of a number."""

    def Value(self, name: str) -> Any:  # noqa: N802 - the generated code's own name
        """Return the number of a full name."""


def value_to_wire(value: object) -> values_pb2.Value:
    """Return the message of a value as `given_value` takes it; raises InvalidInputError for an invalid one."""
    value = given_value(value)
    if isinstance(value, tuple):
        return values_pb2.Value(list=values_pb2.ValueList(values=[_scalar_to_wire(each) for each in value]))
    return _scalar_to_wire(value)


def _scalar_to_wire(value: Scalar) -> values_pb2.Value:
    if fault := scalar_fault(value):
        raise _fault(fault)
    match value:
        case bool():
            return values_pb2.Value(flag=value)
        case int():
            return values_pb2.Value(integer=value)
        case float():
            return values_pb2.Value(number=value)
        case str():
            return values_pb2.Value(text=value)


def value_from_wire(message: values_pb2.Value) -> Value:
    """Return the value of a message; a list becomes a tuple."""
    if message.WhichOneof("kind") != "list":
        return _scalar_from_wire(message)
    faults, values = Faults(), []
    for index, each in enumerate(message.list.values):
        with faults.within(f"[{index}]"):
            values.append(_scalar_from_wire(each))
    faults.raise_any()
    return tuple(values)


def _scalar_from_wire(message: values_pb2.Value) -> Scalar:
    kind = message.WhichOneof("kind")
    if kind is None:
        raise _fault("has no value")
    if kind == "list":
        raise _fault("lists do not nest")
    value: Scalar = getattr(message, kind)
    if fault := scalar_fault(value):
        raise _fault(fault)
    return value


def section_to_wire(section: Mapping[str, object], target: MutableMapping[str, values_pb2.Value]) -> None:
    """Fill the message map `target` with the values of a section; faults are placed by name."""
    faults = Faults()
    if not isinstance(section, Mapping):
        raise _fault(f"is of type {type(section).__name__}, not a mapping of names to values")
    for name, value in section.items():
        faults.unless(isinstance(name, str), str(name), "the name is not a text")
        with faults.within(str(name)):
            target[str(name)].CopyFrom(value_to_wire(value))
    faults.raise_any()


def section_from_wire(source: Mapping[str, values_pb2.Value]) -> dict[str, Value]:
    """Return the values of a section by name, as spelled; faults are placed by name."""
    faults, section = Faults(), {}
    for name, message in source.items():
        faults.unless(bool(name.strip()), "", "a value has no name")
        with faults.within(name):
            section[text_from_wire(name)] = value_from_wire(message)
    faults.raise_any()
    return section


def text_from_wire(text: str) -> str:
    """Return `text`; raises InvalidInputError if a database could not store it."""
    if fault := text_fault(text):
        raise _fault(fault)
    return text


def queue_to_wire(queue: QueueId) -> values_pb2.QueueId:
    """Return the message of a queue's id."""
    return values_pb2.QueueId(site=queue.site, ce=queue.ce, queue=queue.queue)


def queue_from_wire(message: values_pb2.QueueId) -> QueueId:
    """Return the id of a queue, which may be missing in the tree."""
    faults = Faults()
    for name, text in (("site", message.site), ("ce", message.ce), ("queue", message.queue)):
        faults.unless(bool(text), name, "is missing")
        with faults.within(name):
            text_from_wire(text)
    for name, text in (("site", message.site), ("ce", message.ce)):
        faults.unless("/" not in text, name, f'"{text}" holds a "/"')
    faults.raise_any()
    return QueueId(message.site, message.ce, message.queue)


def quota_to_wire(quota: Quota) -> share_service_pb2.Quota:
    """Return the message of a group's quota."""
    return share_service_pb2.Quota(**{quota.unit.value: quota.amount})


def quota_from_wire(message: share_service_pb2.Quota) -> Quota:
    """Return the quota of a message."""
    unit = message.WhichOneof("quota")
    if unit is None:
        raise _fault("has no amount")
    return checked_quota(Quota(getattr(message, unit), QuotaUnit(unit)))


def time_to_wire(time: datetime | None) -> Timestamp | None:
    """Return the message of a time; None stays None, which message constructors take as unset."""
    if time is None:
        return None
    message = Timestamp()
    message.FromDatetime(time)
    return message


def time_from_wire(message: Timestamp) -> datetime:
    """Return an aware time in UTC; the caller checks whether the field is set."""
    try:
        return message.ToDatetime(tzinfo=UTC)
    except (ValueError, OverflowError) as error:
        raise _fault(f"is not a time: {error}") from None


def length_from_wire(seconds: float) -> timedelta:
    """Return the duration of a field in seconds, zero or longer."""
    if not 0 <= seconds <= LONGEST_S:
        raise _fault(f"{seconds} is not a duration in seconds (0 to {LONGEST_S:g})")
    return timedelta(seconds=seconds)


def enum_to_wire(kind: WireEnum, name: str) -> Any:
    """Return the number of a short name such as WAITING; "" is the unspecified one."""
    return kind.Value(_prefix(kind) + (name or "UNSPECIFIED"))


def enum_from_wire(kind: WireEnum, number: int) -> str:
    """Return the short name of a number, such as WAITING for JOB_STATE_WAITING; unspecified is "".

    A number unknown to this release raises InvalidInputError.
    """
    try:
        return kind.Name(number).removeprefix(_prefix(kind)) if number else ""
    except ValueError:
        raise _fault(f"{number} means nothing to this release") from None


def _prefix(kind: WireEnum) -> str:
    return kind.Name(0).removesuffix("UNSPECIFIED")


def _fault(why: str) -> InvalidInputError:
    return InvalidInputError(Violation("", why))
