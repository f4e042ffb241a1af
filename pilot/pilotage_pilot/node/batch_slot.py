"""What batch systems say of a slot in the environment of what they start, each in its own way.

Rules
-----
No I/O: the environment is a parameter. A variable that makes no sense says nothing; a pilot must not fail because a
site's prologue is odd.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

_COUNT = re.compile(r"\s*(\d+)")
_CLOCK = re.compile(r"(?:(\d+)[-:](?=\d+:\d+:\d+$))?(?:(\d+):)?(\d+):(\d+)")
_SIZES = {"": 1 / 2**20, "k": 1 / 2**10, "m": 1, "g": 2**10, "t": 2**20}


@dataclass(frozen=True, slots=True)
class Said:
    """A figure and who said it; larger figures of others give way to it."""

    figure: float
    source: str


Environment = Mapping[str, str]


def cpus(environment: Environment) -> list[Said]:
    """Return the cores that batch systems state."""
    found = _counts(
        environment,
        ("SLURM_CPUS_PER_TASK", "NCPUS", "PBS_NCPUS", "PBS_NUM_PPN", "NSLOTS", "LSB_DJOB_NUMPROC"),
    )
    if not any(said.source == "SLURM_CPUS_PER_TASK" for said in found):
        # "8(x2)" is eight on each of two nodes; a pilot manages the one it is on.
        found += _counts(environment, ("SLURM_CPUS_ON_NODE", "SLURM_JOB_CPUS_PER_NODE"))
    return found


def memory_mib(environment: Environment, cores: int) -> list[Said]:
    """Return the memory that batch systems state; some state it for each of the slot's `cores`."""
    found = _counts(environment, ("SLURM_MEM_PER_NODE",))
    found += [Said(said.figure * cores, said.source) for said in _counts(environment, ("SLURM_MEM_PER_CPU",))]
    for name in ("PBS_RESOURCE_MEM", "PBS_MEM"):
        size = _size_mib(environment.get(name, ""))
        if size is not None:
            found.append(Said(size, name))
    return found


def wall_end(environment: Environment, now_unix_s: float) -> list[Said]:
    """Return the seconds that are left of the batch slot's time."""
    found = []
    end = _number(environment.get("SLURM_JOB_END_TIME", ""))
    if end is not None:
        found.append(Said(max(0.0, end - now_unix_s), "SLURM_JOB_END_TIME"))
    for name in ("PBS_WALLTIME", "PBS_RESOURCE_WALLTIME"):
        length = _length_s(environment.get(name, ""))
        if length is not None:
            found.append(Said(length, name))
    return found


def gpu_ids(environment: Environment) -> tuple[str, ...] | None:
    """Return the GPUs that the slot may use; None = nobody says."""
    for name in ("CUDA_VISIBLE_DEVICES", "SLURM_JOB_GPUS", "GPU_DEVICE_ORDINAL", "_CONDOR_AssignedGPUs"):
        text = environment.get(name)
        if text is not None:
            ids = tuple(part.strip() for part in text.split(",") if part.strip())
            return () if ids in (("-1",), ("NoDevFiles",), ("void",), ("none",)) else ids
    return None


@dataclass(frozen=True, slots=True)
class MachineAd:
    """What an HTCondor slot's machine ad says: cores, memory and disk in MiB; None = nothing."""

    cpus: float | None
    memory_mib: float | None
    disk_mib: float | None


def read_machine_ad(text: str) -> MachineAd:
    """Return what the ad in the file of _CONDOR_MACHINE_AD says; its Disk is in KiB."""
    values = {}
    for line in text.splitlines():
        name, separator, value = line.partition("=")
        if separator:
            values[name.strip().casefold()] = _number(value)
    disk = values.get("disk")
    return MachineAd(values.get("cpus"), values.get("memory"), disk / 1024 if disk is not None else None)


def _counts(environment: Environment, names: tuple[str, ...]) -> list[Said]:
    found = []
    for name in names:
        match = _COUNT.match(environment.get(name, ""))
        if match is not None and int(match[1]) > 0:
            found.append(Said(int(match[1]), name))
    return found


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _size_mib(text: str) -> float | None:
    match = re.fullmatch(r"\s*(\d+)\s*([kmgt]?)b?\s*", text, re.IGNORECASE)
    return float(Fraction(match[1]) * Fraction(_SIZES[match[2].lower()])) if match else None


def _length_s(text: str) -> float | None:
    if (seconds := _number(text)) is not None:
        return max(0.0, seconds)
    match = _CLOCK.fullmatch(text.strip())
    if match is None:
        return None
    days, hours, minutes, seconds_text = (int(part or 0) for part in match.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds_text)
