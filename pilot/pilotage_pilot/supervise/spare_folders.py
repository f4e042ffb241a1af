"""Folders of attempts that are as they were made, for the next attempts: a renaming costs a tenth of new folders.

Most short jobs leave nothing in their folders, or no more than empty streams. Such a folder is no job's any more; it
is kept for the next one whose streams have the same names, unless anything at all is different about it.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from pilotage_pilot.supervise.folders import Folders

_MOST = 64
_FOLDER_MODE = stat.S_IFDIR | 0o700
_FILE_MODE = stat.S_IFREG | 0o600


class SpareFolders:
    """The spare folders of one pilot, by the names of the streams that are in them, empty."""

    def __init__(self) -> None:
        self._spares: dict[tuple[str, ...], list[Path]] = {}
        self._count = 0

    def give(self, root: Path, streams: tuple[str, ...]) -> bool:
        """Make one of them the folder `root`; returns whether there was one. Raises OSError."""
        spares = self._spares.get(streams)
        if not spares:
            return False
        self._count -= 1
        os.rename(spares.pop(), root)
        return True

    def keep(self, folders: Folders, streams: tuple[str, ...]) -> bool:
        """Keep the folder of an attempt, if it is as it was made; returns whether it is kept."""
        try:
            if self._count >= _MOST or not _is_as_made(folders, streams):
                return False
        except OSError:
            return False
        self._count += 1
        self._spares.setdefault(streams, []).append(folders.root)
        return True


def _is_as_made(folders: Folders, streams: tuple[str, ...]) -> bool:
    contents = ((folders.root, {"work", "tmp"}), (folders.work, {*streams}), (folders.temporary, set[str]()))
    return (
        all(_is_plain(folder, _FOLDER_MODE) for folder, _ in contents)
        and all({*os.listdir(folder)} == names for folder, names in contents)
        and all(_is_plain(file, _FILE_MODE) and _is_empty(file) for file in map(folders.work.joinpath, streams))
    )


def _is_plain(path: Path, mode: int) -> bool:
    """Whether nothing but its owner's rights are on it: no others', no access list, no mark of any kind."""
    return os.lstat(path).st_mode == mode and not os.listxattr(path, follow_symlinks=False)


def _is_empty(file: Path) -> bool:
    status = os.lstat(file)
    # By another name it would go on being the old job's.
    return status.st_size == 0 and status.st_nlink == 1
