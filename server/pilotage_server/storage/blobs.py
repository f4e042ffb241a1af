"""Contents of files by checksum, stored as files of one folder: ab/abcdef….

Rules
-----
A content is written to a temporary file, synced, then moved to its place. It is on disk before its row is in the
database, and it is removed only when no row has its checksum.
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
from typing import Protocol
from urllib.parse import unquote, urlsplit

from pilotage.errors import InvalidInputError, NotFoundError, Violation, WorldError
from pilotage.jobs.file_names import is_checksum

_PIECE_BYTES = 256 * 1024
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
        if not is_checksum(checksum):
            raise InvalidInputError(Violation("checksum", f"{checksum!r} is no SHA-256 in 64 hex digits"))
        self.check_size(size)
        with _translated_errors(self._folder):
            return FolderUpload(self, checksum, size, self._unfinished)

    def check_size(self, size: int) -> None:
        """Raise InvalidInputError for a content of a size that is not taken."""
        if not 0 <= size <= self._max_file_bytes:
            why = f"{size} bytes are not between 0 and the {self._max_file_bytes} that this server takes"
            raise InvalidInputError(Violation("size", why))

    def put(self, content: bytes) -> str:
        """Keep a small content and return its checksum."""
        checksum = hashlib.sha256(content).hexdigest()
        if self._touch(checksum):
            return checksum
        upload = self.begin(checksum, len(content))
        try:
            upload.append(content)
            upload.finish()
        finally:
            upload.abort()
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

    def read(self, checksum: str) -> Iterator[bytes]:
        """Return the content in pieces; raises NotFoundError where it is not there."""
        try:
            file = self.path_of(checksum).open("rb")
        except FileNotFoundError:
            raise NotFoundError("content", checksum) from None
        except OSError as error:
            raise _world_error(self._folder, error) from error

        def pieces() -> Iterator[bytes]:
            with file, _translated_errors(self._folder):
                while piece := file.read(_PIECE_BYTES):
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
    """An upload to the folder; its size and checksum are checked while it streams."""

    def __init__(self, store: FolderStore, checksum: str, size: int, folder: Path) -> None:
        self._store = store
        self._checksum = checksum
        self._left = size
        self._hash = hashlib.sha256()
        descriptor, name = tempfile.mkstemp(dir=folder)
        self._path = Path(name)
        self._file = os.fdopen(descriptor, "wb")

    def append(self, piece: bytes) -> None:
        """Take the next piece; raises InvalidInputError when there is more than was announced."""
        self._left -= len(piece)
        if self._left < 0:
            raise InvalidInputError(Violation("size", "there is more content than was announced"))
        with _translated_errors(self._path.parent):
            self._file.write(piece)
        self._hash.update(piece)

    def finish(self) -> None:
        """Put the content in its place, on disk for good; raises InvalidInputError on a wrong checksum."""
        if self._left:
            raise InvalidInputError(Violation("size", f"{self._left} bytes of what was announced are missing"))
        found = self._hash.hexdigest()
        if found != self._checksum:
            raise InvalidInputError(Violation("checksum", f"the content has {found}, not {self._checksum}"))
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


class Upload(Protocol):
    """An upload in pieces; end it with `finish` or `abort`."""

    def append(self, piece: bytes) -> None:
        """Take the next piece; raises InvalidInputError when there is more than was announced."""

    def finish(self) -> None:
        """Put the content in its place, on disk for good; raises InvalidInputError on a wrong checksum."""

    def abort(self) -> None:
        """Forget what has come; harmless after `finish`."""


class FileStore(Protocol):
    """Keeps contents by their SHA-256; safe to call from several threads. Every method may raise WorldError."""

    def id(self) -> str | None:
        """Return the id of the store; None = it has none yet."""

    def set_id(self, id_: str) -> str:
        """Give the store an id if it has none; return the id that it has."""

    def begin(self, checksum: str, size: int) -> Upload:
        """Start to take a content in; raises InvalidInputError where it is too large or no checksum."""

    def check_size(self, size: int) -> None:
        """Raise InvalidInputError for a content of a size that is not taken."""

    def put(self, content: bytes) -> str:
        """Keep a small content and return its checksum."""

    def has(self, checksum: str) -> bool:
        """Return whether the content is there."""

    def read(self, checksum: str) -> Iterator[bytes]:
        """Yield the content in pieces; raises NotFoundError before the first where it is not there."""

    def list(self, prefix: str, before: datetime) -> Iterator[str]:
        """Yield the checksums that begin with two hex digits and have not been put since `before`."""

    def remove(self, checksum: str, before: datetime) -> bool:
        """Remove a content unless it was put again since `before`; return whether it is gone."""

    def sweep_unfinished(self, before: datetime) -> int:
        """Remove uploads that were begun earlier and never ended; return how many."""


def open_store(url: str, max_file_bytes: int) -> FileStore:
    """Return the store behind a URL: `file:///folder` so far; raises InvalidInputError for other schemes."""
    return FolderStore(local_folder(url), max_file_bytes)


def local_folder(url: str) -> Path:
    """Return the folder of a store; raises InvalidInputError for other schemes than `file`."""
    parts = urlsplit(url)
    if parts.scheme == "file" and parts.path:
        return Path(unquote(parts.path))
    raise InvalidInputError(Violation("files", f"{url!r} is no store for files; use file:///some/folder"))
