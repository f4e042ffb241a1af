"""The half of JobService that moves files: they stream through worker threads, never through a transaction."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

from pilotage.errors import InvalidInputError, Violation
from pilotage.v1 import job_service_pb2
from pilotage_server.core.identity import Identity
from pilotage_server.operations.files import find_download, find_missing, list_outputs, record_upload
from pilotage_server.rpc.calls import caller
from pilotage_server.rpc.convert_jobs import checksum_from_wire, checksums_from_wire, output_files_to_wire
from pilotage_server.rpc.convert_turns import turn_from_wire
from pilotage_server.rpc.convert_values import Fields, job_id_from_wire
from pilotage_server.rpc.transactions import Transactions
from pilotage_server.storage.file_store import FileStore

LARGEST_PIECE = 1024 * 1024
"""Bytes of one message of a stream."""


class FileCalls:
    """Sandboxes, both ways."""

    def __init__(self, transactions: Transactions, store: FileStore) -> None:
        self._file_transactions = transactions
        self._store = store

    async def FindMissingFiles(
        self, request: job_service_pb2.FindMissingFilesRequest, context: Any
    ) -> job_service_pb2.FindMissingFilesResponse:
        identity = caller()
        checksums = checksums_from_wire(request.checksums)
        missing = await self._file_transactions.write(lambda unit, _: find_missing(unit, identity, checksums))
        return job_service_pb2.FindMissingFilesResponse(missing=missing)

    async def UploadFile(
        self, requests: AsyncIterator[job_service_pb2.UploadFileRequest], context: Any
    ) -> job_service_pb2.UploadFileResponse:
        identity = caller()
        first = await anext(aiter(requests), None)
        if first is None:
            raise InvalidInputError(Violation("", "the stream is empty; its first message names checksum and size"))
        fields = Fields(first)
        checksum, size = fields("checksum", checksum_from_wire), fields.count("size")
        fields.done()
        await self._receive(checksum, size, first.content, requests)
        await self._record(identity, checksum, size)
        return job_service_pb2.UploadFileResponse(checksum=checksum)

    async def _receive(
        self, checksum: str, size: int, content: bytes, rest: AsyncIterator[job_service_pb2.UploadFileRequest]
    ) -> None:
        upload = await asyncio.to_thread(self._store.begin, checksum, size)
        try:
            await asyncio.to_thread(upload.append, _piece(content))
            async for request in rest:
                await asyncio.to_thread(upload.append, _piece(request.content))
            await asyncio.to_thread(upload.finish)
        except BaseException:  # also when the call is cancelled: no half of a file stays behind
            upload.abort()
            raise

    async def _record(self, identity: Identity, checksum: str, size: int) -> None:
        store = self._store
        await self._file_transactions.write(lambda unit, _: record_upload(unit, store, identity, checksum, size))

    async def DownloadFile(
        self, request: job_service_pb2.DownloadFileRequest, context: Any
    ) -> AsyncIterator[job_service_pb2.DownloadFileResponse]:
        identity = caller()
        fields = Fields(request)
        job_id, checksum = fields("job_id", job_id_from_wire), fields("checksum", checksum_from_wire)
        turn = fields.if_set("turn", turn_from_wire)
        fields.done()
        await self._file_transactions.read(lambda unit, _: find_download(unit, identity, job_id, checksum, turn))
        pieces = self._store.read(checksum)
        while (piece := await asyncio.to_thread(_next_piece, pieces)) is not None:
            yield job_service_pb2.DownloadFileResponse(content=piece)

    async def ListOutputFiles(
        self, request: job_service_pb2.ListOutputFilesRequest, context: Any
    ) -> job_service_pb2.ListOutputFilesResponse:
        identity = caller()
        fields = Fields(request)
        job_id, attempt = fields("job_id", job_id_from_wire), fields.count("attempt")
        fields.done()
        outputs = await self._file_transactions.read(lambda unit, _: list_outputs(unit, identity, job_id, attempt))
        return job_service_pb2.ListOutputFilesResponse(
            files=output_files_to_wire(outputs.files), attempt=outputs.attempt
        )


def _piece(content: bytes) -> bytes:
    if len(content) > LARGEST_PIECE:
        why = f"a piece of {len(content)} bytes is larger than {LARGEST_PIECE}"
        raise InvalidInputError(Violation("content", why))
    return content


def _next_piece(pieces: Iterator[bytes]) -> bytes | None:
    return next(pieces, None)  # in a function: StopIteration must not cross from a thread into a coroutine
