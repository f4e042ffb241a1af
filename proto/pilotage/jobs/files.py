"""The folder of a job: its files stay inside it, its output is found in it, and it can be removed whole.

Rules
-----
- The search for output does not follow links on the way down: two links upwards would make an endless folder.
- Every entry looked at counts against a limit, as a job may create millions of files or name thousands of patterns.
- Each output file is limited in size, and none comes from outside the folder. A link that leads to another file of the
  folder is resolved when it is found; the file is then opened without following a link, so a link made later has no
  effect.
"""

from __future__ import annotations

import contextlib
import errno
import fnmatch
import hashlib
import itertools
import os
import re
import stat
import subprocess
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from pilotage.errors import PilotageError
from pilotage.job_description import JobDescription
from pilotage.jobs.file_names import MAX_PARTS, is_too_deep
from pilotage.text import text_fault

NULL = "/dev/null"

UNPLACEABLE_ERRNOS = frozenset({errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG})
"""Errors of a file that cannot be placed where its job wants it: the path is taken, or the name is too long."""

_REMOVAL = 'trap "" HUP INT TERM; rm -rf -- "$1" || { chmod -R u+rwx -- "$1"; rm -rf -- "$1"; }'
"""The removal ignores the signals that end a pilot, as they may be sent to all of its processes."""

_FEW = 20


class JobFaultError(PilotageError):
    """The payload cannot be started through the job's own fault; the text explains it to the owner."""


def remove_tree(folder: Path) -> None:
    """Remove a folder of any depth and with any modes inside; what cannot be removed stays.

    Python's own removal fails at some depth, and holds a file open for each level until then.
    """
    if remove_small(folder):
        return
    with contextlib.suppress(OSError):
        command = ("sh", "-c", _REMOVAL, "sh", folder)
        subprocess.run(command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)


def remove_small(folder: Path) -> bool:
    """Remove a folder of at most two levels with few files in it; returns whether it is gone.

    Most jobs leave no more, and this is too fast to be worth a thread.
    """
    try:
        for child in _small_listing(folder):
            if child.is_dir(follow_symlinks=False):
                for file in _small_listing(Path(child.path)):
                    os.unlink(file.path)
                os.rmdir(child.path)
            else:
                os.unlink(child.path)
        folder.rmdir()
    except OSError:  # perhaps because another process is removing it
        return not os.path.lexists(folder)
    return True


def _small_listing(folder: Path) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        found = list(itertools.islice(entries, _FEW + 1))
    if len(found) > _FEW:
        raise OSError(f"{folder} has many files")
    return found


def inside(folder: Path, name: str) -> Path:
    """Return the path of a file that a job names; raises JobFaultError when it is not inside `folder`."""
    parts = set(name.split("/"))
    if not name or "\0" in name or name.startswith("/") or ".." in parts:
        raise JobFaultError(f"the file name {name!r} does not stay inside the job's folder")
    if is_too_deep(name):
        raise JobFaultError(f"the file name {name:.300} has more than {MAX_PARTS} parts")
    if parts <= {"", "."}:
        raise JobFaultError(f"the file name {name!r} names the job's folder itself")
    return folder / name


def resolves_inside(folder: Path, path: Path) -> bool:
    """Whether `path` lies in `folder`, with all links of it followed; raises OSError.

    The folder itself may not be a link: its job may have put one in its place. A cycle of links leads nowhere, which
    counts as inside.
    """
    return _resolved(path).is_relative_to(_without_links(folder))


def _without_links(folder: Path) -> Path:
    """Return the path of a job's folder with the links above it followed."""
    return Path(os.path.realpath(folder.parent), folder.name)


def _resolved(path: Path) -> Path:
    try:
        return Path(os.path.realpath(path))
    except RecursionError as error:  # the system follows far fewer links
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP)) from error


MAX_ENTRIES = 200_000
_MATCH_COST = 10
"""The cost of a match in looked-at entries, as it is looked at again."""

_INCOMPLETE = "the job left more files than are looked through"

_WILD = frozenset("*?[")
_ANY_DEPTH = "**"
_MAX_ANY_DEPTHS = 2
_NOTES_SHOWN = 20

FolderState = Mapping[str, tuple[int, int]]
"""Size and modification time (ns) of each plain file at the top of a job's folder, by name."""

_Part = re.Pattern[str] | None
"""The pattern of one part of a name; None = any number of folders."""


class OutputNotes:
    """Notes for the owner of a job about its output, each once, and limited in number."""

    def __init__(self) -> None:
        self._shown: list[str] = []
        self._others = 0

    def add(self, note: str) -> None:
        """Add a note."""
        if note in self._shown:
            return
        if len(self._shown) < _NOTES_SHOWN:
            self._shown.append(note)
        else:
            self._others += 1

    @property
    def texts(self) -> tuple[str, ...]:
        """The notes, or the first of them and the number of the others."""
        return (*self._shown, f"and {self._others} more") if self._others else tuple(self._shown)


class OutputSearch:
    """Searches the folder of one job for output files; looks at no more than `most` files and folders in all.

    `notes` collects why files may be missing.
    """

    def __init__(self, folder: Path, notes: OutputNotes, *, most: int = MAX_ENTRIES) -> None:
        self._folder = folder
        self._notes = notes
        self._left = most

    def find(self, pattern: str) -> Sequence[str]:
        """Return the names of the files that match a name or pattern, in order.

        A file with exactly this name takes precedence over the pattern. A folder stands for all files below it.

        Raises
        ------
        JobFaultError
            When it leads out of the job's folder, or is an unsupported pattern.
        OSError
            When the folder cannot be read.
        """
        path = inside(self._folder, pattern.removeprefix("./").rstrip("/"))
        name = str(path.relative_to(self._folder))
        if not os.path.lexists(path):
            return self._matching(name)
        # A link out of the job's folder is not searched: it may lead to the whole machine.
        if path.is_dir() and not path.is_symlink() and resolves_inside(self._folder, path):
            return sorted(self._walk(name, ()))
        return (name,)

    def changed(self, seen: FolderState) -> Sequence[str]:
        """Return the plain files at the top of the folder that are new or changed since `seen`, by name."""
        return sorted(entry.name for entry in self._entries("") if state_of(entry) not in (None, seen.get(entry.name)))

    def _matching(self, pattern: str) -> Sequence[str]:
        parts = pattern.split("/")
        plain = next((place for place, part in enumerate(parts) if not _WILD.isdisjoint(part)), len(parts))
        if plain == len(parts):
            return ()
        if parts.count(_ANY_DEPTH) > _MAX_ANY_DEPTHS:
            raise JobFaultError(f"a pattern has {_ANY_DEPTH} no more than {_MAX_ANY_DEPTHS} times")
        if any(_ANY_DEPTH in part and part != _ANY_DEPTH for part in parts):
            raise JobFaultError(f"{_ANY_DEPTH} is no part of a name")
        top = self._folder.joinpath(*parts[:plain])
        if not top.is_dir():
            return ()
        if not resolves_inside(self._folder, top):
            raise JobFaultError("it leads out of the job's folder")
        return sorted(self._walk("/".join(parts[:plain]), [_part_pattern(part) for part in parts[plain:]]))

    @property
    def is_exhausted(self) -> bool:
        """Whether the limit is reached, so that files may exist that were not found."""
        return self._left <= 0

    def _walk(self, top: str, parts: Sequence[_Part]) -> Iterator[str]:
        """Yield the files below a folder whose names match `parts`, or that lie below a match."""
        waiting = [("", top, _skip_any_depth({0}, parts))]
        while waiting:
            if self.is_exhausted:
                self._notes.add(_INCOMPLETE)
                return
            above, last, wanted = waiting.pop()
            folder = _joined(above, last)
            if is_too_deep(f"{folder}/"):
                self._notes.add("folders that lie too deep in one another were not looked into")
                continue
            for entry in self._entries(folder):
                further = _advance(wanted, entry.name, parts)
                if further and entry.is_dir(follow_symlinks=False):
                    waiting.append((folder, entry.name, further))
                elif len(parts) in further:
                    self._left -= _MATCH_COST
                    yield _joined(folder, entry.name)

    def _entries(self, folder: str) -> Iterator[os.DirEntry[str]]:
        try:
            with os.scandir(self._folder / folder) as entries:
                for entry in entries:
                    if self.is_exhausted:
                        self._notes.add(_INCOMPLETE)
                        return
                    self._left -= 1
                    yield entry
        except OSError as error:
            self._notes.add(f"the folder {folder!r} cannot be looked into: {error.strerror}")


def state_of(entry: os.DirEntry[str]) -> tuple[int, int] | None:
    """Return size and modification time (ns) of a plain file; None = it is none, or is gone."""
    try:
        state = entry.stat(follow_symlinks=False)
    except OSError:
        return None
    return (state.st_size, state.st_mtime_ns) if stat.S_ISREG(state.st_mode) else None


def _joined(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


def _part_pattern(text: str) -> _Part:
    return None if text == _ANY_DEPTH else re.compile(fnmatch.translate(text))


def _advance(wanted: Set[int], name: str, parts: Sequence[_Part]) -> Set[int]:
    """Return the positions in `parts` after `name`, from the positions `wanted`; the last position = a full match."""
    found = set()
    for place in wanted:
        part = parts[place] if place < len(parts) else None
        if part is None:
            found.add(place)
        elif part.match(name):
            found.add(place + 1)
    return _skip_any_depth(found, parts)


def _skip_any_depth(places: Set[int], parts: Sequence[_Part]) -> Set[int]:
    """Return the positions plus those after each `**`, which also matches no folder."""
    found = set(places)
    for place in places:
        while place < len(parts) and parts[place] is None:
            place += 1
            found.add(place)
    return found


_PIECE_BYTES = 1 << 20
_OUTSIDE = "leads out of the job's folder"
_NO_FILE = "is no regular file"


@dataclass(frozen=True, slots=True)
class OutputLimits:
    """Limits of output: the size of a file, the number of files, and the size of all files."""

    file_bytes: int
    files: int = 1000
    all_bytes: int = 4096 << 20


@dataclass(frozen=True, slots=True)
class FoundOutput:
    """The output files of a job by name, and notes for its owner about missing ones."""

    files: dict[str, Path]
    notes: tuple[str, ...]


def stream_files(description: JobDescription) -> tuple[str, str]:
    """Return the names of the files of standard output and of standard error; they may be equal, or `NULL`."""
    return description.stdout or "stdout", description.stderr or "stderr"


def stream_names(description: JobDescription) -> tuple[str, ...]:
    """Return the names of the kept files of standard output and error."""
    return tuple(dict.fromkeys(name for name in stream_files(description) if name != NULL))


def find_output(
    description: JobDescription, folder: Path, limits: OutputLimits, initial: FolderState | None = None
) -> FoundOutput:
    """Return the output of a job: its streams, the matches of its output files, and new or changed files.

    This may take long for a job that has created many files.
    """
    notes = OutputNotes()
    files: dict[str, Path] = {}
    left = limits.all_bytes
    home = _without_links(folder)
    for name in _names(description, OutputSearch(folder, notes), notes, initial):
        path = None if name in files else _output_file(name, home, notes)
        if path is None:
            continue
        if len(files) == limits.files:
            notes.add(f"only {limits.files} output files were taken, and there are more")
            break
        size = min(size_of(path), limits.file_bytes)
        if size > left:
            why = f"together with those before it has more than {limits.all_bytes} bytes"
            notes.add(f"output file {name} was not taken: {why}")
            continue
        left -= size
        files[name] = path
    return FoundOutput(files, notes.texts)


def _names(
    description: JobDescription, search: OutputSearch, notes: OutputNotes, seen: FolderState | None
) -> Iterator[str]:
    """Yield the names of possible output, with repetitions and missing files."""
    yield from stream_names(description)
    for pattern in description.output_files:
        try:
            names = search.find(pattern)
        except (JobFaultError, ValueError, OSError) as error:
            notes.add(f"output file {pattern} was not taken: {error}")
            continue
        if not names and not search.is_exhausted:
            notes.add(f"output file {pattern} is not there")
        yield from names
    if seen is not None:
        yield from search.changed(seen)


def _output_file(name: str, folder: Path, notes: OutputNotes) -> Path | None:
    """Return the path of an output file with all links followed; adds a note if it exists but is no output.

    There are no links above `folder`.
    """
    if fault := text_fault(name) or ("has a line break in its name" if "\n" in name else ""):
        notes.add(f"output file {name!r} was not taken: it {fault}")
        return None
    try:
        if "/" not in name and _is_plain_file(path := folder / name):
            return path  # no link has to be followed
        path, is_there = _resolved(folder / name), os.path.lexists(folder / name)
        is_inside = path.is_relative_to(folder)
        if is_inside and (not is_there or path.is_file()):
            return path if is_there else None
    except OSError as error:
        notes.add(f"output file {name} was not taken: {error.strerror}")
        return None
    notes.add(f"output file {name} was not taken: it {_NO_FILE if is_inside else _OUTSIDE}")
    return None


def _is_plain_file(path: Path) -> bool:
    """Whether it is a plain file, in a folder that is no link."""
    try:
        return stat.S_ISREG(os.lstat(path).st_mode) and not os.path.islink(path.parent)
    except FileNotFoundError:
        return False


def plain_files(folder: Path) -> FolderState:
    """Return the present plain files at the top of a folder."""
    with os.scandir(folder) as entries:
        states = ((entry.name, state_of(entry)) for entry in entries)
        return {name: state for name, state in states if state is not None}


def digest_of(path: Path, most: int) -> tuple[str, int]:
    """Return the SHA-256 of a file's first `most` bytes, and their number."""
    digest = hashlib.sha256()
    read = 0
    with open_regular(path) as file:
        while read < most and (piece := file.read(min(_PIECE_BYTES, most - read))):
            digest.update(piece)
            read += len(piece)
    return digest.hexdigest(), read


def open_regular(path: Path) -> BinaryIO:
    """Return a regular file, opened for reading; raises OSError. No part of an absolute path may be a link."""
    # The file may have been replaced since it was found; opening a pipe must not block.
    descriptor = open_without_links(path, os.O_RDONLY | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(f"{path} is no regular file")
    return os.fdopen(descriptor, "rb")


def open_without_links(path: Path, flags: int) -> int:
    """Open an existing file, folder by folder; raises OSError if a part of its absolute path is a link."""
    folder = os.open("/", os.O_PATH | os.O_CLOEXEC)
    try:
        for part in path.parts[1:-1]:
            below = os.open(part, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
            os.close(folder)
            folder = below
        return os.open(path.name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    finally:
        os.close(folder)


def truncate(path: Path, size: int) -> bool:
    """Cut a file to `size`, unless a part of its absolute path is a link; returns whether it was cut."""
    try:
        descriptor = open_without_links(path, os.O_WRONLY | os.O_NONBLOCK)
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
    """Return the size of a file, of a link its own; 0 = it does not exist."""
    try:
        return path.lstat().st_size
    except OSError:
        return 0
