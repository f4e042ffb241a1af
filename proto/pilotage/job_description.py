"""The description of a job before submission: the form into which all submit languages are read.

Values only: the client's readers parse languages, and the server sets defaults. Requirements keep their spelling and
values; `pilotage.resources.requirements` interprets them.

The macros of a cluster are filled in here: `$(Cluster)` is the id of its first job, `$(Process)` the index
in it (HTCondor manual, condor_submit); letter case does not matter. Both are numbers, so a rendered file name is as
safe as the checked one. Any other text stays as it is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from types import MappingProxyType

from pilotage.notifications import NewSubscription

Scalar = bool | int | float | str
"""One value of a Requirements section, a resource tree or a job attribute."""

Value = Scalar | tuple[Scalar, ...]
"""A value or a list of values; lists keep their order and spelling."""

NOTHING: Mapping[str, Value] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class InputFile:
    """A file that is sent with the job.

    `name` is its path inside the job's folder, relative and without "..". `checksum` is the SHA-256 of its content in
    64 hex digits, None = not stored yet (then `source` is the submitter's path).
    """

    name: str
    source: str | None = None
    checksum: str | None = None
    size: int = 0
    executable: bool = False


@dataclass(frozen=True, slots=True)
class JobPolicy:
    """A job's own policy: ClassAd expressions over its own ad, None = not set.

    The periodic ones are evaluated while the job lives, the others when its payload has exited. A reason is an
    expression for a text, a subcode one for an integer. The names are those of HTCondor's submit files.
    """

    periodic_hold: str | None = None
    periodic_hold_reason: str | None = None
    periodic_hold_subcode: str | None = None
    periodic_release: str | None = None
    periodic_remove: str | None = None
    on_exit_hold: str | None = None
    on_exit_hold_reason: str | None = None
    on_exit_hold_subcode: str | None = None
    on_exit_remove: str | None = None


NO_POLICY = JobPolicy()


@dataclass(frozen=True, slots=True)
class JobDescription:
    """One job, or an array of `count` jobs, as its owner wrote it.

    `arguments` is one string for `pilotage.condor.quoting.split_arguments`. `requirements` is the Requirements section
    (None = the job has none and belongs to no submit pool). Reserved keywords and request sizes are None or empty if
    the owner did not set them. Memory and disk in MiB; `cpu_time` in normalised CPU time; `wall_time` = the longest run
    that the owner allows. `max_starts` = how often its payload may start at most, None = until an attempt ends it.
    `retries` = how often it runs again after its payload has failed by itself, None = not at all; `retry_until` and
    `retry_exit_codes` limit that, `retry_delay` doubles with each retry. `success_exit_code` None = 0. `retry_memory` =
    the factor of the memory request after the memory limit ended an attempt, None = no retry then.
    `image` = the container image in which its program runs (`pilotage.jobs.images`), None = it runs on the node. With
    an image the executable may be empty: the image's own command runs.
    `attributes` holds the job's own attributes (`+Name`), including those without a meaning here; `warnings` lists
    these. `ignored` are statements that ask for something that is not done, and that the owner let be ignored. With
    `new_files_come_back` the plain files that the job creates or changes at the top of its folder are output too.
    `continues_cluster` = in a submission, its jobs continue the cluster of the description before it.
    `after`, `after_ok`, `after_any` and `after_settled` name its parents, by ids of existing jobs, clusters and
    workflows or by names of jobs of the same submission, which has them beside its descriptions: a stored description
    has none. In the same way `notify` has subscriptions to its jobs.
    """

    executable: str
    arguments: str = ""
    name: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    stdin: str | None = None
    stdout: str | None = None
    stderr: str | None = None
    input_files: tuple[InputFile, ...] = ()
    output_files: tuple[str, ...] = ()
    new_files_come_back: bool = False
    requirements: Mapping[str, Value] | None = None
    requirements_expression: str | None = None
    rank: str | None = None
    sites: tuple[str, ...] = ()
    banned_sites: tuple[str, ...] = ()
    platforms: tuple[str, ...] = ()
    cpu_time: timedelta | None = None
    wall_time: timedelta | None = None
    lease: timedelta | None = None
    max_starts: int | None = None
    retries: int | None = None
    success_exit_code: int | None = None
    retry_until: str | None = None
    retry_exit_codes: tuple[int, ...] = ()
    retry_delay: timedelta | None = None
    retry_memory: float | None = None
    image: str | None = None
    request_cpus: int | None = None
    request_memory_mib: int | None = None
    request_disk_mib: int | None = None
    request_gpus: int | None = None
    priority: int = 0
    hold: bool = False
    attributes: Mapping[str, Value] = field(default_factory=lambda: NOTHING)
    count: int | None = None
    policy: JobPolicy = NO_POLICY
    warnings: tuple[str, ...] = ()
    continues_cluster: bool = False
    ignored: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    after_ok: tuple[str, ...] = ()
    after_any: tuple[str, ...] = ()
    after_settled: tuple[str, ...] = ()
    notify: tuple[NewSubscription, ...] = ()


def without_exit_policy(description: JobDescription) -> JobDescription:
    """Return the description of a copy, which never runs again by itself: the job that it is a copy of decides."""
    policy = replace(
        description.policy,
        on_exit_hold=None,
        on_exit_hold_reason=None,
        on_exit_hold_subcode=None,
        on_exit_remove=None,
    )
    return replace(
        description,
        retries=None,
        retry_until=None,
        retry_exit_codes=(),
        retry_delay=None,
        retry_memory=None,
        policy=policy,
    )


_MACRO = re.compile(r"\$\((?:(cluster|clusterid)|process|procid)\)", re.IGNORECASE)


def render_text(text: str, cluster: int, process: int) -> str:
    """Return the text with `$(Cluster)`, `$(ClusterId)`, `$(Process)` and `$(ProcId)` filled in."""
    if "$(" not in text:
        return text
    return _MACRO.sub(lambda macro: str(cluster if macro[1] else process), text)
