"""Looking through a job's folder for the files that the names and patterns of its output lead to.

Rules
-----
Links are not followed on the way down: two that lead upwards make a folder without end. All that is looked at counts,
for a job may have made millions of files, and may name thousands of patterns.
"""

from __future__ import annotations

import fnmatch
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence, Set
from pathlib import Path

from pilotage.file_names import is_too_deep
from pilotage.job_folders import JobAtFaultError, inside, really_inside

MOST_LOOKED_AT = 200_000
_FOUND_COSTS = 10
"""So many looks is what is found worth: it is looked at again."""

_NOT_ALL = "the job left more files than are looked through"

_WILD = frozenset("*?[")
_ANY_DEPTH = "**"
_MOST_ANY_DEPTHS = 2
_NOTES_SHOWN = 20

Seen = Mapping[str, tuple[int, int]]
"""Size and time of change (ns) of each plain file at the top of a job's folder, by name."""

_Part = re.Pattern[str] | None
"""What one part of a name is like; None = any number of folders."""


class Notes:
    """What the owner of a job should know of its output, each thing once and no more than anybody reads."""

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
        """The notes, or the first of them and how many there are more."""
        return (*self._shown, f"and {self._others} more") if self._others else tuple(self._shown)


class Search:
    """Looks for the output files of one job in its folder, at no more than `most` files and folders in all.

    `notes` take why some may be missing.
    """

    def __init__(self, folder: Path, notes: Notes, *, most: int = MOST_LOOKED_AT) -> None:
        self._folder = folder
        self._notes = notes
        self._left = most

    def named(self, pattern: str) -> Sequence[str]:
        """Return the names of the files that a name or pattern leads to, in order.

        What is there under the very name is meant before a pattern. A folder stands for all files below it.

        Raises
        ------
        JobAtFaultError
            When it leads out of the job's folder, or is no pattern that is followed.
        OSError
            When the folder cannot be looked into.
        """
        path = inside(self._folder, pattern.removeprefix("./").rstrip("/"))
        name = str(path.relative_to(self._folder))
        if not os.path.lexists(path):
            return self._matching(name)
        # What leads out of the job's folder is not looked into: it may be the whole machine.
        if path.is_dir() and not path.is_symlink() and really_inside(self._folder, path):
            return sorted(self._walk(name, ()))
        return (name,)

    def changed(self, seen: Seen) -> Sequence[str]:
        """Return the plain files at the top of the folder that have come or changed since they were `seen`, by name."""
        return sorted(entry.name for entry in self._entries("") if state_of(entry) not in (None, seen.get(entry.name)))

    def _matching(self, pattern: str) -> Sequence[str]:
        parts = pattern.split("/")
        plain = next((place for place, part in enumerate(parts) if not _WILD.isdisjoint(part)), len(parts))
        if plain == len(parts):
            return ()
        if parts.count(_ANY_DEPTH) > _MOST_ANY_DEPTHS:
            raise JobAtFaultError(f"a pattern has {_ANY_DEPTH} no more than {_MOST_ANY_DEPTHS} times")
        if any(_ANY_DEPTH in part and part != _ANY_DEPTH for part in parts):
            raise JobAtFaultError(f"{_ANY_DEPTH} is no part of a name")
        top = self._folder.joinpath(*parts[:plain])
        if not top.is_dir():
            return ()
        if not really_inside(self._folder, top):
            raise JobAtFaultError("it leads out of the job's folder")
        return sorted(self._walk("/".join(parts[:plain]), [_part(part) for part in parts[plain:]]))

    @property
    def is_over(self) -> bool:
        """Whether no more is looked at: what is not found may be there."""
        return self._left <= 0

    def _walk(self, top: str, parts: Sequence[_Part]) -> Iterator[str]:
        """Yield the files below a folder whose names are like `parts` or lie below what is."""
        waiting = [("", top, _with_skipped({0}, parts))]
        while waiting:
            if self.is_over:
                self._notes.add(_NOT_ALL)
                return
            above, last, wanted = waiting.pop()
            folder = _joined(above, last)
            if is_too_deep(f"{folder}/"):
                self._notes.add("folders that lie too deep in one another were not looked into")
                continue
            for entry in self._entries(folder):
                further = _next(wanted, entry.name, parts)
                if further and entry.is_dir(follow_symlinks=False):
                    waiting.append((folder, entry.name, further))
                elif len(parts) in further:
                    self._left -= _FOUND_COSTS
                    yield _joined(folder, entry.name)

    def _entries(self, folder: str) -> Iterator[os.DirEntry[str]]:
        try:
            with os.scandir(self._folder / folder) as entries:
                for entry in entries:
                    if self.is_over:
                        self._notes.add(_NOT_ALL)
                        return
                    self._left -= 1
                    yield entry
        except OSError as error:
            self._notes.add(f"the folder {folder!r} cannot be looked into: {error.strerror}")


def state_of(entry: os.DirEntry[str]) -> tuple[int, int] | None:
    """Return size and time of change (ns) of a plain file; None = it is none, or not there any more."""
    try:
        state = entry.stat(follow_symlinks=False)
    except OSError:
        return None
    return (state.st_size, state.st_mtime_ns) if stat.S_ISREG(state.st_mode) else None


def _joined(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


def _part(text: str) -> _Part:
    return None if text == _ANY_DEPTH else re.compile(fnmatch.translate(text))


def _next(wanted: Set[int], name: str, parts: Sequence[_Part]) -> Set[int]:
    """Return which parts may be next below a name where one of `wanted` is; their number = it is what was meant."""
    found = set()
    for place in wanted:
        part = parts[place] if place < len(parts) else None
        if part is None:
            found.add(place)
        elif part.match(name):
            found.add(place + 1)
    return _with_skipped(found, parts)


def _with_skipped(places: Set[int], parts: Sequence[_Part]) -> Set[int]:
    """Return the places, and those behind them that any number of folders leads to, for that may be none."""
    found = set(places)
    for place in places:
        while place < len(parts) and parts[place] is None:
            place += 1
            found.add(place)
    return found
