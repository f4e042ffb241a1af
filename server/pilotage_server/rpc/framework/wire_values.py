"""Wire ↔ domain for lists that several services use, with their limits."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, TypeVar

from pilotage.errors import Faults, InvalidInputError, Violation
from pilotage.resources.queue_patterns import pattern_fault
from pilotage.resources.tree import QueueId
from pilotage.rpc.wire import queue_from_wire, text_from_wire
from pilotage.v1 import values_pb2
from pilotage.values.wire.fields import all_from_wire, job_id_from_wire

MAX_IDS = 10_000
"""Limit of the jobs, stamps or queues in one call."""

_MAX_SET_CHARS = 4096
"""Limit of the patterns of a set of queues as JSON: they are in the secrets of its pilots, whose length is limited."""

Result = TypeVar("Result")
Other = TypeVar("Other")


def job_ids_from_wire(job_ids: Sequence[int]) -> tuple[int, ...]:
    """Return the job ids of a call: at least one, at most `MAX_IDS`."""
    faults = Faults()
    with faults.within("job_ids"):
        check_count(job_ids)
        check_not_empty(job_ids)
        all_from_wire(job_ids, job_id_from_wire)
    faults.raise_any()
    return tuple(job_ids)


def check_not_empty(things: Sequence[Any]) -> None:
    """Raise InvalidInputError for an empty list."""
    if not things:
        raise InvalidInputError(Violation("", "names nothing"))


def check_count(things: Sequence[Any]) -> None:
    """Raise InvalidInputError for a list of more than `MAX_IDS`."""
    if len(things) > MAX_IDS:
        raise InvalidInputError(Violation("", f"names {len(things)}, and one call may name {MAX_IDS}"))


def queues_from_wire(messages: Sequence[values_pb2.QueueId]) -> tuple[QueueId, ...]:
    """Return the queues of a call; faults have the path `queues`."""
    faults = Faults()
    queues: tuple[QueueId, ...] = ()
    with faults.within("queues"):
        check_count(messages)
        queues = all_from_wire(messages, queue_from_wire)
    faults.raise_any()
    return queues


def queue_pattern(text: str) -> str:
    """Return a pattern of queues; raises InvalidInputError unless it has the form SITE/CE/QUEUE."""
    if fault := pattern_fault(text):
        raise InvalidInputError(Violation("", fault))
    return text_from_wire(text)


def queue_set_from_wire(patterns: Sequence[str]) -> tuple[str, ...]:
    """Return the patterns of a set of queues, sorted, so that equal sets are equal; none = there is no set."""
    if len(json.dumps(list(patterns))) > _MAX_SET_CHARS:
        raise InvalidInputError(Violation("", f"has more than {_MAX_SET_CHARS} characters as JSON"))
    return tuple(sorted(set(all_from_wire(patterns, queue_pattern))))
