"""The link to a real server, over gRPC; and the claims of a pilot's token."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from pilotage.errors import InvalidInputError, Violation
from pilotage.jobs.files import open_regular
from pilotage.resources.tree import QueueId
from pilotage.rpc.channel import Endpoint, open_async_channel
from pilotage.v1 import job_service_pb2
from pilotage.v1.job_service_pb2_grpc import JobServiceStub
from pilotage.v1.matcher_service_pb2_grpc import MatcherServiceStub
from pilotage_pilot.core.events import HeartbeatAnswered, JobsGranted, PoolsRead
from pilotage_pilot.core.instructions import RequestJobs, SendHeartbeat
from pilotage_pilot.link import convert
from pilotage_pilot.link.base import NodeDescription

_PIECE_BYTES = 512 << 10
_NO_SUCH_CLAIM = (IndexError, KeyError, TypeError, ValueError, binascii.Error)


class GrpcLink:
    """Calls the server; `timeout_s` is the deadline without the wait for a job."""

    def __init__(self, endpoint: Endpoint, queue: QueueId, *, timeout_s: float = 15.0) -> None:
        self._queue = queue
        self._timeout_s = timeout_s
        self._channel = open_async_channel(endpoint, timeout_s=timeout_s)
        self._matcher = MatcherServiceStub(self._channel)
        self._jobs = JobServiceStub(self._channel)

    async def request_jobs(self, call: RequestJobs) -> JobsGranted:
        """Request jobs; takes slightly longer than `call.wait_s` at most."""
        message = convert.request_to_wire(call)
        answer = await self._matcher.RequestJobs(message, timeout=call.wait_s + self._timeout_s)
        return convert.granted_from_wire(call.request_id, answer)

    async def beat(self, call: SendHeartbeat, node: NodeDescription) -> HeartbeatAnswered:
        """Send a heartbeat; `node` is sent with it if it reports the slots."""
        answer = await self._matcher.ReportState(convert.heartbeat_to_wire(call, node))
        return convert.answered_from_wire(call.request_id, answer)

    async def read_pools(self) -> PoolsRead:
        """Return the pools of the pilot's queue."""
        answer = await self._matcher.GetSubmitPoolsForQueue(convert.pools_request(self._queue))
        return convert.pools_from_wire(answer)

    async def download(self, job_id: int, checksum: str) -> AsyncIterator[bytes]:
        """Stream an input file of a job."""
        request = job_service_pb2.DownloadFileRequest(job_id=job_id, checksum=checksum)
        async for piece in self._jobs.DownloadFile(request):
            yield piece.content

    async def upload(self, path: Path, checksum: str, size: int) -> None:
        """Upload the first `size` bytes of a file, which have this checksum."""
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


def queue_of_token(token: str) -> QueueId:
    """Return the queue in a pilot's token, unverified; the server verifies the token.

    Raises
    ------
    InvalidInputError
        When it is not a token or names no queue.
    """
    try:
        claims = _claims(token)
        return QueueId(str(claims["site"]), str(claims["ce"]), str(claims["queue"]))
    except _NO_SUCH_CLAIM as error:
        raise InvalidInputError(Violation("token", "it is not a pilot's token: it names no queue")) from error


def stamp_of_token(token: str) -> str:
    """Return the stamp in a pilot's token, unverified; raises InvalidInputError if it has none."""
    try:
        return str(_claims(token)["stamp"])
    except _NO_SUCH_CLAIM as error:
        raise InvalidInputError(Violation("token", "it is not a pilot's token: it names no stamp")) from error


def _claims(token: str) -> Any:
    payload = token.split(".")[1]
    return json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
