"""The director's copies of pilot bundles, of which each glidein's folder gets a link.

A glidein keeps the bundle that it was sent with, also when the operator puts another in its place meanwhile.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from functools import lru_cache
from pathlib import Path
from zipfile import is_zipfile

from pilotage.errors import WorldError


class UnfinishedBundleError(WorldError):
    """A bundle is being written, or has been left half written: no pilot can be sent with it now."""

    def __init__(self, bundle: Path) -> None:
        super().__init__(f"{bundle}: it is no whole bundle, somebody may be writing it", transient=True)
        self.bundle = bundle


class BundleStore:
    """Keeps one copy of each bundle below `folder`, on the file system of the glideins' folders."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def copy_of(self, bundle: Path) -> Path:
        """Return the copy of a bundle as it is now.

        Raises UnfinishedBundleError as long as it is not whole, and WorldError when there is none.
        """
        copy = self._folder / hashlib.sha256(os.fsencode(bundle)).hexdigest()[:16] / bundle.name
        try:
            if not copy.exists() or _mark(copy) != _mark(bundle):
                copy.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                _copy_whole(bundle, copy)
        except OSError as error:
            raise WorldError(f"{error.filename or bundle}: {error.strerror}", transient=True) from error
        return copy

    def sha256_of(self, bundle: Path) -> str:
        """Return the SHA-256 of a bundle as it is now, in hex digits; raises as `copy_of` does."""
        copy = self.copy_of(bundle)
        return _sha256(copy, _mark(copy))

    def give(self, copy: Path, folder: Path) -> None:
        """Put a copy into a glidein's folder; raises OSError."""
        try:
            (folder / copy.name).hardlink_to(copy)
        except OSError:  # not every file system has links from folder to folder
            shutil.copy2(copy, folder)


def _copy_whole(bundle: Path, copy: Path) -> None:
    """Put a copy in the place of an earlier one, or leave that as it is and raise UnfinishedBundleError or OSError."""
    new, mark = copy.with_name(f"{copy.name}.new"), _mark(bundle)
    try:
        shutil.copy2(bundle, new)
        # What a zip has inside is said at its end, which one that is still being written does not have.
        if _mark(bundle) != mark or not is_zipfile(new):
            raise UnfinishedBundleError(bundle)
        new.replace(copy)
    finally:
        new.unlink(missing_ok=True)


@lru_cache(maxsize=64)
def _sha256(path: Path, mark: tuple[int, int]) -> str:
    """Return the SHA-256 of a file; `mark` tells it from the one that was there before."""
    del mark
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _mark(path: Path) -> tuple[int, int]:
    """Return what tells a file from the one that was there before."""
    status = path.stat()
    return status.st_size, status.st_mtime_ns
