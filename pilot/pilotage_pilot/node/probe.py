"""Finds out what the batch slot gives: the smallest figure of all who have a say is the pilot's share."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pilotage.control_groups import ControlGroups
from pilotage_pilot.core.amounts import Amounts
from pilotage_pilot.node import batch_slot
from pilotage_pilot.node.base import Share
from pilotage_pilot.node.batch_slot import MachineAd, Said

_MIB = 2**20
_NO_AD = MachineAd(None, None, None)


@dataclass(frozen=True, slots=True)
class Stated:
    """What somebody states of sizes; None = nothing. Memory and disk in MiB, wall time in seconds."""

    cpus: int | None = None
    memory_mib: int | None = None
    disk_mib: int | None = None
    gpus: int | None = None
    wall_time_s: float | None = None


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Where to look: the environment, the root of /proc, /sys and /dev, the scratch; a test has its own."""

    environment: dict[str, str]
    scratch: Path
    root: Path = Path("/")


class Probe:
    """Looks at a real node; `operator` states what wins over all that is found, `queue` what the queue gives."""

    def __init__(self, surroundings: Surroundings, queue: Stated, operator: Stated) -> None:
        self._around = surroundings
        self._queue = queue
        self._operator = operator
        self._groups = ControlGroups(surroundings.root)
        self._ad = self._machine_ad()

    def share(self, now_unix_s: float, now_boot_s: float) -> Share:
        """Return what the pilot was given."""
        cores = self._decide("cpus", self._operator.cpus, self._cpus(), 1)
        memory = self._decide("memory", self._operator.memory_mib, self._memory(int(cores.figure)), 0)
        disk = self._decide("disk", self._operator.disk_mib, self._disk(int(cores.figure)), 0)
        ids = self._gpu_ids()
        left = self._time_left(now_unix_s)
        amounts = Amounts(int(cores.figure), int(memory.figure), int(disk.figure), len(ids))
        sources = (
            f"{cores.figure:.0f} cores: {cores.source}",
            f"{memory.figure:.0f} MiB of memory: {memory.source}",
            f"{disk.figure:.0f} MiB of disk: {disk.source}",
            *((f"{left.figure:.0f} s left: {left.source}",) if left else ()),
        )
        ends = now_boot_s + left.figure if left else None
        return Share(amounts, ids, ends, socket.gethostname(), sources)

    @staticmethod
    def _decide(what: str, operator: int | None, said: Iterable[Said], least: int) -> Said:
        if operator is not None:
            return Said(operator, f"set for this pilot ({what})")
        smallest = min(said, key=lambda each: each.figure, default=Said(least, "nobody says"))
        return smallest if smallest.figure >= least else Said(least, smallest.source)

    # Cores ------------------------------------------------------------------------------------------------------

    def _cpus(self) -> list[Said]:
        said = [Said(len(os.sched_getaffinity(0)), "the cores that this process may run on")]
        said += batch_slot.cpus(self._around.environment)
        said += _stated(self._ad.cpus, "the machine ad") + _stated(self._queue.cpus, "the queue")
        quota = self._groups.cores()
        return said + ([Said(max(1, math.floor(quota)), "the control group's quota")] if quota is not None else [])

    # Memory -----------------------------------------------------------------------------------------------------

    def _memory(self, cores: int) -> list[Said]:
        said = batch_slot.memory_mib(self._around.environment, cores)
        said += _stated(self._ad.memory_mib, "the machine ad") + _stated(self._queue.memory_mib, "the queue")
        limit = self._groups.memory_bytes()
        if limit is not None:
            said.append(Said(limit // _MIB, "the control group's limit"))
        total = self._machine_memory()
        if said:
            return [*said, Said(total, "the machine's memory")]
        # Nobody limits the pilot: it takes as much as its cores are of the machine's.
        return [Said(_part(total, cores), "its cores' part of the machine's memory")]

    def _machine_memory(self) -> float:
        with contextlib.suppress(OSError, ValueError):
            for line in (self._around.root / "proc/meminfo").read_text().splitlines():
                if line.startswith("MemTotal:"):
                    return int(line.split()[1]) / 1024
        return 0.0

    # Disk, GPUs, time -------------------------------------------------------------------------------------------

    def _disk(self, cores: int) -> list[Said]:
        said = _stated(self._ad.disk_mib, "the machine ad") + _stated(self._queue.disk_mib, "the queue")
        try:
            free = shutil.disk_usage(self._around.scratch).free // _MIB
        except OSError:
            return [Said(0, "the scratch cannot be read")]
        if said:
            return [*said, Said(free, "free in the scratch")]
        return [Said(_part(free, cores), "its cores' part of what is free in the scratch")]

    def _gpu_ids(self) -> tuple[str, ...]:
        ids = batch_slot.gpu_ids(self._around.environment)
        if ids is None:
            devices = (self._around.root / "dev").glob("nvidia[0-9]*")
            ids = tuple(sorted((path.name.removeprefix("nvidia") for path in devices), key=_number))
        most = self._operator.gpus if self._operator.gpus is not None else self._queue.gpus
        if most is None:
            # A queue that says nothing of GPUs gives none, unless the batch system assigned some.
            return ids if batch_slot.gpu_ids(self._around.environment) else ()
        if self._operator.gpus is not None and len(ids) < most:
            ids += tuple(str(number) for number in range(len(ids), most))
        return ids[:most]

    def _time_left(self, now_unix_s: float) -> Said | None:
        said = batch_slot.wall_end(self._around.environment, now_unix_s)
        if self._queue.wall_time_s is not None:
            said.append(Said(self._queue.wall_time_s, "the queue"))
        return min(said, key=lambda each: each.figure, default=None)

    def _machine_ad(self) -> MachineAd:
        path = self._around.environment.get("_CONDOR_MACHINE_AD")
        if path is None:
            return _NO_AD
        try:
            return batch_slot.read_machine_ad(Path(path).read_text(errors="replace"))
        except OSError:
            return _NO_AD


def _stated(figure: float | None, source: str) -> list[Said]:
    return [Said(figure, source)] if figure is not None else []


def _part(total: float, cores: int) -> float:
    """Return the part of a machine's `total` that belongs to so many of its cores."""
    return min(total, total * cores / max(1, os.cpu_count() or 1))


def _number(text: str) -> int:
    return int(text) if text.isdigit() else 0
