"""The link to a real server, over gRPC; and the claims of its enrolment secret."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from pilotage.errors import InvalidInputError, ProofTimeError, Violation
from pilotage.jobs.files import open_regular
from pilotage.mqtt.settings import BrokerLogin
from pilotage.resources.tree import QueueId
from pilotage.rpc.channel import Endpoint, open_async_channel
from pilotage.v1 import job_service_pb2, matcher_service_pb2, pilot_service_pb2
from pilotage.v1.job_service_pb2_grpc import JobServiceStub
from pilotage.v1.matcher_service_pb2_grpc import MatcherServiceStub
from pilotage.v1.pilot_service_pb2_grpc import PilotServiceStub
from pilotage.values.attempts import TailStream
from pilotage.values.wire.attempts import tail_stream_to_wire
from pilotage_pilot.core.events import HeartbeatAnswered, JobsGranted, PoolsRead
from pilotage_pilot.core.instructions import RequestJobs, SendHeartbeat
from pilotage_pilot.link import convert
from pilotage_pilot.link.base import NodeDescription
from pilotage_pilot.link.enrolment import EnrolledCredential

Answer = TypeVar("Answer")

_PIECE_BYTES = 512 << 10
_NO_SUCH_CLAIM = (IndexError, KeyError, TypeError, ValueError, binascii.Error)


class GrpcLink:
    """Calls the server, and enrols before its first call; `timeout_s` is the deadline without the wait for a job.

    `endpoint` has no token: it is that of the credential.
    """

    def __init__(
        self, endpoint: Endpoint, queue: QueueId, credential: EnrolledCredential, *, timeout_s: float = 15.0
    ) -> None:
        self._queue = queue
        self._credential = credential
        self._timeout_s = timeout_s
        bound = replace(endpoint, token=credential.token, prove=credential.prove)
        self._channel = open_async_channel(bound, timeout_s=timeout_s)
        self._pilots = PilotServiceStub(self._channel)
        self._matcher = MatcherServiceStub(self._channel)
        self._jobs = JobServiceStub(self._channel)

    async def request_jobs(self, call: RequestJobs) -> JobsGranted:
        """Request jobs; takes slightly longer than `call.wait_s` at most."""
        message = convert.request_to_wire(call)
        answer = await self._called(partial(self._matcher.RequestJobs, message, timeout=call.wait_s + self._timeout_s))
        return convert.granted_from_wire(call.request_id, answer)

    async def beat(self, call: SendHeartbeat, node: NodeDescription) -> HeartbeatAnswered:
        """Send a heartbeat; `node` is sent with it if it reports the slots."""
        answer = await self._called(partial(self._matcher.ReportState, convert.heartbeat_to_wire(call, node)))
        await self._credential.renew_if_due(self._pilots)
        return convert.answered_from_wire(call.request_id, answer)

    async def read_pools(self) -> PoolsRead:
        """Return the pools of the pilot's queue."""
        request = convert.pools_request(self._queue)
        answer = await self._called(partial(self._matcher.GetSubmitPoolsForQueue, request))
        return convert.pools_from_wire(answer)

    async def broker_login(self) -> BrokerLogin | None:
        """Return a new login at the broker; None = the server makes none."""
        answer = await self._called(partial(self._pilots.GetBrokerLogin, pilot_service_pb2.GetBrokerLoginRequest()))
        return BrokerLogin(answer.username, answer.password) if answer.username else None

    async def _called(self, make: Callable[[], Awaitable[Answer]]) -> Answer:
        """Return the answer of a call of the enrolled pilot; raises a PilotageError."""
        await self._credential.enrol(self._pilots)
        try:
            return await make()
        except ProofTimeError as error:
            self._credential.correct_time(error)
            return await make()

    async def post_tail(self, stream: TailStream, offset: int, content: bytes) -> bool:
        """Send new output of a running attempt, `offset` bytes after its start; returns whether to go on."""
        message = matcher_service_pb2.PostTailRequest(
            stream=tail_stream_to_wire(stream), offset=offset, content=content
        )
        return (await self._called(partial(self._matcher.PostTail, message))).wanted

    async def download(self, job_id: int, checksum: str) -> AsyncIterator[bytes]:
        """Stream an input file of a job."""
        await self._credential.enrol(self._pilots)
        request = job_service_pb2.DownloadFileRequest(job_id=job_id, checksum=checksum)
        async for piece in self._jobs.DownloadFile(request):
            yield piece.content

    async def upload(self, path: Path, checksum: str, size: int) -> None:
        """Upload the first `size` bytes of a file, which have this checksum."""
        await self._credential.enrol(self._pilots)
        await self._jobs.UploadFile(_pieces(path, checksum, size))

    async def close(self) -> None:
        """Close the connection."""
        await self._channel.close()


async def _pieces(path: Path, checksum: str, size: int) -> AsyncIterator[job_service_pb2.UploadFileRequest]:
    left = size
    with open_regular(path) as file:
        content = file.read(min(_PIECE_BYTES, left))
        yield job_service_pb2.UploadFileRequest(checksum=checksum, size=size, content=content)
        left -= len(content)
        while left > 0 and (content := file.read(min(_PIECE_BYTES, left))):
            yield job_service_pb2.UploadFileRequest(content=content)
            left -= len(content)


def queue_of_token(token: str) -> QueueId | None:
    """Return the queue in a pilot's enrolment secret, None = it has a set of queues; the server verifies the token.

    Raises
    ------
    InvalidInputError
        When it is no secret or names no queue.
    """
    try:
        claims = _claims(token)
        if "queues" in claims:
            return None
        return QueueId(str(claims["site"]), str(claims["ce"]), str(claims["queue"]))
    except _NO_SUCH_CLAIM as error:
        raise InvalidInputError(
            Violation("token", "it is not a pilot's enrolment secret: it names no queue")
        ) from error


def stamp_of_token(token: str) -> str:
    """Return the stamp in a pilot's enrolment secret, unverified; raises InvalidInputError if it has none."""
    try:
        return str(_claims(token)["stamp"])
    except _NO_SUCH_CLAIM as error:
        raise InvalidInputError(
            Violation("token", "it is not a pilot's enrolment secret: it names no stamp")
        ) from error


def _claims(token: str) -> Any:
    payload = token.split(".")[1]
    return json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
