"""What a job's process finds in its environment, whoever starts it: a pilot, or a batch system.

Rules
-----
What Pilotage says of the job, and what its slot decides, wins over what its owner says, and that over the rest.
Nothing of the starter's own environment is passed on but what is named.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pilotage.folding import fold
from pilotage.job_description import JobDescription

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
MARKER = "PILOTAGE_ATTEMPT"
"""Every process of a job carries it."""

PASSED = ("LANG", "LC_ALL", "LC_CTYPE", "TZ")
"""Names of variables that jobs get from whoever starts them."""


@dataclass(frozen=True, slots=True)
class JobPlace:
    """Where a job runs: paths of its folders and files, and the names of what it runs in.

    `cpus` and `memory_mib` are what it was given, None = nobody knows. The ads' paths are "" where there are none.
    """

    work: str
    temporary: str
    warning: str
    queue: str
    node: str
    slot: str
    cpus: int | None
    memory_mib: int | None
    job_ad: str = ""
    machine_ad: str = ""


@dataclass(frozen=True, slots=True)
class JobIdentity:
    """Which job it is: `marker` is the value of MARKER."""

    marker: str
    job_id: int
    attempt: int
    cluster: int
    process: int
    owner: str
    vo: str


def job_environment(
    description: JobDescription, identity: JobIdentity, place: JobPlace, machine: Mapping[str, str]
) -> dict[str, str]:
    """Return the environment of a job; `machine` is what the machine says: PATH, USER, and what is passed on."""
    threads = {} if place.cpus is None else {"OMP_NUM_THREADS": str(max(1, place.cpus))}
    proxy = input_file_of(description, "x509userproxy")
    brought = {"X509_USER_PROXY": f"{place.work}/{proxy}"} if proxy else {}
    own = _safe(description.environment)
    return {**machine, **_folders(place), **threads, **brought, **own, **_told(identity, place)}


def input_file_of(description: JobDescription, attribute: str) -> str:
    """Return the name of the input file that an attribute of a job names, with or without folders; "" = none."""
    wanted = fold(attribute)
    said = next((value for name, value in description.attributes.items() if fold(name) == wanted), "")
    names = [file.name for file in description.input_files]
    if not isinstance(said, str):
        return ""
    return said if said in names else next((name for name in names if name == said.rsplit("/", 1)[-1]), "")


def _folders(place: JobPlace) -> dict[str, str]:
    return {
        "HOME": place.work,
        "PWD": place.work,
        "TMPDIR": place.temporary,
        "TMP": place.temporary,
        "TEMP": place.temporary,
        "SHELL": "/bin/sh",
    }


def _safe(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name and "=" not in name}


def _told(identity: JobIdentity, place: JobPlace) -> dict[str, str]:
    ads = {"_CONDOR_MACHINE_AD": place.machine_ad, "_CONDOR_JOB_AD": place.job_ad}
    sizes = {"PILOTAGE_CPUS": place.cpus, "PILOTAGE_MEMORY_MIB": place.memory_mib}
    return {
        MARKER: identity.marker,
        "PILOTAGE_JOB_ID": str(identity.job_id),
        "PILOTAGE_ATTEMPT_NUMBER": str(identity.attempt),
        "PILOTAGE_CLUSTER": str(identity.cluster),
        "PILOTAGE_PROCESS": str(identity.process),
        "PILOTAGE_OWNER": identity.owner,
        "PILOTAGE_VO": identity.vo,
        "PILOTAGE_QUEUE": place.queue,
        "PILOTAGE_NODE": place.node,
        "PILOTAGE_SLOT": place.slot,
        **{name: str(size) for name, size in sizes.items() if size is not None},
        "PILOTAGE_WARNING_FILE": place.warning,
        "_CONDOR_SCRATCH_DIR": place.work,
        "_CONDOR_JOB_IWD": place.work,
        "_CONDOR_SLOT": place.slot,
        **{name: path for name, path in ads.items() if path},
    }
