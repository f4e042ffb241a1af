"""The folder of a job: what a job names stays inside it, and all of it can be removed."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

from pilotage.errors import PilotageError

NULL = "/dev/null"


class JobAtFaultError(PilotageError):
    """The payload cannot be started through the job's own fault; the text says why, for its owner."""


def remove_tree(folder: Path) -> None:
    """Remove a folder whatever the modes inside it are; what cannot be removed stays."""

    def allow_and_retry(function: object, path: str, _: object) -> None:
        with contextlib.suppress(OSError):
            parent = Path(path).parent
            parent.chmod(0o700)
            if not Path(path).is_symlink():
                Path(path).chmod(0o700)
            if callable(function):
                function(path)

    shutil.rmtree(folder, onerror=allow_and_retry)
    if folder.exists():
        shutil.rmtree(folder, ignore_errors=True)


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
