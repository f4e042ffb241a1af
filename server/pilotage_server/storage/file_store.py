"""Contents by checksum: where they lie, how they come and go, whatever keeps them.

A content is on disk before its row is in the database, and is taken away only when no row names it.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote, urlsplit

from pilotage.errors import InvalidInputError, Violation
from pilotage_server.storage.folder_store import FolderStore


class Upload(Protocol):
    """A content that is coming in, piece by piece; end it with `finish` or `abort`."""

    def append(self, piece: bytes) -> None:
        """Take the next piece; raises InvalidInputError when there is more than was announced."""

    def finish(self) -> None:
        """Put the content in its place, on disk for good; raises InvalidInputError on a wrong checksum."""

    def abort(self) -> None:
        """Forget what has come; harmless after `finish`."""


class FileStore(Protocol):
    """Keeps contents by their SHA-256; safe to call from several threads. Every method may raise WorldError."""

    def begin(self, checksum: str, size: int) -> Upload:
        """Start to take a content in; raises InvalidInputError where it is too large or no checksum."""

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
    parts = urlsplit(url)
    if parts.scheme == "file" and parts.path:
        return FolderStore(Path(unquote(parts.path)), max_file_bytes)
    raise InvalidInputError(Violation("files", f"{url!r} is no store for files; use file:///some/folder"))
