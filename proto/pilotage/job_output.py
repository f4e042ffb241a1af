"""What a job left in its folder: which files are its output, each bounded, none from outside the folder."""

from __future__ import annotations

import hashlib
import itertools
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from pilotage.job_description import JobDescription
from pilotage.job_folders import NULL, JobAtFaultError, inside, really_inside
from pilotage.scalars import text_fault

_PIECE_BYTES = 1 << 20
_PATTERN = frozenset("*?[")
_ANY_DEPTH = "**"
_MOST_ANY_DEPTHS = 2
"""Each more makes a deep tree take as many times as long as it is deep."""

_MOST_LOOKED_AT = 20_000
_NOTES_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Bounds:
    """How large an output file may be, and how many there may be."""

    file_bytes: int
    files: int = 1000


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
    """Return the output of a job: its streams, what its output files lead to, and what is new since it was `seen`."""
    files: dict[str, Path] = {}
    notes: list[str] = []
    for name in stream_names(description):
        _take(name, folder / name, folder, files, notes)
    for pattern in description.output_files:
        _take_all(pattern, folder, files, notes)
    for name in new_files(folder, seen) if seen is not None else ():
        _take(name, folder / name, folder, files, notes)
    if len(files) > bounds.files:
        notes.append(f"only {bounds.files} of {len(files)} output files were taken")
        files = dict(itertools.islice(files.items(), bounds.files))
    if len(notes) > _NOTES_SHOWN:
        notes[_NOTES_SHOWN:] = [f"and {len(notes) - _NOTES_SHOWN} more"]
    return Found(files, tuple(notes))


def _take_all(pattern: str, folder: Path, files: dict[str, Path], notes: list[str]) -> None:
    try:
        matches = tuple(_matches(pattern, folder))
    except (JobAtFaultError, ValueError, OSError) as error:
        notes.append(f"output file {pattern} was not taken: {error}")
        return
    except RecursionError:
        notes.append(f"output file {pattern} was not taken: folders lie too deep in one another there")
        return
    if not matches:
        notes.append(f"output file {pattern} is not there")
    for path in matches:
        _take(str(path.relative_to(folder)), path, folder, files, notes)


Seen = Mapping[str, tuple[int, int]]
"""Size and time of change (ns) of each plain file at the top of a job's folder, by name."""


def plain_files(folder: Path) -> Seen:
    """Return the plain files at the top of a folder as they are now."""
    with os.scandir(folder) as entries:
        states = ((entry.name, entry.stat(follow_symlinks=False)) for entry in entries)
        return {name: (state.st_size, state.st_mtime_ns) for name, state in states if stat.S_ISREG(state.st_mode)}


def new_files(folder: Path, seen: Seen) -> tuple[str, ...]:
    """Return the plain files at the top of a folder that have come or changed since they were `seen`, by name."""
    return tuple(sorted(name for name, state in plain_files(folder).items() if seen.get(name) != state))


def _matches(pattern: str, folder: Path) -> Iterator[Path]:
    name = pattern.removeprefix("./").rstrip("/")
    path = inside(folder, name)
    if path.exists() or path.is_symlink():
        yield from _files_below(path, folder)
    elif name.split("/").count(_ANY_DEPTH) > _MOST_ANY_DEPTHS:
        raise JobAtFaultError(f"a pattern has {_ANY_DEPTH} no more than {_MOST_ANY_DEPTHS} times")
    elif not _PATTERN.isdisjoint(name):
        for match in _some(folder.glob(name)):
            yield from _files_below(match, folder)


def _files_below(path: Path, folder: Path) -> Iterator[Path]:
    # What leads out of the job's folder is not looked into: it may be the whole machine.
    if path.is_dir() and not path.is_symlink() and really_inside(folder, path):
        yield from (child for child in _some(path.rglob("*")) if not child.is_dir() or child.is_symlink())
    else:
        yield path


def _some(paths: Iterable[Path]) -> list[Path]:
    """Return paths in order, not more of them than anybody can want: a job may have made millions."""
    return sorted(itertools.islice(paths, _MOST_LOOKED_AT))


def _take(name: str, path: Path, folder: Path, files: dict[str, Path], notes: list[str]) -> None:
    if fault := text_fault(name) or ("has a line break in its name" if "\n" in name else ""):
        notes.append(f"output file {name!r} was not taken: it {fault}")
        return
    try:
        if fault := _fault_of(path, folder):
            notes.append(f"output file {name} was not taken: it {fault}")
        elif path.is_file():
            files.setdefault(name, path)
    except OSError as error:
        notes.append(f"output file {name} was not taken: {error.strerror}")


def _fault_of(path: Path, folder: Path) -> str:
    """Return why a file is not taken that may be there; empty = it is, if it is there. Raises OSError."""
    if not really_inside(folder, path):
        return "leads out of the job's folder"
    return "is no regular file" if os.path.lexists(path) and not path.is_file() else ""


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
