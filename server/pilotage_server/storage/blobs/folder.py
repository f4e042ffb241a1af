"""Contents of files by checksum, stored as files of one folder: ab/abcdef….

A content is written to a temporary file, synced, then moved to its place.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

from pilotage.errors import NotFoundError, WorldError
from pilotage.jobs.file_names import is_checksum
from pilotage_server.storage.blobs.base import PIECE_BYTES, ContentCheck, check_size, store_whole

_UNFINISHED = "unfinished"
_ID = "store-id"


class FolderStore:
    """A folder of contents. Several servers may share it on a common file system."""

    def __init__(self, folder: Path, max_file_bytes: int) -> None:
        self._folder = folder
        self._unfinished = folder / _UNFINISHED
        self._max_file_bytes = max_file_bytes
        self._lock = threading.Lock()
        with _translated_errors(folder):
            self._unfinished.mkdir(parents=True, exist_ok=True)

    def check(self) -> None:
        """Raise WorldError if the folder cannot be listed."""
        with _translated_errors(self._folder):
            os.scandir(self._unfinished).close()

    def id(self) -> str | None:
        """Return the id of the store; None = it has none yet."""
        with _translated_errors(self._folder):
            try:
                return (self._folder / _ID).read_text(encoding="ascii").strip() or None
            except FileNotFoundError:
                return None

    def set_id(self, id_: str) -> str:
        """Give the store an id if it has none; return the id that it has."""
        with _translated_errors(self._folder):
            descriptor, draft = tempfile.mkstemp(dir=self._unfinished)
            with os.fdopen(descriptor, "w", encoding="ascii") as file:
                file.write(f"{id_}\n")
                file.flush()
                os.fsync(descriptor)
            with suppress(FileExistsError):  # another server was faster
                os.link(draft, self._folder / _ID)
            os.unlink(draft)
            _sync_folder(self._folder)
        return self.id() or id_

    def begin(self, checksum: str, size: int) -> FolderUpload:
        """Start to take a content in; raises InvalidInputError where it is too large or no checksum."""
        check = ContentCheck(checksum, size)
        self.check_size(size)
        with _translated_errors(self._folder):
            return FolderUpload(self, checksum, check, self._unfinished)

    def check_size(self, size: int) -> None:
        """Raise InvalidInputError for a content of a size that is not taken."""
        check_size(size, self._max_file_bytes)

    def put(self, content: bytes) -> str:
        """Keep a small content and return its checksum."""
        checksum = hashlib.sha256(content).hexdigest()
        if not self._touch(checksum):
            store_whole(self, checksum, len(content), iter([content]))
        return checksum

    def _touch(self, checksum: str) -> bool:
        """Renew the time of an existing content; False = it does not exist. Most jobs write the same empty output."""
        with self._lock, _translated_errors(self._folder):
            try:
                os.utime(self.path_of(checksum))
            except FileNotFoundError:
                return False
        return True

    def has(self, checksum: str) -> bool:
        """Return whether the content is there."""
        with _translated_errors(self._folder):
            return self.path_of(checksum).exists()

    def read(self, checksum: str, offset: int = 0) -> Iterator[bytes]:
        """Return the content from a byte on in pieces; raises NotFoundError where it is not there."""
        try:
            file = self.path_of(checksum).open("rb")
            file.seek(offset)
        except FileNotFoundError:
            raise NotFoundError("content", checksum) from None
        except OSError as error:
            raise _world_error(self._folder, error) from error

        def pieces() -> Iterator[bytes]:
            with file, _translated_errors(self._folder):
                while piece := file.read(PIECE_BYTES):
                    yield piece

        return pieces()

    def list(self, prefix: str, before: datetime) -> Iterator[str]:
        """Yield the checksums that begin with two hex digits and have not been put since `before`."""
        with _translated_errors(self._folder):
            if not (self._folder / prefix).is_dir():
                return
            for entry in os.scandir(self._folder / prefix):
                if is_checksum(entry.name) and _is_older(entry, before):
                    yield entry.name

    def remove(self, checksum: str, before: datetime) -> bool:
        """Remove a content unless it was put again since `before`; return whether it is gone."""
        path = self.path_of(checksum)
        with self._lock, _translated_errors(self._folder), suppress(FileNotFoundError):
            if path.stat().st_mtime >= before.timestamp():
                return False
            path.unlink()
        return True

    def sweep_unfinished(self, before: datetime) -> int:
        """Remove uploads that were begun earlier and never ended; return how many."""
        removed = 0
        with _translated_errors(self._folder):
            for entry in os.scandir(self._unfinished):
                if _is_older(entry, before):
                    with suppress(FileNotFoundError):
                        os.unlink(entry.path)
                        removed += 1
        return removed

    def path_of(self, checksum: str) -> Path:
        """Return the path of a content; raises NotFoundError for a text that is no checksum."""
        if not is_checksum(checksum):
            raise NotFoundError("content", checksum)
        return self._folder / checksum[:2] / checksum

    def store(self, written: Path, checksum: str) -> None:
        """Move a written and synced file to its place; if the content exists, only renew its time."""
        path = self.path_of(checksum)
        if self._touch(checksum):
            written.unlink()
            return
        with self._lock:
            if not path.parent.exists():
                path.parent.mkdir(exist_ok=True)
                _sync_folder(self._folder)
            written.replace(path)
            _sync_folder(path.parent)


class FolderUpload:
    """An upload to the folder."""

    def __init__(self, store: FolderStore, checksum: str, check: ContentCheck, folder: Path) -> None:
        self._store = store
        self._checksum = checksum
        self._check = check
        descriptor, name = tempfile.mkstemp(dir=folder)
        self._path = Path(name)
        self._file = os.fdopen(descriptor, "wb")

    def append(self, piece: bytes) -> None:
        """Take the next piece; raises InvalidInputError when there is more than was announced."""
        self._check.take(piece)
        with _translated_errors(self._path.parent):
            self._file.write(piece)

    def finish(self) -> None:
        """Put the content in its place, on disk for good; raises InvalidInputError on a wrong checksum."""
        self._check.finish()
        with _translated_errors(self._path.parent):
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            self._store.store(self._path, self._checksum)

    def abort(self) -> None:
        """Forget what has come; harmless after `finish`."""
        with suppress(OSError):
            self._file.close()
        with suppress(OSError):
            self._path.unlink()


def _is_older(entry: os.DirEntry[str], before: datetime) -> bool:
    """Return whether a listed file was written earlier; False for one that was removed meanwhile."""
    try:
        return entry.stat().st_mtime < before.timestamp()
    except FileNotFoundError:
        return False


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _translated_errors(folder: Path) -> Iterator[None]:
    """Turn a full disk, a read-only folder and the like into one clear WorldError."""
    try:
        yield
    except OSError as error:
        raise _world_error(folder, error) from error


def _world_error(folder: Path, error: OSError) -> WorldError:
    return WorldError(f"files cannot be stored in {folder}: {error.strerror or error}", transient=True)
