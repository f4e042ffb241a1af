"""What this machine has to offer, for the resource tree that `pilotage up` writes on its first start."""

from __future__ import annotations

import json
import os
import shutil
import socket
from dataclasses import dataclass
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")
_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine's name, cores, and memory and free disk in MiB."""

    name: str
    cpus: int
    memory_mib: int
    disk_mib: int


def this_machine(folder: Path) -> Machine:
    """Return what this process may use of the machine, with the disk that `folder` lies on."""
    return Machine(
        name=socket.gethostname() or "localhost",
        cpus=len(os.sched_getaffinity(0)),
        memory_mib=min(_physical_memory(), _cgroup_memory()) // _MIB,
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


def _cgroup_memory() -> int:
    """Return the bound that a container sets, in bytes; where there is none it is larger than any machine."""
    for path in (_CGROUP / "memory.max", _CGROUP / "memory" / "memory.limit_in_bytes"):
        try:
            text = path.read_text().strip()
        except OSError:
            continue
        if text.isdecimal():
            return int(text)
    return 2**63
