"""The folder of a job: what a job names stays inside it, and all of it can be removed."""

from __future__ import annotations

import contextlib
import subprocess
from pathlib import Path

from pilotage.errors import PilotageError

NULL = "/dev/null"

_REMOVAL = 'trap "" HUP INT TERM; rm -rf -- "$1" || { chmod -R u+rwx -- "$1"; rm -rf -- "$1"; }'
"""What ends a pilot, which may be sent to all of its processes, does not end its clearing up."""


class JobAtFaultError(PilotageError):
    """The payload cannot be started through the job's own fault; the text says why, for its owner."""


def remove_tree(folder: Path) -> None:
    """Remove a folder, however deep it is and whatever the modes inside it are; what cannot be removed stays.

    Jobs leave what they like: Python's own way ends at some depth, and holds a file open for each level until then.
    """
    with contextlib.suppress(OSError):
        command = ("sh", "-c", _REMOVAL, "sh", folder)
        subprocess.run(command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)


def inside(folder: Path, name: str) -> Path:
    """Return the path of a file that a job names; raises JobAtFaultError when it is not inside `folder`."""
    parts = set(name.split("/"))
    if not name or "\0" in name or name.startswith("/") or ".." in parts:
        raise JobAtFaultError(f"the file name {name!r} does not stay inside the job's folder")
    if parts <= {"", "."}:
        raise JobAtFaultError(f"the file name {name!r} names the job's folder itself")
    return folder / name


def really_inside(folder: Path, path: Path) -> bool:
    """Whether `path`, all links followed, lies in `folder`, all links followed."""
    if path.parent == folder and not path.is_symlink():
        return True
    return path.resolve().is_relative_to(folder.resolve())
