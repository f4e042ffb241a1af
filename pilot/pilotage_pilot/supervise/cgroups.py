"""Control groups, version 1 or 2, where the pilot may make them: one a payload, for its CPU and memory limits.

A payload joins its group right after its start rather than before it: that costs no extra process, and what it may
have forked by then is brought in by `Payload.gather`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pilotage_pilot.core.amounts import Amounts
from pilotage_pilot.supervise.warden import FREEZER_STATE

MOUNT_INFO = Path("/proc/self/mountinfo")
OWN_GROUPS = Path("/proc/self/cgroup")
_CONTROLLERS = ("memory", "cpu", "cpuacct", "freezer")
_PERIOD_US = 100_000
_MIB = 2**20
_WEIGHT_A_STEP = 1.25
"""How much more the kernel gives a process for each step that it is less nice (sched(7))."""


@dataclass(frozen=True, slots=True)
class Hierarchies:
    """Where groups can be made: folder by controller (of `_CONTROLLERS`); one folder for all in version 2."""

    version: int
    parents: Mapping[str, Path]


@dataclass(frozen=True, slots=True)
class Limits:
    """What a payload may use; `nice` is that of its processes, `cpus_hard` = not more even where cores are idle."""

    amounts: Amounts
    nice: int = 0
    cpus_hard: bool = False

    @property
    def weight(self) -> float:
        """How much it may use where cores are scarce, in cores; a nice value by itself counts within a group only."""
        return self.amounts.cpus / _WEIGHT_A_STEP**self.nice


class Group:
    """The control group of one payload."""

    def __init__(self, version: int, folders: Mapping[str, Path]) -> None:
        self._version = version
        self._folders = folders

    @property
    def limits_memory(self) -> bool:
        """Whether it holds its payload to the memory that it may have."""
        return "memory" in self._folders

    def limit(self, limits: Limits) -> None:
        """Set its limits; 0 MiB = no limit of memory."""
        if self._version == 2:
            self._limit_2(limits)
        else:
            self._limit_1(limits)

    def _limit_1(self, limits: Limits) -> None:
        amounts = limits.amounts
        if amounts.memory_mib:
            limit = str(amounts.memory_mib * _MIB)
            self._write("memory", "memory.limit_in_bytes", limit)
            self._write("memory", "memory.memsw.limit_in_bytes", limit)
        if amounts.cpus:
            self._write("cpu", "cpu.shares", str(max(2, round(1024 * limits.weight))))
            if limits.cpus_hard:
                self._write("cpu", "cpu.cfs_quota_us", str(_PERIOD_US * amounts.cpus))

    def _limit_2(self, limits: Limits) -> None:
        amounts = limits.amounts
        if amounts.memory_mib:
            self._write("memory", "memory.max", str(amounts.memory_mib * _MIB))
            self._write("memory", "memory.swap.max", "0")
        if amounts.cpus:
            self._write("cpu", "cpu.weight", str(min(10_000, max(1, round(100 * limits.weight)))))
            if limits.cpus_hard:
                self._write("cpu", "cpu.max", f"{_PERIOD_US * amounts.cpus} {_PERIOD_US}")

    def add(self, pid: int) -> None:
        """Bring a process in; its future children come with it."""
        for controller in self._folders:
            self._write(controller, "cgroup.procs", str(pid))

    def pids(self) -> frozenset[int]:
        """Return the processes in it."""
        text = "".join(self._read(controller, "cgroup.procs") for controller in self._folders)
        return frozenset(int(pid) for pid in text.split())

    def peak_memory_mib(self) -> int:
        """Return the most memory that it has had; 0 = not known."""
        name = "memory.peak" if self._version == 2 else "memory.max_usage_in_bytes"
        return -(-int(self._read("memory", name).strip() or 0) // _MIB)

    def cpu_s(self) -> float:
        """Return the CPU seconds that its processes used; 0 = not known."""
        if self._version == 1:
            return int(self._read("cpuacct", "cpuacct.usage").strip() or 0) / 1e9
        return _field(self._read("cpu", "cpu.stat"), "usage_usec") / 1e6

    def was_out_of_memory(self) -> bool:
        """Whether the kernel killed a process of it for its memory limit."""
        name = "memory.events" if self._version == 2 else "memory.oom_control"
        return _field(self._read("memory", name), "oom_kill") > 0

    def freeze(self) -> bool:
        """Let nothing in it run; returns whether the kernel does so."""
        if self._version == 2:
            return self._write("cpu", "cgroup.freeze", "1")
        return self._write("freezer", FREEZER_STATE, "FROZEN")

    def thaw(self) -> None:
        """Let all in it run again."""
        if self._version == 2:
            self._write("cpu", "cgroup.freeze", "0")
        else:
            self._write("freezer", FREEZER_STATE, "THAWED")

    def kill(self) -> None:
        """Kill all that is in it at once, where the kernel can (version 2); else let signals reach it."""
        if self._version == 2:
            self._write("memory", "cgroup.kill", "1")
        else:
            self.thaw()

    def remove(self) -> bool:
        """Remove it; returns whether it is gone."""
        for folder in self._folders.values():
            with contextlib.suppress(OSError):
                folder.rmdir()
        return not any(folder.exists() for folder in self._folders.values())

    def _write(self, controller: str, name: str, text: str) -> bool:
        """Return whether the kernel took it: a limit that it does not know, or a process that is gone, fails no job."""
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
    """Makes groups for the payloads of one pilot, below its own group."""

    def __init__(self, hierarchies: Hierarchies, name: str) -> None:
        self.version = hierarchies.version
        if self.version == 2:
            _divide(hierarchies.parents["memory"], name)
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
        """The groups in which it makes those of payloads."""
        return frozenset(self._parents.values())

    def make(self, name: str, limits: Limits) -> Group | None:
        """Return a new group with these limits; None = there can be none."""
        folders = {key: folder / name for key, folder in self._parents.items()}
        try:
            for folder in set(folders.values()):
                folder.mkdir(exist_ok=True)
        except OSError:
            return None
        group = Group(self.version, folders)
        group.limit(limits)
        return group

    def close(self) -> None:
        """Remove all groups that are empty."""
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


def _divide(own: Path, name: str) -> None:
    """Make the pilot's own group (version 2) one that may have limited groups: no process may stay in it itself."""
    leaf = own / f"{name}-pilot"
    leaf.mkdir(exist_ok=True)
    try:
        (leaf / "cgroup.procs").write_text(str(os.getpid()))
        (own / "cgroup.subtree_control").write_text("+cpu +memory")
    except OSError:
        # Others live in the group too, or it is not ours to divide: leave all as it was.
        with contextlib.suppress(OSError):
            (own / "cgroup.procs").write_text(str(os.getpid()))
            leaf.rmdir()
        raise


def _field(text: str, name: str) -> int:
    for line in text.splitlines():
        key, _, value = line.partition(" ")
        if key == name and value.strip().isdigit():
            return int(value)
    return 0


def find_hierarchies(mount_info: str, own_groups: str) -> Hierarchies | None:
    """Return where the pilot's own groups are, from the texts of /proc/self; None = there are no control groups."""
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
    """Return root and mount point by controller; version 2 has the empty name."""
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
    # In a container the group's path is told from the host's root, the mount shows it from the container's.
    relative = os.path.relpath(group, root) if group.startswith(root) else group.lstrip("/")
    return Path(mount) / relative


def cgroup_maker(name: str) -> CgroupMaker | None:
    """Return what makes groups for this pilot; None = it may not make any."""
    try:
        hierarchies = find_hierarchies(MOUNT_INFO.read_text(), OWN_GROUPS.read_text())
        return CgroupMaker(hierarchies, name) if hierarchies is not None else None
    except OSError:
        return None
