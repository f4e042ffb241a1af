"""Matches as bytes of the wire, put together from parts that many jobs share.

Rules
-----
What comes out means what the protocol's own messages would say, which is the measure of it in the tests. A description
is encoded once for all jobs of its template; what each job adds, its numbers in the environment, is appended, for in
the wire format a message may come in pieces that are merged (Protocol Buffers, "Encoding"). Only a description with
macros is rendered for every job.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta
from typing import Any

from google.protobuf.descriptor import FieldDescriptor

from pilotage.description_wire import description_to_wire
from pilotage.job_description import JobDescription
from pilotage.v1 import jobs_pb2, matcher_service_pb2
from pilotage_server.core.macros import NUMBERS, belongings, numbers
from pilotage_server.operations.work import Match, WorkAnswer
from pilotage_server.rpc.convert_matching import work_answer_to_wire
from pilotage_server.rpc.convert_values import amounts_to_wire

_MOST_REMEMBERED = 20_000
_MACRO = b"$("
_MORE = 0x80
_LENGTH_DELIMITED = 2


def varint(number: int) -> bytes:
    """Return a number from 0 as the wire format writes it, seven bits a byte (Protocol Buffers, "Encoding")."""
    found = bytearray()
    while number >= _MORE:
        found.append(number & (_MORE - 1) | _MORE)
        number >>= 7
    found.append(number)
    return bytes(found)


def _tag(message: Any, field: str) -> bytes:
    """Return the key of a field that holds a message or a text."""
    descriptor: FieldDescriptor = message.DESCRIPTOR.fields_by_name[field]
    return varint(descriptor.number << 3 | _LENGTH_DELIMITED)


_MATCHES = _tag(matcher_service_pb2.RequestJobsResponse, "matches")
_DESCRIPTION = _tag(matcher_service_pb2.Match, "description")
_ENVIRONMENT = _tag(jobs_pb2.JobDescription, "environment")
_KEY, _VALUE = b"\x0a", b"\x12"
"""The keys of what a map is made of, which are the same for every map."""

_SMALL = tuple(map(varint, range(_MORE)))


def _framed(tag: bytes, content: bytes) -> bytes:
    size = len(content)
    return tag + (_SMALL[size] if size < _MORE else varint(size)) + content


def _entry(name: str) -> bytes:
    """Return what stands before the value in the environment's entry of that name."""
    return _framed(_KEY, name.encode()) + _VALUE


def _environment(values: Iterable[tuple[bytes, str]]) -> bytes:
    """Return entries as more of a description's environment; who reads it takes the last one of a name."""
    return b"".join([_framed(_ENVIRONMENT, _framed(entry, value.encode())) for entry, value in values])


_NUMBERS = tuple(map(_entry, NUMBERS))


class MatchWriter:
    """Writes matches, and remembers the descriptions of templates that were matched lately."""

    def __init__(self, most: int = _MOST_REMEMBERED) -> None:
        self._most = most
        self._descriptions: OrderedDict[int, bytes] = OrderedDict()
        self._owners: dict[tuple[str, str, str], bytes] = {}

    def answer(self, answer: WorkAnswer, waited: timedelta = timedelta(0)) -> bytes:
        """Return the response to a request that was made so long ago: leases count from the sending of the request."""
        matches = [_framed(_MATCHES, self._match(match, waited)) for match in answer.matches]
        if answer.is_all_matches:
            return b"".join(matches)
        rest = work_answer_to_wire(replace(answer, matches=()))
        return b"".join((*matches, rest.SerializeToString()))

    def _match(self, match: Match, waited: timedelta) -> bytes:
        message = matcher_service_pb2.Match(
            slot=match.slot,
            job_id=match.id,
            attempt=match.attempt,
            lease_s=(match.lease + waited).total_seconds(),
            amounts=amounts_to_wire(match.amounts),
            task_queue=match.task_queue_id,
            owner=match.owner,
            vo=match.vo,
            group=match.group,
            cluster=match.cluster,
            process=match.process,
            job_ad=match.job_ad,
        )
        return message.SerializeToString() + _framed(_DESCRIPTION, self._description(match))

    def _description(self, match: Match) -> bytes:
        common = self._common(match.template_id, match.description)
        if _MACRO in common:
            return description_to_wire(match.rendered()).SerializeToString()
        own = zip(_NUMBERS, numbers(match), strict=True)
        return b"".join((common, _environment(own), self._belongings(match)))

    def _common(self, template_id: int, description: JobDescription) -> bytes:
        """Return what the jobs of a template have in common."""
        found = self._descriptions.get(template_id)
        if found is not None:
            self._descriptions.move_to_end(template_id)
            return found
        found = description_to_wire(replace(description, count=None)).SerializeToString()
        self._descriptions[template_id] = found
        if len(self._descriptions) > self._most:
            self._descriptions.popitem(last=False)
        return found

    def _belongings(self, match: Match) -> bytes:
        whose = match.owner, match.vo, match.group
        found = self._owners.get(whose)
        if found is None:
            if len(self._owners) >= self._most:
                self._owners.clear()
            values = belongings(match).items()
            found = self._owners[whose] = _environment((_entry(name), value) for name, value in values)
        return found
