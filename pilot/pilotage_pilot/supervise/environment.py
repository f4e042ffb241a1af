"""The environment that a payload is given: what its owner said, what Pilotage says, and nothing of the pilot's own."""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from pilotage_pilot.core.instructions import PrepareJob
from pilotage_pilot.core.jobs import GrantedJob
from pilotage_pilot.supervise.folders import Folders

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
MARKER = "PILOTAGE_ATTEMPT"
"""Every process of a payload carries it, so that none can hide from the pilot."""

_NEVER_PASSED = ("PILOTAGE_PILOT_", "PILOTAGE_TOKEN")


@dataclass(frozen=True, slots=True)
class Site:
    """What a payload is told of where it runs; `passed` names variables of the pilot that payloads get too."""

    marker: str
    path: str = DEFAULT_PATH
    queue: str = ""
    node: str = ""
    passed: tuple[str, ...] = ("LANG", "LC_ALL", "LC_CTYPE", "TZ")

    def marker_of(self, job: GrantedJob) -> str:
        """Return the value of the marker for a job."""
        return f"{self.marker}/{job.key}"


def environment_of(order: PrepareJob, site: Site, folders: Folders) -> dict[str, str]:
    """Return the environment of a payload; the owner's words win over ours, but for what the slot decides."""
    return (
        _passed(site.passed)
        | _machine(site, folders)
        | {"OMP_NUM_THREADS": str(max(1, order.slot.amounts.cpus))}
        | _safe(order.job.description.environment)
        | _told(order, site, folders)
    )


def without_secrets(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without what the pilot alone may know, such as its token."""
    return {name: value for name, value in environment.items() if not name.startswith(_NEVER_PASSED)}


@lru_cache(maxsize=1)
def _passed(names: tuple[str, ...]) -> dict[str, str]:
    return without_secrets({name: os.environ[name] for name in names if name in os.environ})


def _machine(site: Site, folders: Folders) -> dict[str, str]:
    work = str(folders.work)
    temporary = str(folders.temporary)
    return {
        "PATH": site.path,
        "HOME": work,
        "PWD": work,
        "TMPDIR": temporary,
        "TMP": temporary,
        "TEMP": temporary,
        "SHELL": "/bin/sh",
        **_USER,
    }


def _user() -> dict[str, str]:
    try:
        name = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        name = str(os.getuid())
    return {"USER": name, "LOGNAME": name}


_USER = _user()


def _safe(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name and "=" not in name}


def _ads(order: PrepareJob, folders: Folders) -> dict[str, str]:
    machine_ad = {"_CONDOR_MACHINE_AD": str(folders.machine_ad)} if order.machine_ad else {}
    return machine_ad | ({"_CONDOR_JOB_AD": str(folders.job_ad)} if order.job_ad else {})


def _told(order: PrepareJob, site: Site, folders: Folders) -> dict[str, str]:
    job, slot, work = order.job, order.slot, str(folders.work)
    gpus = ",".join(slot.gpu_ids)
    return {
        MARKER: site.marker_of(job),
        "PILOTAGE_JOB_ID": str(job.key.job_id),
        "PILOTAGE_ATTEMPT_NUMBER": str(job.key.attempt),
        "PILOTAGE_CLUSTER": str(job.cluster),
        "PILOTAGE_PROCESS": str(job.process),
        "PILOTAGE_OWNER": job.owner,
        "PILOTAGE_VO": job.vo,
        "PILOTAGE_QUEUE": site.queue,
        "PILOTAGE_NODE": site.node,
        "PILOTAGE_SLOT": slot.name,
        "PILOTAGE_CPUS": str(slot.amounts.cpus),
        "PILOTAGE_MEMORY_MIB": str(slot.amounts.memory_mib),
        "PILOTAGE_WARNING_FILE": str(folders.warning),
        "_CONDOR_SCRATCH_DIR": work,
        "_CONDOR_JOB_IWD": work,
        "_CONDOR_SLOT": slot.name,
        **_ads(order, folders),
        # A payload without a GPU sees none, whatever the node has.
        "CUDA_VISIBLE_DEVICES": gpus,
        "NVIDIA_VISIBLE_DEVICES": gpus or "void",
    }
