"""Encodes matches as bytes, from parts that many jobs share.

Rules
-----
The bytes mean the same as the protocol's own messages; tests compare them. The shared part of a match, with the
description, is encoded once. The fields of each job are appended, because concatenated messages are merged
(Protocol Buffers, "Encoding"). A description with macros differs for each job, so its matches are encoded singly.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from functools import lru_cache
from struct import pack
from typing import Any, NamedTuple

from google.protobuf.descriptor import FieldDescriptor

from pilotage.jobs.wire import description_to_wire
from pilotage.v1 import jobs_pb2, matcher_service_pb2
from pilotage.values.wire.amounts import amounts_to_wire
from pilotage_server.core.containers import MAX_CACHED_BYTES, MAX_CACHED_VALUES, BoundedCache
from pilotage_server.core.jobs.descriptions import NUMBERS, owner_environment
from pilotage_server.operations.matching.work import Match, MatchTerms, WorkAnswer
from pilotage_server.rpc.matching.wire import match_to_wire, work_answer_to_wire

_MACRO = b"$("
_MORE = 0x80
_LOW = _MORE - 1
_NUMBER, _EIGHT_BYTES, _LENGTH_DELIMITED = 0, 1, 2
_LONGEST_NUMBER = 20
"""Digits of a number of 64 bits."""


_SMALL = tuple(bytes((number,)) for number in range(_MORE))


def varint(number: int) -> bytes:
    """Return a number from 0 in the wire format: seven bits a byte (Protocol Buffers, "Encoding")."""
    if number < _MORE:
        return _SMALL[number]
    if number < _MORE << 7:
        return bytes((number & _LOW | _MORE, number >> 7))
    if number < _MORE << 14:
        return bytes((number & _LOW | _MORE, number >> 7 & _LOW | _MORE, number >> 14))
    return bytes((number & _LOW | _MORE,)) + varint(number >> 7)


def _tag(message: Any, field: str, kind: int = _LENGTH_DELIMITED) -> bytes:
    """Return the key of a field: by default of a message or a text."""
    descriptor: FieldDescriptor = message.DESCRIPTOR.fields_by_name[field]
    return varint(descriptor.number << 3 | kind)


_MATCHES = _tag(matcher_service_pb2.RequestJobsResponse, "matches")
_SLOT, _DESCRIPTION, _JOB_AD = (_tag(matcher_service_pb2.Match, name) for name in ("slot", "description", "job_ad"))
_LEASE = _tag(matcher_service_pb2.Match, "lease_s", _EIGHT_BYTES)
_ENVIRONMENT = _tag(jobs_pb2.JobDescription, "environment")
_KEY, _VALUE = b"\x0a", b"\x12"
"""Keys of the two fields of a map entry, the same for every map."""


def _framed(tag: bytes, content: bytes) -> bytes:
    return tag + varint(len(content)) + content


def _prefixes(name: str) -> tuple[bytes, ...]:
    """Return the bytes before the value of an environment variable, indexed by the length of the value."""
    head = _framed(_KEY, name.encode()) + _VALUE
    sizes = range(_LONGEST_NUMBER + 1)
    return tuple(_ENVIRONMENT + varint(len(head) + 1 + size) + head + varint(size) for size in sizes)


class _Number(NamedTuple):
    """A number of a job: `tag` is the key of its field, `prefixes` precede it in the environment."""

    tag: bytes
    prefixes: tuple[bytes, ...]

    def encode(self, number: int) -> tuple[bytes, bytes]:
        """Return the number as a field, and as an environment variable."""
        digits = b"%d" % number
        return self.tag + varint(number), self.prefixes[len(digits)] + digits


_JOB_ID, _CLUSTER, _PROCESS, _ATTEMPT = (
    _Number(_tag(matcher_service_pb2.Match, field, _NUMBER), _prefixes(name))
    for field, name in zip(("job_id", "cluster", "process", "attempt"), NUMBERS, strict=True)
)

# These repeat among the jobs of an array, and among first attempts.
_cluster = lru_cache(MAX_CACHED_VALUES)(_CLUSTER.encode)
_attempt = lru_cache(MAX_CACHED_VALUES)(_ATTEMPT.encode)


@lru_cache(MAX_CACHED_VALUES)
def _slot(name: str) -> bytes:
    return _framed(_SLOT, name.encode())


class MatchWriter:
    """Encodes matches; shared parts are cached."""

    def __init__(self, most: int = MAX_CACHED_VALUES, most_bytes: int = MAX_CACHED_BYTES) -> None:
        self._cache = BoundedCache[tuple[object, ...], bytes](most, most_bytes)

    def encode(self, answer: WorkAnswer, waited: timedelta = timedelta(0)) -> bytes:
        """Return the response to a request that has waited; a lease counts from the sending of the request."""
        shared = {terms: self._shared_part(terms, waited) for terms in {match.terms for match in answer.matches}}
        parts: list[bytes] = []
        for match in answer.matches:
            shared_bytes = shared[match.terms]
            parts.append(
                _framed(
                    _MATCHES,
                    shared_bytes + _encode_job_fields(match) if shared_bytes else _encode_single(match, waited),
                )
            )
        if not answer.is_all_matches:
            parts.append(work_answer_to_wire(replace(answer, matches=())).SerializeToString())
        return b"".join(parts)

    def _shared_part(self, terms: MatchTerms, waited: timedelta) -> bytes:
        """Return the shared bytes of matches with equal terms, with the lease; empty if macros make each job differ."""
        common = self._shared_without_lease(terms)
        return common and common + _LEASE + pack("<d", (terms.lease + waited).total_seconds())

    def _shared_without_lease(self, terms: MatchTerms) -> bytes:
        """Return the shared bytes without the lease, which depends on the time waited."""
        key = (terms.template_id, terms.task_queue_id, terms.amounts)
        found = self._cache.known.get(key)
        if found is None:
            found = _encode_shared(terms)
            self._cache.put(key, found, len(found))
        return found


def _encode_shared(terms: MatchTerms) -> bytes:
    description = description_to_wire(replace(terms.description, count=None))
    if _MACRO in description.SerializeToString():
        return b""
    description.environment.update(owner_environment(terms.account))
    message = matcher_service_pb2.Match(
        description=description,
        amounts=amounts_to_wire(terms.amounts),
        task_queue=terms.task_queue_id,
        owner=terms.account.owner,
        vo=terms.account.vo,
        group=terms.account.group,
        traceparent=terms.traceparent,
    )
    return message.SerializeToString()


def _encode_single(match: Match, waited: timedelta) -> bytes:
    """Return the bytes of a match that shares nothing."""
    message = match_to_wire(match)
    message.lease_s = (match.lease + waited).total_seconds()
    return message.SerializeToString()


def _encode_job_fields(match: Match) -> bytes:
    """Return the bytes of one match: slot, job, and the job's numbers in the environment."""
    job_id, its_id = _JOB_ID.encode(match.job_id)
    cluster, its_cluster = _cluster(match.cluster)
    process, its_process = _PROCESS.encode(match.process)
    attempt, its_attempt = _attempt(match.attempt)
    environment = its_id + its_cluster + its_process + its_attempt
    fields = _slot(match.slot) + job_id + attempt + cluster + process + _framed(_DESCRIPTION, environment)
    return fields + _framed(_JOB_AD, match.job_ad.encode()) if match.job_ad else fields
