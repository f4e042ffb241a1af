"""The environment that a payload is given: what its owner said, what Pilotage says, and nothing of the pilot's own."""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from pilotage.job_environment import DEFAULT_PATH, PASSED, JobIdentity, JobPlace, job_environment
from pilotage_pilot.core.instructions import PrepareJob
from pilotage_pilot.core.jobs import GrantedJob
from pilotage_pilot.supervise.folders import Folders

_NEVER_PASSED = ("PILOTAGE_PILOT_", "PILOTAGE_TOKEN")


@dataclass(frozen=True, slots=True)
class Site:
    """What a payload is told of where it runs; `passed` names variables of the pilot that payloads get too."""

    marker: str
    path: str = DEFAULT_PATH
    queue: str = ""
    node: str = ""
    passed: tuple[str, ...] = PASSED

    def marker_of(self, job: GrantedJob) -> str:
        """Return the value of the marker for a job."""
        return f"{self.marker}/{job.key}"


def environment_of(order: PrepareJob, site: Site, folders: Folders) -> dict[str, str]:
    """Return the environment of a payload; the owner's words win over ours, but for what the slot decides."""
    job = order.job
    identity = JobIdentity(
        site.marker_of(job), job.key.job_id, job.key.attempt, job.cluster, job.process, job.owner, job.vo
    )
    machine = {**_passed(site.passed), "PATH": site.path, **_USER}
    gpus = ",".join(order.slot.gpu_ids)
    # A payload without a GPU sees none, whatever the node has.
    devices = {"CUDA_VISIBLE_DEVICES": gpus, "NVIDIA_VISIBLE_DEVICES": gpus or "void"}
    return job_environment(job.description, identity, _place(order, site, folders), machine) | devices


def _place(order: PrepareJob, site: Site, folders: Folders) -> JobPlace:
    amounts = order.slot.amounts
    return JobPlace(
        work=str(folders.work),
        temporary=str(folders.temporary),
        warning=str(folders.warning),
        queue=site.queue,
        node=site.node,
        slot=order.slot.name,
        cpus=amounts.cpus,
        memory_mib=amounts.memory_mib,
        job_ad=str(folders.job_ad) if order.job_ad else "",
        machine_ad=str(folders.machine_ad) if order.machine_ad else "",
    )


def without_secrets(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without what the pilot alone may know, such as its token."""
    return {name: value for name, value in environment.items() if not name.startswith(_NEVER_PASSED)}


@lru_cache(maxsize=1)
def _passed(names: tuple[str, ...]) -> dict[str, str]:
    return without_secrets({name: os.environ[name] for name in names if name in os.environ})


def _user() -> dict[str, str]:
    try:
        name = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        name = str(os.getuid())
    return {"USER": name, "LOGNAME": name}


_USER = _user()
