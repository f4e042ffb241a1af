"""Control groups, version 1 or 2: one for each payload, for its CPU and memory limits, where the pilot may make them.

A payload with a memory limit joins its group before its program is executed. `Payload.gather` adds the others.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pilotage.values.amounts import Amounts
from pilotage_pilot.supervise.proc import TICK_S
from pilotage_pilot.supervise.watchdog import FREEZER_STATE

MOUNT_INFO = Path("/proc/self/mountinfo")
OWN_GROUPS = Path("/proc/self/cgroup")
_CONTROLLERS = ("memory", "cpu", "cpuacct", "freezer")
_PERIOD_US = 100_000
_MIB = 2**20
_WEIGHT_A_STEP = 1.25
"""The factor of CPU share for each step of nice (sched(7))."""


@dataclass(frozen=True, slots=True)
class Hierarchies:
    """Parent folders for new groups, by controller (of `_CONTROLLERS`); version 2 has one folder for all."""

    version: int
    parents: Mapping[str, Path]


@dataclass(frozen=True, slots=True)
class PayloadLimits:
    """The limits of a payload; `nice` is that of its processes, `cpus_hard` = no more cores even if others are idle."""

    amounts: Amounts
    nice: int = 0
    cpus_hard: bool = False

    @property
    def weight(self) -> float:
        """Its share of busy cores, in cores. The kernel applies nice only within a group, so it is counted in here."""
        return self.amounts.cpus / _WEIGHT_A_STEP**self.nice


class Cgroup:
    """The control group of one payload."""

    def __init__(self, version: int, folders: Mapping[str, Path]) -> None:
        self._version = version
        self._folders = folders

    @property
    def limits_memory(self) -> bool:
        """Whether the kernel enforces the memory limit."""
        return "memory" in self._folders

    def limit(self, limits: PayloadLimits) -> None:
        """Set the limits; 0 MiB = no memory limit."""
        if self._version == 2:
            self._limit_2(limits)
        else:
            self._limit_1(limits)

    def _limit_1(self, limits: PayloadLimits) -> None:
        amounts = limits.amounts
        if amounts.memory_mib:
            limit = str(amounts.memory_mib * _MIB)
            self._write("memory", "memory.limit_in_bytes", limit)
            self._write("memory", "memory.memsw.limit_in_bytes", limit)
        if amounts.cpus:
            self._write("cpu", "cpu.shares", str(max(2, round(1024 * limits.weight))))
            if limits.cpus_hard:
                self._write("cpu", "cpu.cfs_quota_us", str(_PERIOD_US * amounts.cpus))

    def _limit_2(self, limits: PayloadLimits) -> None:
        amounts = limits.amounts
        if amounts.memory_mib:
            self._write("memory", "memory.max", str(amounts.memory_mib * _MIB))
            self._write("memory", "memory.swap.max", "0")
        if amounts.cpus:
            self._write("cpu", "cpu.weight", str(min(10_000, max(1, round(100 * limits.weight)))))
            if limits.cpus_hard:
                self._write("cpu", "cpu.max", f"{_PERIOD_US * amounts.cpus} {_PERIOD_US}")

    def add(self, pid: int) -> None:
        """Add a process; its future children are in the group too."""
        for controller in self._folders:
            self._write(controller, "cgroup.procs", str(pid))

    @property
    def entries(self) -> tuple[Path, ...]:
        """The files through which a process joins the group."""
        return tuple({folder / "cgroup.procs": None for folder in self._folders.values()})

    def pids(self) -> frozenset[int]:
        """Return the ids of its processes."""
        text = "".join(self._read(controller, "cgroup.procs") for controller in self._folders)
        return frozenset(int(pid) for pid in text.split())

    def peak_memory_mib(self) -> int:
        """Return the peak memory; 0 = unknown."""
        name = "memory.peak" if self._version == 2 else "memory.max_usage_in_bytes"
        return -(-int(self._read("memory", name).strip() or 0) // _MIB)

    def cpu_times_s(self) -> tuple[float, float]:
        """Return the CPU seconds of its processes, and the part that the kernel spent for them; 0 = unknown."""
        if self._version == 1:
            used_s = int(self._read("cpuacct", "cpuacct.usage").strip() or 0) / 1e9
            # The kernel's part counts clock ticks, the sum does not.
            return used_s, min(used_s, _field(self._read("cpuacct", "cpuacct.stat"), "system") * TICK_S)
        counters = self._read("cpu", "cpu.stat")
        return _field(counters, "usage_usec") / 1e6, _field(counters, "system_usec") / 1e6

    def was_out_of_memory(self) -> bool:
        """Whether the kernel killed one of its processes at the memory limit."""
        name = "memory.events" if self._version == 2 else "memory.oom_control"
        return _field(self._read("memory", name), "oom_kill") > 0

    def freeze(self) -> bool:
        """Freeze all its processes; returns whether the kernel supports it."""
        if self._version == 2:
            return self._write("cpu", "cgroup.freeze", "1")
        return self._write("freezer", FREEZER_STATE, "FROZEN")

    def thaw(self) -> None:
        """Thaw all its processes."""
        if self._version == 2:
            self._write("cpu", "cgroup.freeze", "0")
        else:
            self._write("freezer", FREEZER_STATE, "THAWED")

    def kill(self) -> None:
        """Kill all its processes (version 2), or thaw them so that signals reach them (version 1)."""
        if self._version == 2:
            self._write("memory", "cgroup.kill", "1")
        else:
            self.thaw()

    def remove(self) -> bool:
        """Remove the group; returns whether it is gone."""
        for folder in self._folders.values():
            with contextlib.suppress(OSError):
                folder.rmdir()
        return not any(folder.exists() for folder in self._folders.values())

    def _write(self, controller: str, name: str, text: str) -> bool:
        """Return whether the kernel accepted it. An unknown limit or a process that is gone must not fail the job."""
        folder = self._folders.get(controller)
        if folder is None:
            return False
        try:
            descriptor = os.open(folder / name, os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.write(descriptor, text.encode())
            finally:
                os.close(descriptor)
        except OSError:
            return False
        return True

    def _read(self, controller: str, name: str) -> str:
        folder = self._folders.get(controller)
        try:
            return (folder / name).read_text() if folder is not None else ""
        except OSError:
            return ""


class CgroupMaker:
    """Creates control groups for the payloads of one pilot, below the pilot's own group."""

    def __init__(self, hierarchies: Hierarchies, name: str, beside: Iterable[int] = ()) -> None:
        self.version = hierarchies.version
        if self.version == 2:
            _divide(hierarchies.parents["memory"], name, (*beside, os.getpid()))
        self._parents = {key: folder / name for key, folder in hierarchies.parents.items()}
        if not _is_made(self._parents.get("freezer")):
            # Without it payloads are suspended by signals.
            self._parents.pop("freezer", None)
        for folder in self.folders:
            folder.mkdir(exist_ok=True)
            if self.version == 2:
                (folder / "cgroup.subtree_control").write_text("+cpu +memory")

    @property
    def folders(self) -> frozenset[Path]:
        """The parent folders of the payloads' groups."""
        return frozenset(self._parents.values())

    def make(self, name: str, limits: PayloadLimits) -> Cgroup | None:
        """Return a new group with these limits; None = it cannot be created."""
        folders = {key: folder / name for key, folder in self._parents.items()}
        try:
            for folder in set(folders.values()):
                folder.mkdir(exist_ok=True)
        except OSError:
            return None
        group = Cgroup(self.version, folders)
        group.limit(limits)
        return group

    def close(self) -> None:
        """Remove all empty groups."""
        for parent in self.folders:
            for folder in [*(path for path in parent.glob("*") if path.is_dir()), parent]:
                with contextlib.suppress(OSError):
                    folder.rmdir()


def _is_made(folder: Path | None) -> bool:
    try:
        if folder is not None:
            folder.mkdir(exist_ok=True)
    except OSError:
        return False
    return True


def _divide(own: Path, name: str, pids: Iterable[int]) -> None:
    """Prepare the pilot's own group (version 2) for limited child groups: it may not hold a process itself."""
    leaf = own / f"{name}-pilot"
    leaf.mkdir(exist_ok=True)
    members = tuple(pids)
    try:
        for pid in members:
            (leaf / "cgroup.procs").write_text(str(pid))
        (own / "cgroup.subtree_control").write_text("+cpu +memory")
    except OSError:
        # Other processes are in the group, or the pilot may not divide it: restore the old state.
        with contextlib.suppress(OSError):
            for pid in members:
                (own / "cgroup.procs").write_text(str(pid))
            leaf.rmdir()
        raise


def _field(text: str, name: str) -> int:
    for line in text.splitlines():
        key, _, value = line.partition(" ")
        if key == name and value.strip().isdigit():
            return int(value)
    return 0


def find_hierarchies(mount_info: str, own_groups: str) -> Hierarchies | None:
    """Return the folders of the pilot's own groups, from the texts of /proc/self; None = no control groups."""
    mounts = _mounts(mount_info)
    own = _own_groups(own_groups)
    parents: dict[str, Path] = {}
    for controller in _CONTROLLERS:
        if controller in mounts and controller in own:
            root, mount = mounts[controller]
            parents[controller] = _below(mount, root, own[controller])
    if "memory" in parents:
        return Hierarchies(1, parents)
    if "" in mounts and "" in own:
        root, mount = mounts[""]
        folder = _below(mount, root, own[""])
        return Hierarchies(2, {"memory": folder, "cpu": folder})
    return None


def _mounts(mount_info: str) -> dict[str, tuple[str, str]]:
    """Return root and mount point by controller; version 2 is under the empty name."""
    found: dict[str, tuple[str, str]] = {}
    for line in mount_info.splitlines():
        place, _, kind = line.partition(" - ")
        if not kind.startswith(("cgroup ", "cgroup2 ")):
            continue
        root, mount = place.split()[3:5]
        options = kind.split()[-1].split(",") if kind.startswith("cgroup ") else [""]
        for option in options:
            found.setdefault(option, (root, mount))
    return found


def _own_groups(own_groups: str) -> dict[str, str]:
    found = {}
    for line in own_groups.splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            found[controller] = path
    return found


def _below(mount: str, root: str, group: str) -> Path:
    # In a container the group's path is relative to the host's root, the mount to the container's.
    relative = os.path.relpath(group, root) if group.startswith(root) else group.lstrip("/")
    return Path(mount) / relative


def cgroup_maker(name: str, beside: Iterable[int] = ()) -> CgroupMaker | None:
    """Return the maker of groups for this pilot and the processes `beside` it; None = it may not create any."""
    try:
        hierarchies = find_hierarchies(MOUNT_INFO.read_text(), OWN_GROUPS.read_text())
        return CgroupMaker(hierarchies, name, beside) if hierarchies is not None else None
    except OSError:
        return None
