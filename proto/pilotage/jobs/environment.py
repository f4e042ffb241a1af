"""The environment variables of a job, whether a pilot or a batch system starts it.

The tables name all of them. Those of Pilotage and of the slot override the owner's, and these override the rest. Of the
starter's own environment only the variables in `PASSED_VARIABLES` are passed on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from pilotage.job_description import JobDescription
from pilotage.text import fold

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
MARKER = "PILOTAGE_ATTEMPT"
"""Every process of a job has this variable."""

PROXY_ATTRIBUTE = "x509userproxy"
"""The attribute that names the input file with the job's X.509 proxy."""

PASSED_VARIABLES = ("LANG", "LC_ALL", "LC_CTYPE", "TZ")
"""Variables that jobs inherit from the process that starts them."""

NUMBER_VARIABLES = {
    "PILOTAGE_JOB_ID": "The id of the job.",
    "PILOTAGE_CLUSTER_ID": "The id of its cluster, the same as PILOTAGE_CLUSTER.",
    "PILOTAGE_ARRAY_INDEX": "Its index in its cluster, the same as PILOTAGE_PROCESS.",
    MARKER: "Marks every process of the job. Its form may change; PILOTAGE_ATTEMPT_NUMBER is the number.",
}
"""Variables that the server sets with the numbers of a job, and their meanings."""

OWNER_VARIABLES = {
    "PILOTAGE_OWNER": "The owner of the job.",
    "PILOTAGE_VO": "Its VO.",
    "PILOTAGE_GROUP": "Its accounting group.",
}
"""Variables that the server sets with the owner of a job, and their meanings."""


@dataclass(frozen=True, slots=True)
class JobRunContext:
    """Where a job runs: paths of its folders and files, and the names of queue, node and slot.

    `cpus`, `memory_mib` and `gpu_ids` are what it was given, None = not known. The paths of the ads are "" if there are
    none. `path` is the PATH, `user` the name of the account.
    """

    work: str
    temporary: str
    warning: str
    queue: str
    node: str
    slot: str
    cpus: int | None
    memory_mib: int | None
    gpu_ids: tuple[str, ...] | None
    user: str
    path: str = DEFAULT_PATH
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


class JobRun(NamedTuple):
    """What the values of variables are made of."""

    description: JobDescription
    identity: JobIdentity
    context: JobRunContext


class JobVariable(NamedTuple):
    """A variable and its meaning; `value` None = it is not set."""

    name: str
    meaning: str
    value: Callable[[JobRun], str | None]


DEFAULT_VARIABLES = (
    JobVariable("PATH", "The folders of programs: the pilot's setting `payload_path`.", lambda run: run.context.path),
    JobVariable("USER", "The account that the job runs as.", lambda run: run.context.user),
    JobVariable("LOGNAME", "The same.", lambda run: run.context.user),
    JobVariable("SHELL", "/bin/sh", lambda _: "/bin/sh"),
    JobVariable("HOME", "The job's folder.", lambda run: run.context.work),
    JobVariable("PWD", "The job's folder, in which it starts.", lambda run: run.context.work),
    JobVariable("TMPDIR", "A folder for temporary files, removed after the job.", lambda run: run.context.temporary),
    JobVariable("TMP", "The same.", lambda run: run.context.temporary),
    JobVariable("TEMP", "The same.", lambda run: run.context.temporary),
    JobVariable("OMP_NUM_THREADS", "The number of cores, for programs that use OpenMP.", lambda run: _threads(run)),
    JobVariable("X509_USER_PROXY", "The proxy among the job's input files, if it names one.", lambda run: _proxy(run)),
)
"""Variables that the owner's description may override."""

FIXED_VARIABLES = (
    JobVariable(MARKER, NUMBER_VARIABLES[MARKER], lambda run: run.identity.marker),
    JobVariable("PILOTAGE_JOB_ID", NUMBER_VARIABLES["PILOTAGE_JOB_ID"], lambda run: str(run.identity.job_id)),
    JobVariable("PILOTAGE_ATTEMPT_NUMBER", "The number of the attempt, from 1.", lambda run: str(run.identity.attempt)),
    JobVariable("PILOTAGE_CLUSTER", "The id of its cluster (ClusterId).", lambda run: str(run.identity.cluster)),
    JobVariable(
        "PILOTAGE_PROCESS", "Its index in its cluster, from 0 (ProcId).", lambda run: str(run.identity.process)
    ),
    JobVariable("PILOTAGE_OWNER", OWNER_VARIABLES["PILOTAGE_OWNER"], lambda run: run.identity.owner),
    JobVariable("PILOTAGE_VO", OWNER_VARIABLES["PILOTAGE_VO"], lambda run: run.identity.vo),
    JobVariable("PILOTAGE_QUEUE", "Where it runs: SITE/CE/QUEUE.", lambda run: run.context.queue),
    JobVariable("PILOTAGE_NODE", "The name of the node.", lambda run: run.context.node),
    JobVariable("PILOTAGE_SLOT", "The name of the slot; of a routed job, its route.", lambda run: run.context.slot),
    JobVariable("PILOTAGE_CPUS", "The cores that it was given.", lambda run: _number(run.context.cpus)),
    JobVariable(
        "PILOTAGE_MEMORY_MIB", "The memory in MiB, if it is limited.", lambda run: _number(run.context.memory_mib)
    ),
    JobVariable(
        "PILOTAGE_WARNING_FILE",
        "A file that appears when the job is about to be stopped.",
        lambda run: run.context.warning,
    ),
    JobVariable("_CONDOR_SCRATCH_DIR", "The job's folder.", lambda run: run.context.work),
    JobVariable("_CONDOR_JOB_IWD", "The job's folder.", lambda run: run.context.work),
    JobVariable("_CONDOR_SLOT", "The same as PILOTAGE_SLOT.", lambda run: run.context.slot),
    JobVariable(
        "_CONDOR_MACHINE_AD",
        "A file with the ad of the slot, if there is one.",
        lambda run: run.context.machine_ad or None,
    ),
    JobVariable(
        "_CONDOR_JOB_AD", "A file with the ad of the job, if there is one.", lambda run: run.context.job_ad or None
    ),
    JobVariable(
        "CUDA_VISIBLE_DEVICES",
        "The GPUs that it was given, with commas; empty = none. Batch systems set it for routed jobs with GPUs.",
        lambda run: None if run.context.gpu_ids is None else ",".join(run.context.gpu_ids),
    ),
    JobVariable(
        "NVIDIA_VISIBLE_DEVICES",
        'The same; "void" = none.',
        lambda run: None if run.context.gpu_ids is None else ",".join(run.context.gpu_ids) or "void",
    ),
)
"""Variables that the owner's description cannot override."""


def job_environment(
    description: JobDescription, identity: JobIdentity, context: JobRunContext, passed: Mapping[str, str]
) -> dict[str, str]:
    """Return the environment of a job; `passed` holds the variables of the machine that it inherits."""
    run = JobRun(description, identity, context)
    own = {name: value for name, value in description.environment.items() if name and "=" not in name}
    return {**passed, **_values(DEFAULT_VARIABLES, run), **own, **_values(FIXED_VARIABLES, run)}


def input_file_of(description: JobDescription, attribute: str) -> str:
    """Return the input file that an attribute of a job names, with or without folders; "" = none."""
    wanted = fold(attribute)
    stated = next((value for name, value in description.attributes.items() if fold(name) == wanted), "")
    names = [file.name for file in description.input_files]
    if not isinstance(stated, str):
        return ""
    return stated if stated in names else next((name for name in names if name == stated.rsplit("/", 1)[-1]), "")


def _values(variables: Iterable[JobVariable], run: JobRun) -> dict[str, str]:
    return {each.name: value for each in variables if (value := each.value(run)) is not None}


def _threads(run: JobRun) -> str | None:
    return None if run.context.cpus is None else str(max(1, run.context.cpus))


def _proxy(run: JobRun) -> str | None:
    proxy = input_file_of(run.description, PROXY_ATTRIBUTE)
    return f"{run.context.work}/{proxy}" if proxy else None


def _number(amount: int | None) -> str | None:
    return None if amount is None else str(amount)
