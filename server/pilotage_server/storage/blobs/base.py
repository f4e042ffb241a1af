"""The store of files as the server uses it, and the check of a content while it streams.

Rules
-----
A content appears under its checksum when it is whole and verified, or not at all. It is stored for good before its row
is in the database, and it is removed only when no row has its checksum.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from datetime import datetime
from typing import Protocol

from pilotage.errors import InvalidInputError, Violation
from pilotage.jobs.file_names import is_checksum

PIECE_BYTES = 256 * 1024
"""The largest piece of a content that is read."""


class Upload(Protocol):
    """An upload in pieces; end it with `finish` or `abort`."""

    def append(self, piece: bytes) -> None:
        """Take the next piece; raises InvalidInputError when there is more than was announced."""

    def finish(self) -> None:
        """Put the content in its place for good; raises InvalidInputError on a wrong checksum."""

    def abort(self) -> None:
        """Forget what has come; harmless after `finish`."""


class FileStore(Protocol):
    """Keeps contents by their SHA-256; safe to call from several threads. Every method may raise WorldError."""

    def check(self) -> None:
        """Raise WorldError, with the reason, if the store cannot be used now."""

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

    def read(self, checksum: str, offset: int = 0) -> Iterator[bytes]:
        """Return the content from a byte on in pieces; raises NotFoundError where it is not there."""

    def list(self, prefix: str, before: datetime) -> Iterator[str]:
        """Yield the checksums that begin with two hex digits and have not been put since `before`."""

    def remove(self, checksum: str, before: datetime) -> bool:
        """Remove a content unless it was put again since `before`; return whether it is gone."""

    def sweep_unfinished(self, before: datetime) -> int:
        """Remove uploads that were begun earlier and never ended; return how many."""


class ContentCheck:
    """Compares a content with its announced size and checksum while it streams."""

    def __init__(self, checksum: str, size: int) -> None:
        if not is_checksum(checksum):
            raise InvalidInputError(Violation("checksum", f"{checksum!r} is no SHA-256 in 64 hex digits"))
        self._checksum = checksum
        self._left = size
        self._hash = hashlib.sha256()

    def take(self, piece: bytes) -> None:
        """Take the next piece; raises InvalidInputError when there is more than was announced."""
        self._left -= len(piece)
        if self._left < 0:
            raise InvalidInputError(Violation("size", "there is more content than was announced"))
        self._hash.update(piece)

    def finish(self) -> None:
        """Raise InvalidInputError unless the content is whole and has its checksum."""
        if self._left:
            raise InvalidInputError(Violation("size", f"{self._left} bytes of what was announced are missing"))
        found = self._hash.hexdigest()
        if found != self._checksum:
            raise InvalidInputError(Violation("checksum", f"the content has {found}, not {self._checksum}"))


def check_size(size: int, max_file_bytes: int) -> None:
    """Raise InvalidInputError for a content of a size that is not taken."""
    if not 0 <= size <= max_file_bytes:
        why = f"{size} bytes are not between 0 and the {max_file_bytes} that this server takes"
        raise InvalidInputError(Violation("size", why))


def store_whole(store: FileStore, checksum: str, size: int, pieces: Iterator[bytes]) -> None:
    """Store a content that is given in pieces; raises InvalidInputError if it does not match its checksum."""
    upload = store.begin(checksum, size)
    try:
        for piece in pieces:
            upload.append(piece)
        upload.finish()
    finally:
        upload.abort()
