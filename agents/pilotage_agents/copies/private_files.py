"""Folders of copies by their names, and files in them that are for the agent's eyes alone."""

from __future__ import annotations

import contextlib
import os
from datetime import datetime
from pathlib import Path

from pilotage.errors import WorldError
from pilotage.job_folders import remove_tree


def folder_of(root: Path, name: str) -> Path:
    """Return the folder of a copy below `root`; raises WorldError for a name that cannot be one of a folder."""
    if not name or "/" in name or name.startswith("."):
        raise WorldError(f"{name!r} is not the name of a copy", transient=False)
    return root / name


def check_is_there(root: Path) -> None:
    """Raise WorldError unless what the folders lie in is here: a shared one may be away for a while."""
    if not root.parent.is_dir():
        raise WorldError(f"{root.parent}: is not there", transient=True)


def make_folder(root: Path, name: str) -> Path:
    """Make the folder of a copy anew: what is left of one that was never completed belongs to nobody."""
    folder = folder_of(root, name)
    remove_folder(folder)
    # What it lies in has to be there: elsewhere no other router would find it.
    root.mkdir(mode=0o700, exist_ok=True)
    folder.mkdir(mode=0o700)
    return folder


def remove_folder(folder: Path) -> None:
    """Remove a folder, if it is there."""
    if folder.exists():
        remove_tree(folder)


def names_untouched(root: Path, origin: str, before: datetime) -> tuple[str, ...]:
    """Return the names of the copies of a router whose folders nobody has touched since a time; others' may lie there.

    Raises WorldError.
    """
    ending, since = f"-{origin}", before.timestamp()
    try:
        with os.scandir(root) as entries:
            own = [entry for entry in entries if entry.name.endswith(ending) and not entry.name.startswith(".")]
            return tuple(entry.name.removesuffix(ending) for entry in own if _changed_s(entry) < since)
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise WorldError(f"{root}: {error.strerror}", transient=True) from error


def _changed_s(entry: os.DirEntry[str]) -> float:
    """Return when an entry was changed last, in seconds of the epoch; one that has just gone is as if new."""
    try:
        return entry.stat(follow_symlinks=False).st_mtime
    except FileNotFoundError:
        return float("inf")


def write_private(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Write a file that only its owner can read in place of an earlier one, whole or not at all."""
    new = path.with_name(f"{path.name}.new")
    with contextlib.suppress(FileNotFoundError):
        new.unlink()
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(content)
    new.replace(path)
