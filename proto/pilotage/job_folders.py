"""The folder of a job: what a job names stays inside it, and all of it can be removed."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import subprocess
from pathlib import Path

from pilotage.errors import PilotageError
from pilotage.file_names import MOST_PARTS, is_too_deep

NULL = "/dev/null"

NO_PLACE = frozenset({errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG})
"""What is said of a file that cannot lie where its job wants it: another is in its way, or its name is too long."""

_REMOVAL = 'trap "" HUP INT TERM; rm -rf -- "$1" || { chmod -R u+rwx -- "$1"; rm -rf -- "$1"; }'
"""What ends a pilot, which may be sent to all of its processes, does not end its clearing up."""

_FEW = 20


class JobAtFaultError(PilotageError):
    """The payload cannot be started through the job's own fault; the text says why, for its owner."""


def remove_tree(folder: Path) -> None:
    """Remove a folder, however deep it is and whatever the modes inside it are; what cannot be removed stays.

    Jobs leave what they like: Python's own way ends at some depth, and holds a file open for each level until then.
    """
    if remove_small(folder):
        return
    with contextlib.suppress(OSError):
        command = ("sh", "-c", _REMOVAL, "sh", folder)
        subprocess.run(command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)


def remove_small(folder: Path) -> bool:
    """Remove a folder of at most two levels with few files in it; returns whether it is gone.

    That is what most jobs leave, and it takes no time worth a thread.
    """
    try:
        for child in _few(folder):
            if child.is_dir(follow_symlinks=False):
                for file in _few(Path(child.path)):
                    os.unlink(file.path)
                os.rmdir(child.path)
            else:
                os.unlink(child.path)
        folder.rmdir()
    except OSError:  # perhaps since somebody else is removing it
        return not os.path.lexists(folder)
    return True


def _few(folder: Path) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        found = list(itertools.islice(entries, _FEW + 1))
    if len(found) > _FEW:
        raise OSError(f"{folder} has many files")
    return found


def inside(folder: Path, name: str) -> Path:
    """Return the path of a file that a job names; raises JobAtFaultError when it is not inside `folder`."""
    parts = set(name.split("/"))
    if not name or "\0" in name or name.startswith("/") or ".." in parts:
        raise JobAtFaultError(f"the file name {name!r} does not stay inside the job's folder")
    if is_too_deep(name):
        raise JobAtFaultError(f"the file name {name:.300} has more than {MOST_PARTS} parts")
    if parts <= {"", "."}:
        raise JobAtFaultError(f"the file name {name!r} names the job's folder itself")
    return folder / name


def really_inside(folder: Path, path: Path) -> bool:
    """Whether `path`, all links followed, lies in `folder`, all links followed; raises OSError.

    Links that lead round in a circle lead nowhere, which is inside too.
    """
    if path.parent == folder and not path.is_symlink():
        return True
    try:
        return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))
    except RecursionError as error:  # the system follows far fewer links
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP)) from error
