"""The limits that Linux control groups set for this process: the share of a container or a service."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_MOUNT = "sys/fs/cgroup"
_NO_LIMIT_BYTES = 2**60  # version 1 writes a number near 2^63 where there is no limit


class ControlGroups:
    """Reads the limits of this process's group and of all groups above it, in either version; tests set `root`.

    Source: Linux kernel documentation, admin-guide/cgroup-v2 (cpu.max, memory.max) and cgroup-v1, cpu
    (cpu.cfs_quota_us) and memory (memory.limit_in_bytes).
    """

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root

    def cores(self) -> float | None:
        """Return the cores' worth of time that may be used; None = no limit."""
        return min(self._core_quotas(), default=None)

    def memory_bytes(self) -> int | None:
        """Return the memory that may be used; None = no limit."""
        return min(self._memory_limits(), default=None)

    def _core_quotas(self) -> Iterator[float]:
        for folder in self._group_folders("cpu"):
            with suppress(OSError, ValueError):
                quota, period = (folder / "cpu.max").read_text().split()
                yield int(quota) / int(period)
            with suppress(OSError, ValueError):
                quota_us = int((folder / "cpu.cfs_quota_us").read_text())
                if quota_us > 0:
                    yield quota_us / int((folder / "cpu.cfs_period_us").read_text())

    def _memory_limits(self) -> Iterator[int]:
        for folder in self._group_folders("memory"):
            for name in ("memory.max", "memory.limit_in_bytes"):
                with suppress(OSError, ValueError):
                    limit = int((folder / name).read_text())
                    if limit < _NO_LIMIT_BYTES:
                        yield limit

    def _group_folders(self, controller: str) -> Iterator[Path]:
        """Yield the folders of the process's groups, each after those below it.

        In a container the group's path may be that of the host: missing folders are skipped by the callers. The mount
        itself is always included; in a container it is the container's group.
        """
        for mount, path in self._memberships(controller):
            group = mount / path.lstrip("/")
            yield from (folder for folder in (group, *group.parents) if folder.is_relative_to(mount))

    def _memberships(self, controller: str) -> Iterator[tuple[Path, str]]:
        """Yield each hierarchy's mount and the process's group in it (proc(5), /proc/PID/cgroup)."""
        mount = self._root / _MOUNT
        try:
            lines = (self._root / "proc/self/cgroup").read_text().splitlines()
        except OSError:
            lines = []
        for line in lines:
            number, controllers, path = (*line.split(":", 2), "", "")[:3]
            if number == "0" and not controllers:
                yield mount, path
            elif controller in controllers.split(","):
                yield mount / controllers, path
                yield mount / controller, path
