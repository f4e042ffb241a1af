"""The space on the disks of the server: a reserve that reports may use and users may not, and a ballast file.

Rules
-----
Below the reserve, uploads and submissions are refused, and reports are still taken. The ballast is a file in the data
folder that takes space while there is plenty. It is removed when another program has filled the disk, so that the
server can write reports and start again.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import structlog

from pilotage.errors import WorldError

log = structlog.get_logger()

MIB = 1024 * 1024

LARGEST_PART = 0.05
"""The part of a disk that is reserved at most."""

BALLAST_PART = 0.25
"""The size of the ballast as a part of the reserve."""


class DiskSpace:
    """The folders that the server fills; `reserve_bytes` are kept free on each, but at most 5 % of the disk.

    `holds_files` = uploads are stored there, not elsewhere in an object store.
    """

    def __init__(self, folders: Sequence[Path], reserve_bytes: int, *, holds_files: bool = True) -> None:
        self._folders = folders
        self._holds_files = holds_files
        self._reserve_bytes = reserve_bytes
        self._ballast = folders[0] / "ballast"

    def free(self) -> list[tuple[Path, int, int]]:
        """Return for each folder the free bytes of its disk, and how many of them are reserved."""
        return [(folder, *self._free(folder)) for folder in self._folders]

    def fault(self, size: int = 0) -> str:
        """Return why `size` more bytes of users cannot be taken; "" = they can."""
        taken = size if self._holds_files else 0
        for folder, free, reserve in self.free():
            if free - taken < reserve:
                return (
                    f"the disk of {folder} is almost full: {free // MIB} MiB are free and {reserve // MIB} MiB are "
                    "reserved for reports; ask the operators to make room, and repeat the call later"
                )
        return ""

    def check(self, size: int = 0) -> None:
        """Raise WorldError if `size` more bytes of users cannot be taken."""
        fault = self.fault(size)
        if fault:
            raise WorldError(fault, transient=True)

    def keep_ballast(self) -> None:
        """Remove the ballast when the disk is full, and write it when there is room for it beside the reserve."""
        free, reserve = self._free(self._folders[0])
        wanted = int(reserve * BALLAST_PART)
        if self._ballast.exists():
            if free < wanted:
                self._ballast.unlink(missing_ok=True)
                log.warning("disk is full, ballast is removed", free_bytes=free, ballast_bytes=wanted)
        elif free >= reserve + wanted > 0:
            self._write_ballast(wanted)

    def _write_ballast(self, size: int) -> None:
        with self._ballast.open("wb") as file:
            try:
                os.posix_fallocate(file.fileno(), 0, size)
            except OSError as error:
                self._ballast.unlink(missing_ok=True)
                log.warning("ballast is not written", why=str(error))

    def _free(self, folder: Path) -> tuple[int, int]:
        """Return the free bytes of the folder's disk, and how many of them are reserved."""
        found = os.statvfs(folder)
        reserve = min(self._reserve_bytes, int(LARGEST_PART * found.f_blocks * found.f_frsize))
        return found.f_bavail * found.f_frsize, reserve
