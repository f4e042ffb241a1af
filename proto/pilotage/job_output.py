"""What a job left in its folder: which files are its output, each bounded, none from outside the folder."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from pilotage.job_description import JobDescription
from pilotage.job_folders import NULL, JobAtFaultError, really_inside
from pilotage.output_search import Notes, Search, Seen, state_of
from pilotage.scalars import text_fault

_PIECE_BYTES = 1 << 20
_OUTSIDE = "leads out of the job's folder"
_NO_FILE = "is no regular file"


@dataclass(frozen=True, slots=True)
class Bounds:
    """How large an output file may be, how many there may be, and how large all may be together."""

    file_bytes: int
    files: int = 1000
    all_bytes: int = 4096 << 20


@dataclass(frozen=True, slots=True)
class Found:
    """The output files of a job by name, and what its owner should know about those that are not there."""

    files: dict[str, Path]
    notes: tuple[str, ...]


def stream_names(description: JobDescription) -> tuple[str, ...]:
    """Return the names of the files that take standard output and error."""
    names = (description.stdout or "stdout", description.stderr or "stderr")
    return tuple(dict.fromkeys(name for name in names if name != NULL))


def find_output(description: JobDescription, folder: Path, bounds: Bounds, seen: Seen | None = None) -> Found:
    """Return the output of a job: its streams, what its output files lead to, and what is new since it was `seen`.

    It takes time for a job that has made many files.
    """
    notes = Notes()
    files: dict[str, Path] = {}
    left = bounds.all_bytes
    for name in _names(description, Search(folder, notes), notes, seen):
        if name in files or not _is_taken(name, folder, notes):
            continue
        if len(files) == bounds.files:
            notes.add(f"only {bounds.files} output files were taken, and there are more")
            break
        size = min(_size_behind(folder / name), bounds.file_bytes)
        if size > left:
            why = f"together with those before it has more than {bounds.all_bytes} bytes"
            notes.add(f"output file {name} was not taken: {why}")
            continue
        left -= size
        files[name] = folder / name
    return Found(files, notes.texts)


def _names(description: JobDescription, search: Search, notes: Notes, seen: Seen | None) -> Iterator[str]:
    """Yield the names of what may be output, some perhaps more than once or of files that are not there."""
    yield from stream_names(description)
    for pattern in description.output_files:
        try:
            names = search.named(pattern)
        except (JobAtFaultError, ValueError, OSError) as error:
            notes.add(f"output file {pattern} was not taken: {error}")
            continue
        if not names and not search.is_over:
            notes.add(f"output file {pattern} is not there")
        yield from names
    if seen is not None:
        yield from search.changed(seen)


def _is_taken(name: str, folder: Path, notes: Notes) -> bool:
    """Return whether a file is output, if it is there; if it is there and is not, the notes say why."""
    if fault := text_fault(name) or ("has a line break in its name" if "\n" in name else ""):
        notes.add(f"output file {name!r} was not taken: it {fault}")
        return False
    path = folder / name
    try:
        is_inside, is_there = really_inside(folder, path), os.path.lexists(path)
        if is_inside and (not is_there or path.is_file()):
            return is_there
    except OSError as error:
        notes.add(f"output file {name} was not taken: {error.strerror}")
        return False
    notes.add(f"output file {name} was not taken: it {_NO_FILE if is_inside else _OUTSIDE}")
    return False


def plain_files(folder: Path) -> Seen:
    """Return the plain files at the top of a folder as they are now."""
    with os.scandir(folder) as entries:
        states = ((entry.name, state_of(entry)) for entry in entries)
        return {name: state for name, state in states if state is not None}


def digest_of(path: Path, most: int) -> tuple[str, int]:
    """Return the SHA-256 of a file's first `most` bytes and how many these are."""
    digest = hashlib.sha256()
    read = 0
    with open_regular(path) as file:
        while read < most and (piece := file.read(min(_PIECE_BYTES, most - read))):
            digest.update(piece)
            read += len(piece)
    return digest.hexdigest(), read


def open_regular(path: Path) -> BinaryIO:
    """Return a regular file, opened to be read; raises OSError."""
    # Whatever has taken the file's place since it was found: a pipe must not be waited for.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(f"{path} is no regular file")
    return os.fdopen(descriptor, "rb")


def cut(path: Path, size: int) -> bool:
    """Cut a file to `size`, unless it is a link by now; returns whether it was cut."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        os.ftruncate(descriptor, size)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def size_of(path: Path) -> int:
    """Return the size of a file, of a link its own; 0 = it is not there."""
    try:
        return path.lstat().st_size
    except OSError:
        return 0


def _size_behind(path: Path) -> int:
    return size_of(Path(os.path.realpath(path)))
