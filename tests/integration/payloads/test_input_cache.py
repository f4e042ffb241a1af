"""The cache of input files: each is there as long as a job is being given it, then as long as there is room."""

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
    """A cache in a test's folder, and how often it has asked for a file."""

    def __init__(self, folder: Path, capacity_bytes: int, *contents: bytes) -> None:
        self.folder = folder / "cache"
        self.folder.mkdir()
        self.downloads = 0
        self._places = folder
        self._contents = {hashlib.sha256(content).hexdigest(): content for content in contents}
        self._cache = FileCache(self.folder, capacity_bytes, self._download)

    async def _download(self, job_id: int, checksum: str) -> AsyncIterator[bytes]:
        self.downloads += 1
        yield self._contents[checksum]

    async def put(self, job_id: int, content: bytes) -> bytes:
        """Give a job a file, and return what it has then."""
        place = self._places / str(job_id) / "in"
        checksum = hashlib.sha256(content).hexdigest()
        await self._cache.put(job_id, InputFile("in", checksum=checksum, size=len(content)), place)
        return place.read_bytes()

    def kept(self) -> set[bytes]:
        return {path.read_bytes() for path in self.folder.iterdir()}


async def test_a_file_stays_until_the_last_copy_of_it_that_waits_for_a_thread_is_made(tmp_path: Path) -> None:
    cache = Cache(tmp_path, 0, LARGE)
    go_on = threading.Event()
    with ThreadPoolExecutor(1) as one_thread:
        asyncio.get_running_loop().set_default_executor(one_thread)
        first = asyncio.create_task(cache.put(1, LARGE))
        await asyncio.sleep(0)  # its copy is the thread's first work
        one_thread.submit(go_on.wait)
        second = asyncio.create_task(cache.put(2, LARGE))
        try:
            assert await first == LARGE
            assert cache.kept() == {LARGE}
        finally:
            go_on.set()
        assert await second == LARGE
    assert cache.downloads == 1
    assert cache.kept() == set()


async def test_a_file_that_could_not_be_put_in_its_place_takes_no_room(tmp_path: Path) -> None:
    cache = Cache(tmp_path, 0, b"a")
    (tmp_path / "1").touch()
    with pytest.raises(FileExistsError):
        await cache.put(1, b"a")
    assert cache.kept() == set()


async def test_a_file_that_was_used_lately_stays_where_another_goes(tmp_path: Path) -> None:
    cache = Cache(tmp_path, 2, b"a", b"b", b"c")
    for job_id, content in enumerate((b"a", b"b", b"a", b"c")):
        await cache.put(job_id, content)
    assert cache.kept() == {b"a", b"c"}
    assert cache.downloads == 3


@pytest.mark.parametrize(
    ("in_use", "capacity", "going"),
    [
        ("", 6, ""),
        ("", 5, "a"),
        ("", 4, "ab"),
        ("a", 4, "b"),
        ("ab", 4, "c"),
        ("abc", 0, ""),
    ],
)
def test_what_goes_is_what_nobody_uses_until_the_rest_fits(in_use: str, capacity: int, going: str) -> None:
    assert files_to_go({"a": 1, "b": 2, "c": 3}, in_use, capacity) == tuple(going)
