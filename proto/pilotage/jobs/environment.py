"""The environment variables of a job, whether a pilot or a batch system starts it.

The variables of Pilotage and of the slot override the owner's, and these override the rest. Of the starter's own
environment only the variables in `PASSED_VARIABLES` are passed on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pilotage.job_description import JobDescription
from pilotage.text import fold

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
MARKER = "PILOTAGE_ATTEMPT"
"""Every process of a job has this variable."""

PROXY_ATTRIBUTE = "x509userproxy"
"""The attribute that names the input file with the job's X.509 proxy."""

PASSED_VARIABLES = ("LANG", "LC_ALL", "LC_CTYPE", "TZ")
"""Variables that jobs inherit from the process that starts them."""


@dataclass(frozen=True, slots=True)
class JobRunContext:
    """Where a job runs: paths of its folders and files, and the names of queue, node and slot.

    `cpus` and `memory_mib` are what it was given, None = not known. The paths of the ads are "" if there are none.
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
    """Which job it is; `marker` is the value of MARKER."""

    marker: str
    job_id: int
    attempt: int
    cluster: int
    process: int
    owner: str
    vo: str


def job_environment(
    description: JobDescription, identity: JobIdentity, context: JobRunContext, machine: Mapping[str, str]
) -> dict[str, str]:
    """Return the environment of a job; `machine` holds the machine's variables: PATH, USER, and the passed ones."""
    threads = {} if context.cpus is None else {"OMP_NUM_THREADS": str(max(1, context.cpus))}
    proxy = input_file_of(description, PROXY_ATTRIBUTE)
    brought = {"X509_USER_PROXY": f"{context.work}/{proxy}"} if proxy else {}
    own = {name: value for name, value in description.environment.items() if name and "=" not in name}
    return {**machine, **_folders(context), **threads, **brought, **own, **_pilotage_variables(identity, context)}


def input_file_of(description: JobDescription, attribute: str) -> str:
    """Return the input file that an attribute of a job names, with or without folders; "" = none."""
    wanted = fold(attribute)
    stated = next((value for name, value in description.attributes.items() if fold(name) == wanted), "")
    names = [file.name for file in description.input_files]
    if not isinstance(stated, str):
        return ""
    return stated if stated in names else next((name for name in names if name == stated.rsplit("/", 1)[-1]), "")


def _folders(context: JobRunContext) -> dict[str, str]:
    return {
        "HOME": context.work,
        "PWD": context.work,
        "TMPDIR": context.temporary,
        "TMP": context.temporary,
        "TEMP": context.temporary,
        "SHELL": "/bin/sh",
    }


def _pilotage_variables(identity: JobIdentity, context: JobRunContext) -> dict[str, str]:
    ads = {"_CONDOR_MACHINE_AD": context.machine_ad, "_CONDOR_JOB_AD": context.job_ad}
    sizes = {"PILOTAGE_CPUS": context.cpus, "PILOTAGE_MEMORY_MIB": context.memory_mib}
    return {
        MARKER: identity.marker,
        "PILOTAGE_JOB_ID": str(identity.job_id),
        "PILOTAGE_ATTEMPT_NUMBER": str(identity.attempt),
        "PILOTAGE_CLUSTER": str(identity.cluster),
        "PILOTAGE_PROCESS": str(identity.process),
        "PILOTAGE_OWNER": identity.owner,
        "PILOTAGE_VO": identity.vo,
        "PILOTAGE_QUEUE": context.queue,
        "PILOTAGE_NODE": context.node,
        "PILOTAGE_SLOT": context.slot,
        **{name: str(size) for name, size in sizes.items() if size is not None},
        "PILOTAGE_WARNING_FILE": context.warning,
        "_CONDOR_SCRATCH_DIR": context.work,
        "_CONDOR_JOB_IWD": context.work,
        "_CONDOR_SLOT": context.slot,
        **{name: path for name, path in ads.items() if path},
    }
