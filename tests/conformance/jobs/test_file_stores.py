"""The stores of files, a folder and an object store: uploads, checksums, removal, and faults."""

from __future__ import annotations

import hashlib
import os
import resource
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from pilotage.clock import now
from pilotage.errors import InvalidInputError, NotFoundError, WorldError
from pilotage.settings import load_settings
from pilotage_server.settings import ServerSettings
from pilotage_server.storage.blobs.base import FileStore
from pilotage_server.storage.blobs.folder import FolderStore
from pilotage_server.storage.blobs.opening import open_store
from pilotage_server.storage.blobs.s3 import PART_BYTES, PUT_AGAIN_AFTER_S, S3Access, S3Store
from support.object_store import Bucket, ObjectStore, relay_to

HOUR = timedelta(hours=1)
LONG_AGO = datetime(2010, 1, 1, tzinfo=UTC)
MAX = 1000
MIB = 1024 * 1024


@dataclass
class Place:
    """A place for a store; `remains` lists all that lies there."""

    open: Callable[[int], FileStore]
    remains: Callable[[], Sequence[object]]


@pytest.fixture(params=["folder", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "folder":
        return Place(lambda most: FolderStore(tmp_path / "files", most), lambda: all_files(tmp_path))
    bucket: Bucket = request.getfixturevalue("bucket")
    return Place(bucket.store, bucket.remains)


@pytest.fixture
def store(place: Place) -> FileStore:
    return place.open(MAX)


@pytest.fixture
def folder_store(tmp_path: Path) -> FolderStore:
    return FolderStore(tmp_path / "files", MAX)


def checksum_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def upload_whole(store: FileStore, content: bytes, checksum: str, size: int) -> None:
    upload = store.begin(checksum, size)
    try:
        for at in range(0, len(content), MIB):
            upload.append(content[at : at + MIB])
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
    assert b"".join(store.read(checksum, 6)) == b"world"
    assert b"".join(store.read(checksum, 11)) == b""


def test_stores_empty_content(store: FileStore) -> None:
    assert b"".join(store.read(store.put(b""))) == b""


@pytest.mark.parametrize("size", [600_000, PART_BYTES, 2 * PART_BYTES + 1])
def test_large_content_is_read_in_bounded_pieces(place: Place, size: int) -> None:
    store = place.open(size)
    content = os.urandom(size)
    upload_whole(store, content, checksum_of(content), size)
    pieces = list(store.read(checksum_of(content)))
    assert b"".join(pieces) == content
    assert max(map(len, pieces)) <= 256 * 1024
    assert len(place.remains()) == 1


@pytest.mark.parametrize(
    ("content", "announced", "size", "where"),
    [
        (b"abc", b"abd", 3, "checksum"),
        (b"abc", b"abc", 4, "size"),
        (b"abc", b"abc", 2, "size"),
        (bytes(PART_BYTES + MIB), b"abc", PART_BYTES + MIB, "checksum"),
    ],
    ids=["checksum", "longer", "shorter", "several parts"],
)
def test_content_that_differs_from_its_announcement_is_refused(
    place: Place, content: bytes, announced: bytes, size: int, where: str
) -> None:
    with pytest.raises(InvalidInputError) as refused:
        upload_whole(place.open(2 * PART_BYTES), content, checksum_of(announced), size)
    assert refused.value.violations[0].where == where
    assert place.remains() == []


def test_too_large_upload_is_refused_at_its_beginning(store: FileStore) -> None:
    with pytest.raises(InvalidInputError, match="1001 bytes"):
        store.begin(checksum_of(b""), MAX + 1)


def test_invalid_checksum_is_refused(store: FileStore) -> None:
    for name in ("", "../../etc/passwd", "A" * 64, "g" * 64):
        with pytest.raises(InvalidInputError):
            store.begin(name, 1)
        with pytest.raises(NotFoundError):
            store.read(name)


def test_read_of_missing_content_fails_at_once(store: FileStore) -> None:
    with pytest.raises(NotFoundError):
        store.read(checksum_of(b"absent"))


def test_equal_contents_are_stored_once(place: Place) -> None:
    store = place.open(MAX)
    assert store.put(b"same") == store.put(b"same")
    assert len(place.remains()) == 1


def test_first_of_two_ids_stays(place: Place) -> None:
    one, two = place.open(MAX), place.open(MAX)
    assert one.id() is None
    assert one.set_id("first") == "first"
    assert two.set_id("second") == "first"
    assert two.id() == "first"
    assert list(two.list("00", now() + HOUR)) == []


def test_old_contents_are_listed_by_checksum_prefix_and_removed(store: FileStore) -> None:
    checksum = store.put(b"old")
    later = now() + HOUR
    assert list(store.list(checksum[:2], later)) == [checksum]
    assert list(store.list(checksum[:2], now() - HOUR)) == []
    assert list(store.list("zz", later)) == []
    assert not store.remove(checksum, now() - HOUR)
    assert store.has(checksum)
    assert store.remove(checksum, later)
    assert not store.has(checksum)
    assert store.remove(checksum, later)
    assert store.has(store.put(b"old"))


def test_listing_tolerates_concurrent_removal(place: Place) -> None:
    store, other = place.open(MAX), place.open(MAX)
    same_prefix = [content for content in map(b"%d".__mod__, range(1000)) if checksum_of(content).startswith("00")]
    assert len({store.put(content) for content in same_prefix}) > 1
    later = now() + HOUR
    listing = store.list("00", later)
    next(listing)
    assert all(other.remove(checksum, later) for checksum in other.list("00", later))
    assert not any(store.has(checksum) for checksum in listing)


def test_sweeps_unfinished_uploads(place: Place) -> None:
    store = place.open(2 * PART_BYTES)
    upload = store.begin(checksum_of(b"abc"), 2 * PART_BYTES)
    upload.append(bytes(PART_BYTES + 1))
    assert len(place.remains()) == 1
    assert store.sweep_unfinished(LONG_AGO) == 0
    assert store.sweep_unfinished(now() + HOUR) == 1
    upload.abort()
    assert place.remains() == []


class InterruptedTime(datetime):
    """A time whose `timestamp()` lets another thread run for up to a tenth of a second."""

    meanwhile: Callable[[], object]

    def timestamp(self) -> float:
        self.thread = threading.Thread(target=self.meanwhile)
        self.thread.start()
        self.thread.join(0.1)
        return super().timestamp()


@pytest.mark.parametrize("way", ["put", "upload"])
def test_content_renewed_during_its_removal_is_kept(folder_store: FolderStore, way: str) -> None:
    content = b"again"
    checksum = folder_store.put(content)
    past = now() - 10 * HOUR
    os.utime(folder_store.path_of(checksum), (past.timestamp(), past.timestamp()))
    before = InterruptedTime.fromtimestamp((now() - HOUR).timestamp(), UTC)
    if way == "put":
        before.meanwhile = lambda: folder_store.put(content)
    else:
        before.meanwhile = lambda: upload_whole(folder_store, content, checksum, len(content))
    folder_store.remove(checksum, before)
    before.thread.join()
    assert folder_store.has(checksum)


@pytest.mark.parametrize("way", ["put", "upload"])
def test_object_renewed_during_its_removal_is_kept(bucket: Bucket, way: str) -> None:
    store, content = bucket.store(MAX), b"again"
    checksum = store.put(content)
    threads = []

    def renew() -> None:
        store.put(content) if way == "put" else upload_whole(store, content, checksum, len(content))

    def interrupt(**_: Any) -> None:
        threads.append(threading.Thread(target=renew))
        threads[0].start()
        threads[0].join(0.1)

    store.client.meta.events.register("before-call.s3.DeleteObject", interrupt)
    assert store.remove(checksum, now() + HOUR)
    threads[0].join()
    assert store.has(checksum)


def test_object_is_not_removed_while_it_is_renewed(bucket: Bucket) -> None:
    store, content = bucket.store(MAX), b"again"
    checksum = store.put(content)
    removed = []
    store.client.meta.events.register(
        "before-call.s3.PutObject", lambda **_: removed.append(store.remove(checksum, now() + HOUR))
    )
    upload_whole(store, content, checksum, len(content))
    assert removed == [False]
    assert store.has(checksum)


def test_small_object_is_put_again_after_a_while(bucket: Bucket) -> None:
    times_s = [0.0]
    store = bucket.store(MAX, boot_clock=lambda: times_s[0])
    puts: list[object] = []
    store.client.meta.events.register("before-call.s3.PutObject", lambda **_: puts.append(1))
    for time_s in (0.0, PUT_AGAIN_AFTER_S - 1, PUT_AGAIN_AFTER_S, PUT_AGAIN_AFTER_S + 1):
        times_s[0] = time_s
        store.put(b"")
    assert len(puts) == 2


def test_content_stored_again_is_not_removed_as_old(folder_store: FolderStore) -> None:
    checksum = folder_store.put(b"again")
    past = now() - 10 * HOUR
    os.utime(folder_store.path_of(checksum), (past.timestamp(), past.timestamp()))
    folder_store.put(b"again")
    assert not folder_store.remove(checksum, now() - HOUR)
    assert folder_store.has(checksum)


def test_names_folder_that_cannot_be_created(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(WorldError, match=r"files cannot be stored in .*Not a directory"):
        FolderStore(tmp_path / "file" / "files", MAX)


def test_folder_that_is_gone_is_reported(folder_store: FolderStore, tmp_path: Path) -> None:
    folder_store.check()
    (tmp_path / "files").rename(tmp_path / "elsewhere")
    with pytest.raises(WorldError, match=r"files cannot be stored in .*No such file"):
        folder_store.check()


def test_full_disk_is_a_transient_error(folder_store: FolderStore, tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, limits[1]))
    try:
        with pytest.raises(WorldError, match=r"files cannot be stored in .*File too large") as failed:
            folder_store.put(b"x" * 100)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert failed.value.transient
    assert all_files(tmp_path) == []


def test_outage_of_the_object_store_leaves_nothing_half_stored(object_store: ObjectStore, bucket: Bucket) -> None:
    content = os.urandom(PART_BYTES + 2 * MIB)
    checksum = checksum_of(content)
    with relay_to(object_store.port) as relay:
        store = S3Store(bucket.name, "jobs", len(content), replace(bucket.access, endpoint=relay.url))
        small = store.put(b"small")
        upload = store.begin(checksum, len(content))
        upload.append(content[: PART_BYTES + MIB])
        upload.append(content[PART_BYTES + MIB :])
        relay.cut()
        for use in (store.check, upload.finish, lambda: store.has(small), lambda: store.read(small)):
            with pytest.raises(WorldError, match=rf"s3://{bucket.name}/jobs: {relay.url} does not answer") as failed:
                use()
            assert failed.value.transient
        upload.abort()
        relay.connect()
        store.check()
        assert b"".join(store.read(small)) == b"small"
        assert not store.has(checksum)
        assert store.sweep_unfinished(now() + HOUR) == 1
        upload_whole(store, content, checksum, len(content))
        assert b"".join(store.read(checksum)) == content


def test_download_that_is_cut_off_is_an_error(object_store: ObjectStore, bucket: Bucket) -> None:
    content = os.urandom(PART_BYTES)
    upload_whole(bucket.store(PART_BYTES), content, checksum_of(content), PART_BYTES)
    with relay_to(object_store.port) as relay:
        store = S3Store(bucket.name, "jobs", MAX, replace(bucket.access, endpoint=relay.url))
        pieces = store.read(checksum_of(content))
        next(pieces)
        relay.cut()
        with pytest.raises(WorldError, match="files cannot be stored in"):
            list(pieces)


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"bucket": "no-such-bucket"}, "there is no such bucket; correct `files`, or create it"),
        ({"access_key": "AKIANOBODY"}, "the store does not know the access key; correct s3_access_key"),
        ({"secret_key": "guessed"}, "the secret key does not belong to the access key; correct s3_secret_key"),
        ({"endpoint": "http://127.0.0.1:1"}, "http://127.0.0.1:1 does not answer; correct s3_endpoint"),
    ],
    ids=lambda each: next(iter(each)) if isinstance(each, dict) else "",
)
def test_unusable_object_store_is_refused_at_the_start(bucket: Bucket, wrong: dict[str, str], why: str) -> None:
    place = wrong.pop("bucket", bucket.name)
    with pytest.raises(WorldError, match=why):
        S3Store(place, "jobs", MAX, replace(bucket.access, **wrong))


def test_object_store_is_found_in_the_environment_of_aws(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", str(bucket.access.endpoint))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", str(bucket.access.access_key))
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", str(bucket.access.secret_key))
    store = S3Store(bucket.name, "", MAX, S3Access())
    assert bucket.remains() == []
    checksum = store.put(b"x")
    assert bucket.remains() == [f"{checksum[:2]}/{checksum}"]


def test_missing_credentials_are_named(bucket: Bucket, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(WorldError, match="there are no credentials; set s3_access_key and s3_secret_key"):
        S3Store(bucket.name, "", MAX, S3Access(bucket.access.endpoint))


def test_store_is_opened_by_its_url(tmp_path: Path, bucket: Bucket) -> None:
    folder = open_store(
        load_settings(ServerSettings, None, {"data": tmp_path, "files": (tmp_path / "with space").as_uri()})
    )
    assert folder.has(folder.put(b"x"))
    objects = open_store(load_settings(ServerSettings, None, {"data": tmp_path, **bucket.settings}))
    checksum = objects.put(b"x")
    assert bucket.remains() == [f"jobs/{checksum[:2]}/{checksum}"]


@pytest.mark.parametrize("url", ["ftp://host/files", "s3:///prefix", "s3://Bucket", "s3://bucket/a//b", "s3://b?x=1"])
def test_url_of_no_store_is_refused(tmp_path: Path, url: str) -> None:
    with pytest.raises(InvalidInputError, match="s3://bucket/prefix"):
        open_store(load_settings(ServerSettings, None, {"data": tmp_path, "files": url}))


def test_missing_package_names_the_command_that_installs_it(
    tmp_path: Path, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = load_settings(ServerSettings, None, {"data": tmp_path, **bucket.settings})
    monkeypatch.delitem(sys.modules, "pilotage_server.storage.blobs.s3")
    monkeypatch.setitem(sys.modules, "botocore", None)
    with pytest.raises(WorldError, match=r"it needs the package botocore: pip install 'pilotage\[s3\]'"):
        open_store(settings)
