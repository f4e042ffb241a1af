"""Files on their way between an agent's disk and a server."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterable, AsyncIterator
from pathlib import Path
from typing import BinaryIO

from pilotage.errors import WorldError
from pilotage.job_output import open_regular
from pilotage.v1 import job_service_pb2
from pilotage_agents.router.progress import it_moves

_PIECE_BYTES = 512 << 10


async def pieces(path: Path, checksum: str, size: int) -> AsyncIterator[job_service_pb2.UploadFileRequest]:
    """Yield the requests that bring the first `size` bytes of a file, which have this checksum."""
    yield job_service_pb2.UploadFileRequest(checksum=checksum, size=size)
    file = await asyncio.to_thread(open_regular, path)
    try:
        while size > 0 and (content := await asyncio.to_thread(file.read, min(_PIECE_BYTES, size))):
            yield job_service_pb2.UploadFileRequest(content=content)
            size -= len(content)
            it_moves()
    finally:
        file.close()


async def written(path: Path, checksum: str, arriving: AsyncIterable[job_service_pb2.DownloadFileResponse]) -> None:
    """Write what arrives to a file; raises WorldError, and leaves no file, when it is not what it should be."""
    digest = hashlib.sha256()
    try:
        file: BinaryIO = await asyncio.to_thread(path.open, "wb")
    except OSError as error:
        raise WorldError(f"{path}: {error.strerror}", transient=True) from error
    try:
        async for piece in arriving:
            digest.update(piece.content)
            await asyncio.to_thread(file.write, piece.content)
            it_moves()
        await asyncio.to_thread(file.close)
        if digest.hexdigest() != checksum:
            raise WorldError(f"{path.name} did not arrive as it was stored", transient=True)
    except BaseException as error:
        _thrown_away(file, path)
        if isinstance(error, OSError):
            raise WorldError(f"{path}: {error.strerror}", transient=True) from error
        raise


def _thrown_away(file: BinaryIO, path: Path) -> None:
    file.close()
    path.unlink(missing_ok=True)
