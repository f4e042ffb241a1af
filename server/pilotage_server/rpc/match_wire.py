"""Matches as bytes of the wire, put together from parts that many jobs share.

Rules
-----
What comes out means what the protocol's own messages would say, which is the measure of it in the tests. What the
matches of one kind have in common is encoded once, their description with it; what each job adds, such as its numbers
in the environment, is appended, for in the wire format a message may come in pieces that are merged (Protocol Buffers,
"Encoding"). Only where a description has macros, or a pilot has waited, each match is made from messages.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from datetime import timedelta
from typing import Any

from google.protobuf.descriptor import FieldDescriptor

from pilotage.description_wire import description_to_wire
from pilotage.v1 import jobs_pb2, matcher_service_pb2
from pilotage_server.core.macros import NUMBERS, belongings, numbers
from pilotage_server.operations.work import Match, WorkAnswer
from pilotage_server.rpc.convert_matching import match_to_wire, work_answer_to_wire
from pilotage_server.rpc.convert_values import amounts_to_wire

_MOST_REMEMBERED = 20_000
_MACRO = b"$("
_MORE = 0x80
_NUMBER, _LENGTH_DELIMITED = 0, 2
_LONGEST_NUMBER = 20
"""Digits of a number of 64 bits."""


_SMALL = tuple(bytes((number,)) for number in range(_MORE))


def varint(number: int) -> bytes:
    """Return a number from 0 as the wire format writes it, seven bits a byte (Protocol Buffers, "Encoding")."""
    if number < _MORE:
        return _SMALL[number]
    found = bytearray()
    while number >= _MORE:
        found.append(number & (_MORE - 1) | _MORE)
        number >>= 7
    found.append(number)
    return bytes(found)


def _tag(message: Any, field: str, kind: int = _LENGTH_DELIMITED) -> bytes:
    """Return the key of a field, which holds a message or a text unless another kind is named."""
    descriptor: FieldDescriptor = message.DESCRIPTOR.fields_by_name[field]
    return varint(descriptor.number << 3 | kind)


_MATCHES = _tag(matcher_service_pb2.RequestJobsResponse, "matches")
_SLOT, _DESCRIPTION, _JOB_AD = (_tag(matcher_service_pb2.Match, name) for name in ("slot", "description", "job_ad"))
_JOB_ID, _ATTEMPT, _CLUSTER, _PROCESS = (
    _tag(matcher_service_pb2.Match, name, _NUMBER) for name in ("job_id", "attempt", "cluster", "process")
)
_ENVIRONMENT = _tag(jobs_pb2.JobDescription, "environment")
_KEY, _VALUE = b"\x0a", b"\x12"
"""The keys of what a map is made of, which are the same for every map."""


def _framed(tag: bytes, content: bytes) -> bytes:
    return tag + varint(len(content)) + content


def _prefixes(name: str) -> tuple[bytes, ...]:
    """Return what stands before a value in the environment's entry of that name, by the length of the value."""
    head = _framed(_KEY, name.encode()) + _VALUE
    sizes = range(_LONGEST_NUMBER + 1)
    return tuple(_ENVIRONMENT + varint(len(head) + 1 + size) + head + varint(size) for size in sizes)


_NUMBERS = tuple(map(_prefixes, NUMBERS))


class MatchWriter:
    """Writes matches, and remembers what those of one kind have in common."""

    def __init__(self, most: int = _MOST_REMEMBERED) -> None:
        self._most = most
        self._common: OrderedDict[tuple[object, ...], bytes] = OrderedDict()

    def answer(self, answer: WorkAnswer, waited: timedelta = timedelta(0)) -> bytes:
        """Return the response to a request that was made so long ago: leases count from the sending of the request."""
        matches = [_framed(_MATCHES, self._match(match, waited)) for match in answer.matches]
        if answer.is_all_matches:
            return b"".join(matches)
        rest = work_answer_to_wire(replace(answer, matches=()))
        return b"".join((*matches, rest.SerializeToString()))

    def _match(self, match: Match, waited: timedelta) -> bytes:
        if waited:
            return match_to_wire(replace(match, lease=match.lease + waited)).SerializeToString()
        common = self._in_common(match)
        return common + _own(match) if common else match_to_wire(match).SerializeToString()

    def _in_common(self, match: Match) -> bytes:
        """Return what a match has in common with others of its kind; nothing where macros make each job another."""
        kind = (match.template_id, match.task_queue_id, match.lease, match.amounts, match.owner, match.vo, match.group)
        found = self._common.get(kind)
        if found is None:
            found = self._common[kind] = _made_common(match)
            if len(self._common) > self._most:
                self._common.popitem(last=False)
        return found


def _made_common(match: Match) -> bytes:
    description = description_to_wire(replace(match.description, count=None))
    if _MACRO in description.SerializeToString():
        return b""
    description.environment.update(belongings(match))
    message = matcher_service_pb2.Match(
        lease_s=match.lease.total_seconds(),
        description=description,
        amounts=amounts_to_wire(match.amounts),
        task_queue=match.task_queue_id,
        owner=match.owner,
        vo=match.vo,
        group=match.group,
    )
    return message.SerializeToString()


def _own(match: Match) -> bytes:
    """Return what a match says of its own: the slot, the job, and the job's numbers in the environment."""
    values = [value.encode() for value in numbers(match)]
    entries = [prefixes[len(value)] + value for prefixes, value in zip(_NUMBERS, values, strict=True)]
    return b"".join(
        (
            _framed(_SLOT, match.slot.encode()),
            _JOB_ID + varint(match.job_id),
            _ATTEMPT + varint(match.attempt),
            _CLUSTER + varint(match.cluster),
            _PROCESS + varint(match.process),
            _framed(_DESCRIPTION, b"".join(entries)),
            _framed(_JOB_AD, match.job_ad.encode()) if match.job_ad else b"",
        )
    )
