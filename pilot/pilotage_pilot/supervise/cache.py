"""Input files by checksum: brought to the node once, verified, kept as long as there is room."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Callable, Container, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pilotage.errors import NotFoundError, WorldError
from pilotage.job_description import InputFile
from pilotage.job_folders import JobAtFaultError

Download = Callable[[int, str], AsyncIterator[bytes]]
"""Streams a file by the id of a job that brought it and its checksum."""

SMALL_BYTES = 1 << 20
"""Files up to this size are copied at once; larger ones in a thread, so that nothing else waits for them."""


class FileCache:
    """The input files that this node has; at most `capacity_bytes` of them stay when no job needs them."""

    def __init__(self, folder: Path, capacity_bytes: int, download: Download) -> None:
        self._folder = folder
        self._capacity = capacity_bytes
        self._download = download
        self._sizes: dict[str, int] = {}  # the latest used stands last
        self._users: Counter[str] = Counter()  # the calls of `put` that are under way, by checksum
        self._under_way: dict[str, asyncio.Event] = {}

    async def put(self, job_id: int, file: InputFile, target: Path) -> None:
        """Put a job's input file in its place; raises JobAtFaultError, WorldError or OSError."""
        checksum = file.checksum
        if not checksum or len(checksum) != 64 or not checksum.isalnum():
            raise JobAtFaultError(f"the input file {file.name} was never stored on the server")
        with self._in_use(checksum):
            await self._fetch(job_id, file.name, checksum, file.size)
            await _copy(self._folder / checksum, target, 0o700 if file.executable else 0o600, self._sizes[checksum])

    @contextmanager
    def _in_use(self, checksum: str) -> Iterator[None]:
        """Keep a file, however little room there is: its copy may still wait for a thread."""
        self._users[checksum] += 1
        try:
            yield
        finally:
            self._users[checksum] -= 1
            if not self._users[checksum]:
                del self._users[checksum]
            self._make_room()

    async def _fetch(self, job_id: int, name: str, checksum: str, size: int) -> None:
        while checksum in self._under_way:
            await self._under_way[checksum].wait()
        if checksum in self._sizes:
            self._sizes[checksum] = self._sizes.pop(checksum)
            return
        self._under_way[checksum] = asyncio.Event()
        try:
            self._sizes[checksum] = await self._bring(job_id, name, checksum, size)
        except NotFoundError as error:
            raise JobAtFaultError(f"the input file {name} is not on the server") from error
        finally:
            self._under_way.pop(checksum).set()

    async def _bring(self, job_id: int, name: str, checksum: str, size: int) -> int:
        arriving = self._folder / f"{checksum}.part"
        digest = hashlib.sha256()
        arrived = 0
        try:
            with arriving.open("wb") as file:
                async for piece in self._download(job_id, checksum):
                    digest.update(piece)
                    arrived += len(piece)
                    if arrived > size:
                        break
                    file.write(piece)
            if digest.hexdigest() != checksum or arrived != size:
                raise WorldError(f"the input file {name} did not arrive as it was stored", transient=True)
            arriving.rename(self._folder / checksum)
        finally:
            arriving.unlink(missing_ok=True)
        return arrived

    def _make_room(self) -> None:
        for checksum in files_to_go(self._sizes, self._users, self._capacity):
            del self._sizes[checksum]
            (self._folder / checksum).unlink(missing_ok=True)


def files_to_go(sizes: Mapping[str, int], in_use: Container[str], capacity: int) -> tuple[str, ...]:
    """Return which files go, in the order of `sizes`, until the others fit or all of those are in use."""
    excess = sum(sizes.values()) - capacity
    going = []
    for checksum, size in sizes.items():
        if excess > 0 and checksum not in in_use:
            going.append(checksum)
            excess -= size
    return tuple(going)


async def _copy(source: Path, target: Path, mode: int, size: int) -> None:
    # A copy, not a link: a job may write to its input, and the next job must not see that.
    if size <= SMALL_BYTES:
        _copy_now(source, target, mode)
    else:
        await asyncio.to_thread(_copy_now, source, target, mode)


def _copy_now(source: Path, target: Path, mode: int) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with source.open("rb") as from_file, target.open("xb") as to_file:
        shutil.copyfileobj(from_file, to_file, 1 << 20)
        os.fchmod(to_file.fileno(), mode)
