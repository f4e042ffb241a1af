"""Matches as bytes of the wire, put together from parts that many jobs share.

Rules
-----
What comes out means what the protocol's own messages would say, which is the measure of it in the tests. What the
matches of one kind have in common is encoded once, their description with it; what each job adds, such as its numbers
in the environment, is appended, for in the wire format a message may come in pieces that are merged (Protocol Buffers,
"Encoding"). Only where a description has macros each match is made from messages.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from functools import lru_cache
from struct import pack
from typing import Any, NamedTuple

from google.protobuf.descriptor import FieldDescriptor

from pilotage.description_wire import description_to_wire
from pilotage.v1 import jobs_pb2, matcher_service_pb2
from pilotage_server.core.macros import NUMBERS, belongings
from pilotage_server.core.remembered import MOST_BYTES, MOST_REMEMBERED, Remembered
from pilotage_server.operations.work import Match, MatchKind, WorkAnswer
from pilotage_server.rpc.convert_matching import match_to_wire, work_answer_to_wire
from pilotage_server.rpc.convert_values import amounts_to_wire

_MACRO = b"$("
_MORE = 0x80
_LOW = _MORE - 1
_NUMBER, _EIGHT_BYTES, _LENGTH_DELIMITED = 0, 1, 2
_LONGEST_NUMBER = 20
"""Digits of a number of 64 bits."""


_SMALL = tuple(bytes((number,)) for number in range(_MORE))


def varint(number: int) -> bytes:
    """Return a number from 0 as the wire format writes it, seven bits a byte (Protocol Buffers, "Encoding")."""
    if number < _MORE:
        return _SMALL[number]
    if number < _MORE << 7:
        return bytes((number & _LOW | _MORE, number >> 7))
    if number < _MORE << 14:
        return bytes((number & _LOW | _MORE, number >> 7 & _LOW | _MORE, number >> 14))
    return bytes((number & _LOW | _MORE,)) + varint(number >> 7)


def _tag(message: Any, field: str, kind: int = _LENGTH_DELIMITED) -> bytes:
    """Return the key of a field, which holds a message or a text unless another kind is named."""
    descriptor: FieldDescriptor = message.DESCRIPTOR.fields_by_name[field]
    return varint(descriptor.number << 3 | kind)


_MATCHES = _tag(matcher_service_pb2.RequestJobsResponse, "matches")
_SLOT, _DESCRIPTION, _JOB_AD = (_tag(matcher_service_pb2.Match, name) for name in ("slot", "description", "job_ad"))
_LEASE = _tag(matcher_service_pb2.Match, "lease_s", _EIGHT_BYTES)
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


class _Number(NamedTuple):
    """A number of a job: `tag` is the key of its field, `prefixes` stand before it in the environment."""

    tag: bytes
    prefixes: tuple[bytes, ...]

    def written(self, number: int) -> tuple[bytes, bytes]:
        """Return the number as the field has it, and as the environment has it."""
        digits = b"%d" % number
        return self.tag + varint(number), self.prefixes[len(digits)] + digits


_JOB_ID, _CLUSTER, _PROCESS, _ATTEMPT = (
    _Number(_tag(matcher_service_pb2.Match, field, _NUMBER), _prefixes(name))
    for field, name in zip(("job_id", "cluster", "process", "attempt"), NUMBERS, strict=True)
)

# What jobs of one array, and what pilots of one kind have in common.
_cluster = lru_cache(MOST_REMEMBERED)(_CLUSTER.written)
_attempt = lru_cache(MOST_REMEMBERED)(_ATTEMPT.written)


@lru_cache(MOST_REMEMBERED)
def _slot(name: str) -> bytes:
    return _framed(_SLOT, name.encode())


class MatchWriter:
    """Writes matches, and remembers what those of one kind have in common."""

    def __init__(self, most: int = MOST_REMEMBERED, most_bytes: int = MOST_BYTES) -> None:
        self._common = Remembered[tuple[object, ...], bytes](most, most_bytes)

    def answer(self, answer: WorkAnswer, waited: timedelta = timedelta(0)) -> bytes:
        """Return the response to a request that was made so long ago: leases count from the sending of the request."""
        alike = {kind: self._alike(kind, waited) for kind in {match.kind for match in answer.matches}}
        parts: list[bytes] = []
        for match in answer.matches:
            common = alike[match.kind]
            parts.append(_framed(_MATCHES, common + _own(match) if common else _alone(match, waited)))
        if not answer.is_all_matches:
            parts.append(work_answer_to_wire(replace(answer, matches=())).SerializeToString())
        return b"".join(parts)

    def _alike(self, kind: MatchKind, waited: timedelta) -> bytes:
        """Return what matches of a kind have in common in one answer; nothing where macros make each job another."""
        common = self._in_common(kind)
        return common and common + _LEASE + pack("<d", (kind.lease + waited).total_seconds())

    def _in_common(self, kind: MatchKind) -> bytes:
        """Return the same without the lease, which is another for who has waited."""
        key = (kind.template_id, kind.task_queue_id, kind.amounts)
        found = self._common.known.get(key)
        if found is None:
            found = _made_common(kind)
            self._common.put(key, found, len(found))
        return found


def _made_common(kind: MatchKind) -> bytes:
    description = description_to_wire(replace(kind.description, count=None))
    if _MACRO in description.SerializeToString():
        return b""
    description.environment.update(belongings(kind.account))
    message = matcher_service_pb2.Match(
        description=description,
        amounts=amounts_to_wire(kind.amounts),
        task_queue=kind.task_queue_id,
        owner=kind.account.owner,
        vo=kind.account.vo,
        group=kind.account.group,
    )
    return message.SerializeToString()


def _alone(match: Match, waited: timedelta) -> bytes:
    """Return a match that has nothing in common with others."""
    message = match_to_wire(match)
    message.lease_s = (match.lease + waited).total_seconds()
    return message.SerializeToString()


def _own(match: Match) -> bytes:
    """Return what a match says of its own: the slot, the job, and the job's numbers in the environment."""
    job_id, its_id = _JOB_ID.written(match.job_id)
    cluster, its_cluster = _cluster(match.cluster)
    process, its_process = _PROCESS.written(match.process)
    attempt, its_attempt = _attempt(match.attempt)
    environment = its_id + its_cluster + its_process + its_attempt
    own = _slot(match.slot) + job_id + attempt + cluster + process + _framed(_DESCRIPTION, environment)
    return own + _framed(_JOB_AD, match.job_ad.encode()) if match.job_ad else own
