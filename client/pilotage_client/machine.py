"""What this machine has to offer, for the resource tree that `pilotage up` writes on its first start."""

from __future__ import annotations

import json
import math
import os
import shutil
import socket
from dataclasses import dataclass
from pathlib import Path

from pilotage.control_groups import ControlGroups

_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine's name, cores, and memory and free disk in MiB."""

    name: str
    cpus: int
    memory_mib: int
    disk_mib: int


def this_machine(folder: Path, groups: ControlGroups | None = None) -> Machine:
    """Return what this process may use of the machine, with the disk that `folder` lies on."""
    groups = groups or ControlGroups()
    quota, limit = groups.cores(), groups.memory_bytes()
    affinity, memory = len(os.sched_getaffinity(0)), _physical_memory()
    return Machine(
        name=socket.gethostname() or "localhost",
        cpus=affinity if quota is None else max(1, min(affinity, math.floor(quota))),
        memory_mib=(memory if limit is None else min(memory, limit)) // _MIB,
        disk_mib=shutil.disk_usage(folder).free // _MIB,
    )


def default_tree(machine: Machine) -> str:
    """Return a tree, as TOML text, with one queue: this machine, managed by one pilot."""
    ce = f"sites.local.ces.{json.dumps(machine.name)}"
    return f"""\
# This machine, as `pilotage up` found it. Bring a tree of your own with `pilotage tree put FILE`.
[{ce}]
CEType = "local"

[{ce}.queues.default]
CPUs = {machine.cpus}
Memory = {machine.memory_mib}
Disk = {machine.disk_mib}
MaxTotalJobs = 1
"""


def _physical_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
