"""What a job is before anyone has accepted it: the one form that all submit languages are read into.

Rules
-----
Values only: no parsing of languages (the client's readers do that), no defaults that depend on a server.
Requirements keep the spelling and the values that people typed; their meaning is `pilotage.requirements`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from types import MappingProxyType

Scalar = bool | int | float | str
"""One value as it stands in a Requirements section, a resource tree or a job attribute."""

Value = Scalar | tuple[Scalar, ...]
"""A value or a list of values; lists keep their order and spelling."""

NOTHING: Mapping[str, Value] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class InputFile:
    """A file that travels with the job.

    `name` is its path inside the job's folder, relative and without "..". `checksum` is the SHA-256 of its
    content in 64 hex digits, None = not stored yet (then `source` says where the submitter has it).
    """

    name: str
    source: str | None = None
    checksum: str | None = None
    size: int = 0
    executable: bool = False


@dataclass(frozen=True, slots=True)
class JobPolicy:
    """What a job wants done with itself: ClassAd expressions over its own ad, None = not said.

    The reason is an expression for a text, the subcode one for an integer. Names are those of HTCondor's submit
    files.
    """

    periodic_hold: str | None = None
    periodic_hold_reason: str | None = None
    periodic_hold_subcode: str | None = None
    periodic_release: str | None = None
    periodic_remove: str | None = None


NO_POLICY = JobPolicy()


@dataclass(frozen=True, slots=True)
class JobDescription:
    """One job, or an array of `count` jobs, as its owner wrote it down.

    `arguments` is one string that `pilotage.arguments.split_arguments` takes apart. `requirements` is the
    Requirements section (None = the job has none and belongs to no submit pool). The reserved keywords and
    request sizes are None or empty where the owner said nothing. Memory and disk in MiB; `cpu_time` in
    normalised CPU time; `wall_time` = the longest run that the owner allows. `attributes` holds the job's own
    attributes (`+Name`), also those that have no meaning here; `warnings` says which these are. With
    `new_files_come_back` the plain files that the job makes or changes at the top of its folder are output too.
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
