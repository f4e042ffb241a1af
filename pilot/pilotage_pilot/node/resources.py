"""Finds out the pilot's share of the node: the smallest figure of all sources.

Each batch system describes the slot in its own environment variables. A variable that makes no sense is ignored: a
pilot must not fail because of an unusual site prologue.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import shutil
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from fractions import Fraction
from pathlib import Path
from typing import Protocol

from pilotage.cgroups import ControlGroups
from pilotage.values.amounts import Amounts
from pilotage_pilot.core.ads.attributes import NodeSample
from pilotage_pilot.supervise.base import PayloadTime

_COUNT = re.compile(r"\s*(\d+)")
_CLOCK = re.compile(r"(?:(\d+)[-:](?=\d+:\d+:\d+$))?(?:(\d+):)?(\d+):(\d+)")
_SIZES = {"": 1 / 2**20, "k": 1 / 2**10, "m": 1, "g": 2**10, "t": 2**20}


@dataclass(frozen=True, slots=True)
class SourcedValue:
    """A value and its source."""

    figure: float
    source: str


Environment = Mapping[str, str]


def cpus(environment: Environment) -> list[SourcedValue]:
    """Return the cores in the batch systems' variables."""
    found = _counts(
        environment,
        ("SLURM_CPUS_PER_TASK", "NCPUS", "PBS_NCPUS", "PBS_NUM_PPN", "NSLOTS", "LSB_DJOB_NUMPROC"),
    )
    if not any(count.source == "SLURM_CPUS_PER_TASK" for count in found):
        # "8(x2)" means eight on each of two nodes; a pilot manages one node.
        found += _counts(environment, ("SLURM_CPUS_ON_NODE", "SLURM_JOB_CPUS_PER_NODE"))
    return found


def memory_mib(environment: Environment, cores: int) -> list[SourcedValue]:
    """Return the memory in the batch systems' variables; some state it per core."""
    found = _counts(environment, ("SLURM_MEM_PER_NODE",))
    found += [
        SourcedValue(count.figure * cores, count.source) for count in _counts(environment, ("SLURM_MEM_PER_CPU",))
    ]
    for name in ("PBS_RESOURCE_MEM", "PBS_MEM"):
        match = re.fullmatch(r"\s*(\d+)\s*([kmgt]?)b?\s*", environment.get(name, ""), re.IGNORECASE)
        size = float(Fraction(match[1]) * Fraction(_SIZES[match[2].lower()])) if match else None
        if size is not None:
            found.append(SourcedValue(size, name))
    return found


def wall_end(environment: Environment, now_unix_s: float) -> list[SourcedValue]:
    """Return the remaining seconds of the batch slot."""
    found = []
    end = _parse_number(environment.get("SLURM_JOB_END_TIME", ""))
    if end is not None:
        found.append(SourcedValue(max(0.0, end - now_unix_s), "SLURM_JOB_END_TIME"))
    for name in ("PBS_WALLTIME", "PBS_RESOURCE_WALLTIME"):
        length = _length_s(environment.get(name, ""))
        if length is not None:
            found.append(SourcedValue(length, name))
    return found


def gpu_ids(environment: Environment) -> tuple[str, ...] | None:
    """Return the GPUs of the slot; None = not stated."""
    for name in ("CUDA_VISIBLE_DEVICES", "SLURM_JOB_GPUS", "GPU_DEVICE_ORDINAL", "_CONDOR_AssignedGPUs"):
        text = environment.get(name)
        if text is not None:
            ids = tuple(part.strip() for part in text.split(",") if part.strip())
            return () if ids in (("-1",), ("NoDevFiles",), ("void",), ("none",)) else ids
    return None


@dataclass(frozen=True, slots=True)
class MachineAd:
    """Cores, memory and disk (MiB) of an HTCondor machine ad; None = not stated."""

    cpus: float | None
    memory_mib: float | None
    disk_mib: float | None


def read_machine_ad(text: str) -> MachineAd:
    """Return the values in the text of _CONDOR_MACHINE_AD's file; its Disk is in KiB."""
    values = {}
    for line in text.splitlines():
        name, separator, value = line.partition("=")
        if separator:
            values[name.strip().casefold()] = _parse_number(value)
    disk = values.get("disk")
    return MachineAd(values.get("cpus"), values.get("memory"), disk / 1024 if disk is not None else None)


def _counts(environment: Environment, names: tuple[str, ...]) -> list[SourcedValue]:
    found = []
    for name in names:
        match = _COUNT.match(environment.get(name, ""))
        if match is not None and int(match[1]) > 0:
            found.append(SourcedValue(int(match[1]), name))
    return found


def _parse_number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _length_s(text: str) -> float | None:
    if (seconds := _parse_number(text)) is not None:
        return max(0.0, seconds)
    match = _CLOCK.fullmatch(text.strip())
    if match is None:
        return None
    days, hours, minutes, seconds_text = (int(part or 0) for part in match.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds_text)


@dataclass(frozen=True, slots=True)
class NodeShare:
    """The pilot's share of its node, with the source of each value for people.

    `gpu_ids` has one id a GPU. `ends_boot_s` is the end of the batch slot on the boot clock; None = unknown.
    """

    amounts: Amounts
    gpu_ids: tuple[str, ...]
    ends_boot_s: float | None
    host: str
    sources: tuple[str, ...]


class PilotNode(Protocol):
    """A machine with a batch slot on it."""

    def share(self) -> NodeShare:
        """Return the pilot's share of the node."""

    def sample(self, times: Iterable[PayloadTime]) -> NodeSample:
        """Return a sample of the node; `times` are those of the running payloads."""

    def claim_ends(self) -> Mapping[str, datetime]:
        """Return when the last claims of earlier pilots ended, by static slot, as far as the node remembers."""

    def store_claim_ends(self, ends: Mapping[str, datetime]) -> None:
        """Store these times for later pilots."""

    async def faults(self) -> tuple[str, ...]:
        """Return the reasons why the node is unfit; empty = it is fit."""


_MIB = 2**20
_NO_AD = MachineAd(None, None, None)


@dataclass(frozen=True, slots=True)
class Stated:
    """Sizes stated by the queue or the operator; None = not stated. Memory and disk in MiB, wall time in seconds."""

    cpus: int | None = None
    memory_mib: int | None = None
    disk_mib: int | None = None
    gpus: int | None = None
    wall_time_s: float | None = None


@dataclass(frozen=True, slots=True)
class ProbeContext:
    """The probed environment, scratch folder, and root of /proc, /sys and /dev; tests replace them."""

    environment: dict[str, str]
    scratch: Path
    root: Path = Path("/")


class Probe:
    """Finds out the share of a real node; the `operator`'s sizes win over all others."""

    def __init__(self, surroundings: ProbeContext, queue: Stated, operator: Stated) -> None:
        self._context = surroundings
        self._queue = queue
        self._operator = operator
        self._groups = ControlGroups(surroundings.root)
        self._ad = self._machine_ad()

    def share(self, now_unix_s: float, now_boot_s: float) -> NodeShare:
        """Return the pilot's share of the node."""
        cores = self._decide("cpus", self._operator.cpus, self._cpus(), 1)
        memory = self._decide("memory", self._operator.memory_mib, self._memory(int(cores.figure)), 0)
        disk = self._decide("disk", self._operator.disk_mib, self._disk(int(cores.figure)), 0)
        ids = self._gpu_ids()
        values = wall_end(self._context.environment, now_unix_s)
        if self._queue.wall_time_s is not None:
            values.append(SourcedValue(self._queue.wall_time_s, "the queue"))
        left = min(values, key=lambda each: each.figure, default=None)
        amounts = Amounts(int(cores.figure), int(memory.figure), int(disk.figure), len(ids))
        sources = (
            f"{cores.figure:.0f} cores: {cores.source}",
            f"{memory.figure:.0f} MiB of memory: {memory.source}",
            f"{disk.figure:.0f} MiB of disk: {disk.source}",
            *((f"{left.figure:.0f} s left: {left.source}",) if left else ()),
        )
        ends = now_boot_s + left.figure if left else None
        return NodeShare(amounts, ids, ends, socket.gethostname(), sources)

    @staticmethod
    def _decide(what: str, operator: int | None, values: Iterable[SourcedValue], least: int) -> SourcedValue:
        if operator is not None:
            return SourcedValue(operator, f"set for this pilot ({what})")
        smallest = min(values, key=lambda each: each.figure, default=SourcedValue(least, "not stated"))
        return smallest if smallest.figure >= least else SourcedValue(least, smallest.source)

    # Cores ------------------------------------------------------------------------------------------------------

    def _cpus(self) -> list[SourcedValue]:
        values = [SourcedValue(len(os.sched_getaffinity(0)), "the cores that this process may run on")]
        values += cpus(self._context.environment)
        values += _stated(self._ad.cpus, "the machine ad") + _stated(self._queue.cpus, "the queue")
        quota = self._groups.cores()
        return values + (
            [SourcedValue(max(1, math.floor(quota)), "the control group's quota")] if quota is not None else []
        )

    # Memory -----------------------------------------------------------------------------------------------------

    def _memory(self, cores: int) -> list[SourcedValue]:
        values = memory_mib(self._context.environment, cores)
        values += _stated(self._ad.memory_mib, "the machine ad") + _stated(self._queue.memory_mib, "the queue")
        limit = self._groups.memory_bytes()
        if limit is not None:
            values.append(SourcedValue(limit // _MIB, "the control group's limit"))
        total = self._machine_memory()
        if values:
            return [*values, SourcedValue(total, "the machine's memory")]
        # Without a limit the pilot takes the part of the memory that its cores are of the machine's.
        return [SourcedValue(_part(total, cores), "its cores' part of the machine's memory")]

    def _machine_memory(self) -> float:
        with contextlib.suppress(OSError, ValueError):
            for line in (self._context.root / "proc/meminfo").read_text().splitlines():
                if line.startswith("MemTotal:"):
                    return int(line.split()[1]) / 1024
        return 0.0

    # Disk, GPUs, time -------------------------------------------------------------------------------------------

    def _disk(self, cores: int) -> list[SourcedValue]:
        values = _stated(self._ad.disk_mib, "the machine ad") + _stated(self._queue.disk_mib, "the queue")
        try:
            free = shutil.disk_usage(self._context.scratch).free // _MIB
        except OSError:
            return [SourcedValue(0, "the scratch cannot be read")]
        if values:
            return [*values, SourcedValue(free, "free in the scratch")]
        return [SourcedValue(_part(free, cores), "its cores' part of what is free in the scratch")]

    def _gpu_ids(self) -> tuple[str, ...]:
        ids = gpu_ids(self._context.environment)
        if ids is None:
            devices = (self._context.root / "dev").glob("nvidia[0-9]*")
            ids = tuple(sorted((path.name.removeprefix("nvidia") for path in devices), key=_device_number))
        most = self._operator.gpus if self._operator.gpus is not None else self._queue.gpus
        if most is None:
            # A queue that does not state GPUs has none, unless the batch system assigned some.
            return ids if gpu_ids(self._context.environment) else ()
        if self._operator.gpus is not None and len(ids) < most:
            ids += tuple(str(number) for number in range(len(ids), most))
        return ids[:most]

    def _machine_ad(self) -> MachineAd:
        path = self._context.environment.get("_CONDOR_MACHINE_AD")
        if path is None:
            return _NO_AD
        try:
            return read_machine_ad(Path(path).read_text(errors="replace"))
        except OSError:
            return _NO_AD


def _stated(figure: float | None, source: str) -> list[SourcedValue]:
    return [SourcedValue(figure, source)] if figure is not None else []


def _part(total: float, cores: int) -> float:
    """Return the part of a machine's `total` in proportion to its cores."""
    return min(total, total * cores / max(1, os.cpu_count() or 1))


def _device_number(text: str) -> int:
    return int(text) if text.isdigit() else 0
