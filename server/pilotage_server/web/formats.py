"""How templates write times, lengths, sizes, states and values."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from google.protobuf.timestamp_pb2 import Timestamp
from markupsafe import Markup, escape

from pilotage.rpc.wire import value_from_wire
from pilotage.v1 import jobs_pb2, values_pb2

DASH = "\u2013"
"""Stands for a value that is not there."""

KINDS: Mapping[str, str] = {
    "RECEIVED": "wait",
    "WAITING": "wait",
    "BLOCKED": "wait",
    "MATCHED": "busy",
    "RUNNING": "busy",
    "SUSPENDED": "busy",
    "COMPLETING": "busy",
    "RACING": "busy",
    "DONE": "good",
    "FAILED": "bad",
    "HELD": "warn",
    "REMOVED": "off",
}
"""The kind of each state of a job, which has a colour."""


def state_name(state: int) -> str:
    """Return the name of a job's state, such as RUNNING."""
    return jobs_pb2.JobState.Name(state).removeprefix("JOB_STATE_")  # type: ignore[arg-type] # stubs have a type of their own


def state_kind(state: int) -> str:
    """Return the kind of a job's state: wait, busy, good, bad, warn or off."""
    return KINDS.get(state_name(state), "off")


def moment(time: Timestamp | datetime | None) -> datetime | None:
    """Return a time of a message; None = it is unset."""
    if isinstance(time, Timestamp):
        return time.ToDatetime(UTC) if time.seconds or time.nanos else None
    return time


def time_text(time: Timestamp | datetime | None) -> str:
    """Return a time in UTC to the second."""
    found = moment(time)
    return DASH if found is None else f"{found:%Y-%m-%d %H:%M:%S}"


def iso_text(time: Timestamp | datetime | None) -> str:
    """Return a time as ISO 8601, for programs."""
    found = moment(time)
    return "" if found is None else f"{found:%Y-%m-%dT%H:%M:%SZ}"


def length_text(seconds: float | timedelta) -> str:
    """Return a length of time with its two largest units, such as 3 h 05 min."""
    whole = int(seconds.total_seconds() if isinstance(seconds, timedelta) else seconds)
    for unit, size, lower, lower_size in (("d", 86400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // lower_size:02} {lower}"
    return f"{whole} s"


def age_text(time: Timestamp | datetime | None, now: datetime) -> str:
    """Return how long ago a time is."""
    found = moment(time)
    return DASH if found is None else length_text(max(timedelta(0), now - found))


def number_text(number: float) -> str:
    """Return a number with commas between thousands."""
    return f"{number:,.0f}"


def counted_text(number: float, noun: str) -> str:
    """Return a number with a noun, such as 1 job or 1,200 jobs."""
    return f"{number_text(number)} {noun}{'' if number == 1 else 's'}"


def hours_text(seconds: float) -> str:
    """Return a length in hours, with two digits after the point if there are few."""
    hours = seconds / 3600
    return f"{hours:.2f}" if 0.005 <= hours < 10 else number_text(hours)


def size_text(size: float) -> str:
    """Return a size in bytes with a unit."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def queue_text(queue: values_pb2.QueueId) -> str:
    """Return the name of a queue as commands take it: SITE/CE/QUEUE; a dash = it is unset."""
    return f"{queue.site}/{queue.ce}/{queue.queue}" if queue.site else DASH


def value_text(value: values_pb2.Value) -> str:
    """Return a value of a parameter or an attribute."""
    found = value_from_wire(value)
    if isinstance(found, bool):
        return "true" if found else "false"
    return ", ".join(map(str, found)) if isinstance(found, tuple | list) else str(found)


def section_text(section: Mapping[str, values_pb2.Value]) -> str:
    """Return requirements as one line."""
    return ", ".join(f"{name} = {value_text(section[name])}" for name in sorted(section)) or "none"


_CODE = re.compile("`([^`\\n]+)`")
_TIME_IN_TEXT = re.compile(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d:\d\d)(?:\.\d+)?(?:\+00:00|Z)", re.ASCII)


def prose_text(text: str) -> Markup:
    """Return a sentence of the server as HTML: times in UTC as pages write them, and commands in `code` elements."""
    escaped = _TIME_IN_TEXT.sub(r"\1 \2", str(escape(text)))
    return Markup(_CODE.sub(r"<code>\1</code>", escaped))  # noqa: S704 # the text is escaped above


FILTERS: Mapping[str, Callable[..., Any]] = {
    "age": age_text,
    "counted": counted_text,
    "hours": hours_text,
    "iso": iso_text,
    "kind": state_kind,
    "lasting": length_text,
    "number": number_text,
    "prose": prose_text,
    "queue": queue_text,
    "section": section_text,
    "size": size_text,
    "state": state_name,
    "time": time_text,
    "value": value_text,
}
"""The filters of templates by name."""
