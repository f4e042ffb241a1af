"""The blob store in a folder: uploads, checksums, removal, and disk errors."""

from __future__ import annotations

import hashlib
import os
import resource
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Thread

import pytest

from pilotage.clock import now
from pilotage.errors import InvalidInputError, NotFoundError, WorldError
from pilotage_server.storage.blobs import FileStore, FolderStore, open_store

HOUR = timedelta(hours=1)
MAX = 1000


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    return FolderStore(tmp_path / "files", MAX)


def checksum_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def upload_whole(store: FileStore, content: bytes, checksum: str, size: int) -> None:
    upload = store.begin(checksum, size)
    try:
        upload.append(content)
        upload.finish()
    finally:
        upload.abort()


def all_files(tmp_path: Path) -> list[Path]:
    return [path for path in tmp_path.rglob("*") if path.is_file()]


def test_upload_in_pieces_is_read_back(store: FileStore) -> None:
    checksum = checksum_of(b"hello world")
    upload = store.begin(checksum, 11)
    upload.append(b"hello ")
    assert not store.has(checksum)
    upload.append(b"world")
    upload.finish()
    upload.abort()
    assert store.has(checksum)
    assert b"".join(store.read(checksum)) == b"hello world"


def test_stores_empty_content(store: FileStore) -> None:
    assert b"".join(store.read(store.put(b""))) == b""


def test_large_content_is_read_in_bounded_pieces(tmp_path: Path) -> None:
    store = FolderStore(tmp_path, 10**6)
    content = os.urandom(600_000)
    pieces = list(store.read(store.put(content)))
    assert b"".join(pieces) == content
    assert max(map(len, pieces)) <= 256 * 1024


@pytest.mark.parametrize(
    ("content", "announced", "size", "where"),
    [
        (b"abc", b"abd", 3, "checksum"),
        (b"abc", b"abc", 4, "size"),
        (b"abc", b"abc", 2, "size"),
    ],
)
def test_content_that_differs_from_its_announcement_is_refused(
    store: FileStore, tmp_path: Path, content: bytes, announced: bytes, size: int, where: str
) -> None:
    with pytest.raises(InvalidInputError) as refused:
        upload_whole(store, content, checksum_of(announced), size)
    assert refused.value.violations[0].where == where
    assert all_files(tmp_path) == []


def test_too_large_upload_is_refused_at_its_beginning(store: FileStore) -> None:
    with pytest.raises(InvalidInputError, match="1001 bytes"):
        store.begin(checksum_of(b""), MAX + 1)


@pytest.mark.parametrize("name", ["", "../../etc/passwd", "A" * 64, "g" * 64])
def test_invalid_checksum_is_refused(store: FileStore, name: str) -> None:
    with pytest.raises(InvalidInputError):
        store.begin(name, 1)
    with pytest.raises(NotFoundError):
        store.read(name)


def test_read_of_missing_content_fails_at_once(store: FileStore) -> None:
    with pytest.raises(NotFoundError):
        store.read(checksum_of(b"absent"))


def test_equal_contents_are_stored_once(store: FileStore, tmp_path: Path) -> None:
    assert store.put(b"same") == store.put(b"same")
    assert len(all_files(tmp_path)) == 1


def test_old_contents_are_listed_by_checksum_prefix_and_removed(store: FileStore) -> None:
    checksum = store.put(b"old")
    later = now() + HOUR
    assert list(store.list(checksum[:2], later)) == [checksum]
    assert list(store.list(checksum[:2], now() - HOUR)) == []
    assert list(store.list("zz", later)) == []
    assert store.remove(checksum, later)
    assert not store.has(checksum)


def test_listing_tolerates_concurrent_removal(store: FolderStore, tmp_path: Path) -> None:
    other = FolderStore(tmp_path / "files", MAX)
    same_prefix = [content for content in map(b"%d".__mod__, range(1000)) if checksum_of(content).startswith("00")]
    assert len({store.put(content) for content in same_prefix}) > 1
    later = now() + HOUR
    listing = store.list("00", later)
    next(listing)
    assert all(other.remove(checksum, later) for checksum in other.list("00", later))
    assert list(listing) == []


def test_content_stored_again_is_not_removed_as_old(store: FolderStore) -> None:
    checksum = store.put(b"again")
    past = now() - 10 * HOUR
    os.utime(store.path_of(checksum), (past.timestamp(), past.timestamp()))
    store.put(b"again")
    assert not store.remove(checksum, now() - HOUR)
    assert store.has(checksum)


class InterruptedTime(datetime):
    """A time whose `timestamp()` lets another thread run for up to a tenth of a second."""

    meanwhile: Callable[[], object]

    def timestamp(self) -> float:
        self.thread = Thread(target=self.meanwhile)
        self.thread.start()
        self.thread.join(0.1)
        return super().timestamp()


@pytest.mark.parametrize("way", ["put", "upload"])
def test_content_renewed_during_its_removal_is_kept(store: FolderStore, way: str) -> None:
    content = b"again"
    checksum = store.put(content)
    past = now() - 10 * HOUR
    os.utime(store.path_of(checksum), (past.timestamp(), past.timestamp()))
    before = InterruptedTime.fromtimestamp((now() - HOUR).timestamp(), UTC)
    if way == "put":
        before.meanwhile = lambda: store.put(content)
    else:
        before.meanwhile = lambda: upload_whole(store, content, checksum, len(content))
    store.remove(checksum, before)
    before.thread.join()
    assert store.has(checksum)


def test_sweeps_unfinished_uploads(store: FileStore, tmp_path: Path) -> None:
    upload = store.begin(checksum_of(b"abc"), 3)
    upload.append(b"ab")
    assert store.sweep_unfinished(now() - HOUR) == 0
    assert store.sweep_unfinished(now() + HOUR) == 1
    upload.abort()
    assert all_files(tmp_path) == []


def test_names_folder_that_cannot_be_created(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(WorldError, match=r"files cannot be stored in .*Not a directory"):
        FolderStore(tmp_path / "file" / "files", MAX)


def test_full_disk_is_a_transient_error(store: FileStore, tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, limits[1]))
    try:
        with pytest.raises(WorldError, match=r"files cannot be stored in .*File too large") as failed:
            store.put(b"x" * 100)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert failed.value.transient
    assert all_files(tmp_path) == []


def test_store_is_opened_by_its_url(tmp_path: Path) -> None:
    store = open_store((tmp_path / "with space").as_uri(), MAX)
    assert store.has(store.put(b"x"))
    with pytest.raises(InvalidInputError, match="s3://bucket"):
        open_store("s3://bucket", MAX)
