"""The pilot's folders in its scratch: one of its own, one for every attempt, and none left behind.

The folder of a pilot is locked as long as the pilot lives, so that the next one in the same scratch can tell which
folders belong to nobody.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path

from pilotage.errors import WorldError
from pilotage.job_folders import remove_tree
from pilotage_pilot.core.jobs import AttemptKey

_PREFIX = "pilotage-pilot-"
_LOCK = "lock"


class PilotFolder:
    """The folder of one living pilot; raises WorldError when the scratch cannot hold it."""

    def __init__(self, scratch: Path) -> None:
        try:
            scratch.mkdir(parents=True, exist_ok=True)
            self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=scratch)).resolve()
            self.jobs = self.path / "jobs"
            self.cache = self.path / "cache"
            self._lock = self._filled()
        except OSError as error:
            raise WorldError(f"the scratch {scratch} cannot be used: {error}", transient=False) from error

    def _filled(self) -> int:
        """Make what is in it, or nothing of it at all, and return its lock."""
        try:
            lock = _locked(self.path / _LOCK)
            self.jobs.mkdir(mode=0o700)
            self.cache.mkdir(mode=0o700)
        except OSError:
            remove_tree(self.path)
            raise
        return lock

    def of_attempt(self, key: AttemptKey) -> Path:
        """Return the folder of an attempt, which need not exist."""
        return self.jobs / str(key)

    def remove(self) -> None:
        """Remove it with all that is in it."""
        with contextlib.suppress(OSError):
            _remove(self.path)
        os.close(self._lock)


@dataclass(frozen=True, slots=True)
class Folders:
    """What is made for a payload, all in the folder `root` of its attempt: `work` and `temporary` are folders too.

    `work` is where it runs, `warning` the file that warns it of its end.
    """

    root: Path
    work: Path
    temporary: Path
    warning: Path
    machine_ad: Path
    job_ad: Path


def folders_in(root: Path) -> Folders:
    """Return what is made for a payload whose attempt has the folder `root`."""
    return Folders(root, root / "work", root / "tmp", root / "glidein-ends", root / "machine.ad", root / "job.ad")


def make_folders(folders: Folders) -> None:
    """Make the folders of an attempt; raises OSError."""
    for folder in (folders.root, folders.work, folders.temporary):
        os.mkdir(folder, mode=0o700)


def write_over(path: Path, text: str) -> None:
    """Let a file of a job's folder have this text alone; raises OSError where something else has taken its place."""
    # Whatever the job has made of it: a pipe must not be waited for, nor a link be followed.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(f"{path} is no regular file")
        file.truncate()
        file.write(text)


def _locked(path: Path) -> int:
    """Return a new lock, which is held before it has its name: nobody may find it free."""
    unnamed = path.with_suffix(".new")
    lock = os.open(unnamed, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    unnamed.rename(path)
    return lock


def remove_leftovers(scratch: Path) -> tuple[Path, ...]:
    """Remove the folders of dead pilots of this user in `scratch` and return them."""
    return tuple(folder for folder in sorted(scratch.glob(f"{_PREFIX}*")) if _is_removed(folder))


def _is_removed(folder: Path) -> bool:
    """Remove a folder if it is a dead pilot's and nobody else is about it; returns whether it was."""
    try:
        status = folder.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
            return False
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        # Without its lock a folder is being made or being removed by somebody else.
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return _remove(folder)
    except OSError:
        return False
    finally:
        os.close(lock)


def _remove(folder: Path) -> bool:
    """Remove the folder of a pilot, its lock last: what stays of it is tried again by the next pilot.

    Returns whether it is gone.
    """
    for path in _all_but_lock(folder):
        remove_tree(path)
    if _all_but_lock(folder):
        return False
    remove_tree(folder)
    return True


def _all_but_lock(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.name != _LOCK]
