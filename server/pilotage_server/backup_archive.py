"""The archive of a backup: one tar file that ends with the checksums of its members.

The list comes last, so that an archive whose writing was interrupted, or that was cut off, has none. `sha256sum --check
SHA256SUMS` checks an archive that `tar` has unpacked.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import IO

from pilotage.errors import InvalidInputError, Violation

CHECKSUMS = "SHA256SUMS"
_PIECE_BYTES = 1024 * 1024


@contextmanager
def written(path: Path) -> Iterator[ArchiveWriter]:
    """Write an archive to a file that does not exist; nobody else may read it. It is complete after the block."""
    path.touch(mode=0o600, exist_ok=False)
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        writer = ArchiveWriter(tar)
        yield writer
        writer.add_checksums()


class ArchiveWriter:
    """Writes the members of an archive."""

    def __init__(self, tar: tarfile.TarFile) -> None:
        self._tar = tar
        self._sums: list[str] = []

    def add(self, name: str, content: bytes) -> None:
        """Add a member with this content."""
        self._add(name, io.BytesIO(content), len(content))

    def add_file(self, name: str, path: Path) -> None:
        """Add the content of a file."""
        with path.open("rb") as file:
            self._add(name, file, path.stat().st_size)

    def add_checksums(self) -> None:
        """Add the list of checksums, which ends the archive."""
        self.add(CHECKSUMS, "".join(self._sums).encode())

    def _add(self, name: str, content: IO[bytes], size: int) -> None:
        member = tarfile.TarInfo(name)
        member.size, member.mode = size, 0o600
        reader = _SummingReader(content)
        self._tar.addfile(member, reader)
        self._sums.append(f"{reader.sum.hexdigest()}  {name}\n")


class _SummingReader(io.RawIOBase):
    """Reads a file and sums up what was read."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.sum = sha256()

    def readinto(self, buffer: bytearray) -> int:  # type: ignore[override]
        piece = self._file.read(len(buffer))
        buffer[: len(piece)] = piece
        self.sum.update(piece)
        return len(piece)


class BackupArchive:
    """An archive that is read; members are taken by their names, and nothing is unpacked by itself."""

    def __init__(self, path: Path, tar: tarfile.TarFile) -> None:
        self._path = path
        self._tar = tar
        self._members = {member.name: member for member in tar if member.isreg()}

    def check(self) -> None:
        """Read all and compare it with the checksums; raises InvalidInputError."""
        if CHECKSUMS not in self._members:
            raise self._fault(f"is incomplete or no backup: it has no {CHECKSUMS}")
        lines = [line.partition("  ") for line in self.read(CHECKSUMS).decode(errors="replace").splitlines()]
        expected = {name: checksum for checksum, _, name in lines}
        if missing := sorted(expected.keys() - self._members.keys()):
            raise self._fault(f"is damaged: it has no {missing[0]}")
        for name in sorted(self._members.keys() - {CHECKSUMS}):
            found = sha256()
            for piece in self.pieces(name):
                found.update(piece)
            if expected.get(name) != found.hexdigest():
                raise self._fault(f"is damaged: {name} is not what was written")

    def has(self, name: str) -> bool:
        """Return whether there is a member with this name."""
        return name in self._members

    def names(self, folder: str) -> tuple[str, ...]:
        """Return the names of the members in a folder."""
        return tuple(sorted(name for name in self._members if name.startswith(f"{folder}/")))

    def size(self, name: str) -> int:
        """Return the size of a member in bytes."""
        return self._members[name].size

    def read(self, name: str) -> bytes:
        """Return the content of a small member."""
        return b"".join(self.pieces(name))

    def pieces(self, name: str) -> Iterator[bytes]:
        """Yield the content of a member."""
        file = self._tar.extractfile(self._members[name])
        assert file is not None, "only regular members are kept"
        with file:
            while piece := file.read(_PIECE_BYTES):
                yield piece

    def write(self, name: str, to: Path) -> None:
        """Write the content of a member to a file that nobody else may read."""
        to.touch(mode=0o600)
        with to.open("wb") as file:
            file.writelines(self.pieces(name))

    def _fault(self, why: str) -> InvalidInputError:
        return InvalidInputError(Violation("--from", f"{self._path} {why}"))


@contextmanager
def opened(path: Path) -> Iterator[BackupArchive]:
    """Open an archive; raises InvalidInputError where it is none, also in the block where it cannot be read."""
    try:
        with tarfile.open(path, "r:") as tar:
            yield BackupArchive(path, tar)
    except (tarfile.TarError, EOFError) as error:
        raise InvalidInputError(Violation("--from", f"{path} is damaged or no backup: {error}")) from error


def intact(pieces: Iterable[bytes], checksum: str, write: Callable[[bytes], object]) -> bool:
    """Write a content and return whether it has this checksum."""
    found = sha256()
    for piece in pieces:
        found.update(piece)
        write(piece)
    return found.hexdigest() == checksum
