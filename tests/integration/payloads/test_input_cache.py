"""The cache of input files: a file stays while a job is given it, then while there is room."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pilotage.job_description import InputFile
from pilotage_pilot.supervise.folders import SMALL_BYTES, FileCache, files_to_go

LARGE = b"x" * (SMALL_BYTES + 1)


class Cache:
    """A file cache over a fake server, which counts its downloads."""

    def __init__(self, folder: Path, capacity_bytes: int, *contents: bytes) -> None:
        self.folder = folder / "cache"
        self.folder.mkdir()
        self.downloads = 0
        self._job_folders = folder
        self._contents = {hashlib.sha256(content).hexdigest(): content for content in contents}
        self._cache = FileCache(self.folder, capacity_bytes, self._download)

    async def _download(self, job_id: int, checksum: str) -> AsyncIterator[bytes]:
        self.downloads += 1
        yield self._contents[checksum]

    async def put(self, job_id: int, content: bytes) -> bytes:
        """Copy a file into the folder of a job and return the content of the copy."""
        path = self._job_folders / str(job_id) / "in"
        checksum = hashlib.sha256(content).hexdigest()
        await self._cache.put(job_id, InputFile("in", checksum=checksum, size=len(content)), path)
        return path.read_bytes()

    def kept(self) -> set[bytes]:
        return {path.read_bytes() for path in self.folder.iterdir()}


async def test_file_stays_until_its_last_pending_copy_is_made(tmp_path: Path) -> None:
    cache = Cache(tmp_path, 0, LARGE)
    release = threading.Event()
    with ThreadPoolExecutor(1) as one_thread:
        asyncio.get_running_loop().set_default_executor(one_thread)
        first = asyncio.create_task(cache.put(1, LARGE))
        await asyncio.sleep(0)  # its copy is the thread's first work
        one_thread.submit(release.wait)
        second = asyncio.create_task(cache.put(2, LARGE))
        try:
            assert await first == LARGE
            assert cache.kept() == {LARGE}
        finally:
            release.set()
        assert await second == LARGE
    assert cache.downloads == 1
    assert cache.kept() == set()


async def test_file_that_cannot_be_copied_is_not_kept(tmp_path: Path) -> None:
    cache = Cache(tmp_path, 0, b"a")
    (tmp_path / "1").touch()
    with pytest.raises(FileExistsError):
        await cache.put(1, b"a")
    assert cache.kept() == set()


async def test_least_recently_used_file_is_evicted(tmp_path: Path) -> None:
    cache = Cache(tmp_path, 2, b"a", b"b", b"c")
    for job_id, content in enumerate((b"a", b"b", b"a", b"c")):
        await cache.put(job_id, content)
    assert cache.kept() == {b"a", b"c"}
    assert cache.downloads == 3


@pytest.mark.parametrize(
    ("in_use", "capacity", "evicted"),
    [
        ("", 6, ""),
        ("", 5, "a"),
        ("", 4, "ab"),
        ("a", 4, "b"),
        ("ab", 4, "c"),
        ("abc", 0, ""),
    ],
)
def test_unused_files_are_evicted_until_the_rest_fits(in_use: str, capacity: int, evicted: str) -> None:
    assert files_to_go({"a": 1, "b": 2, "c": 3}, in_use, capacity) == tuple(evicted)
