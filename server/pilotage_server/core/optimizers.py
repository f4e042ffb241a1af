"""The optimizer chain: what a job goes through between its submission and its task queue.

Rules
-----
An optimizer is a pure step: candidate → candidate, or a rejection with every fault it found. Which steps there
are and in which order is a setting; the first that rejects ends the chain. A step may hold a job (`hold_reason`)
and may warn its owner. Binding to the task queue's row is left to the operation that stores the job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from pilotage.errors import InvalidInputError, InvalidRequirementsError, Violation
from pilotage.folding import fold
from pilotage.job_description import InputFile, JobDescription
from pilotage.job_needs import JobNeeds, job_needs
from pilotage.parameters import SHIPPED, ParameterDeclarations
from pilotage.requirements import Requirements, read_requirements
from pilotage_server.core.job_limits import JobLimits
from pilotage_server.core.sanity import faults_of

EXPRESSION_HOLD = (
    "its ClassAd expression ({}) cannot be evaluated yet: a later release of this server will; "
    "edit the job to run it without"
)
OWNER_HOLD = "held at submission, as its owner asked"

SERVER_ATTRIBUTES = frozenset(
    fold(name)
    for name in (
        "Owner",
        "User",
        "OsUser",
        "VO",
        "ClusterId",
        "ProcId",
        "GlobalJobId",
        "JobStatus",
        "LastJobStatus",
        "EnteredCurrentStatus",
        "QDate",
        "JobStartDate",
        "JobCurrentStartDate",
        "CompletionDate",
        "RemoteWallClockTime",
        "RemoteUserCpu",
        "RemoteHost",
        "NumJobStarts",
        "ExitCode",
        "SUBMIT_SITE_DOMAIN",
        "AcctGroup",
        "AcctGroupUser",
        "AccountingGroup",
    )
)
"""Folded names of job attributes whose values are the server's alone (DESIGN §12)."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a step may know beside the job; `stored` maps the owner's uploaded checksums to sizes in bytes."""

    limits: JobLimits = field(default_factory=JobLimits)
    declarations: ParameterDeclarations = SHIPPED
    stored: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class Candidate:
    """A job on its way: what it is so far, why it is to be held ("" = it is not), what its owner should know."""

    vo: str
    description: JobDescription
    requirements: Requirements | None = None
    needs: JobNeeds | None = None
    hold_reason: str = ""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Rejection:
    """The job cannot be taken; `violations` is never empty, their paths start at the description."""

    optimizer: str
    violations: tuple[Violation, ...]


Optimizer = Callable[[Candidate, Surroundings], Candidate | tuple[Violation, ...]]
"""One step; violations reject the candidate."""


def run_chain(names: Iterable[str], candidate: Candidate, surroundings: Surroundings) -> Candidate | Rejection:
    """Return the candidate after all steps, or the rejection of the first that refuses it."""
    for name in names:
        outcome = OPTIMIZERS[name](candidate, surroundings)
        if not isinstance(outcome, Candidate):
            return Rejection(name, outcome)
        candidate = outcome
    return candidate


def check_chain(names: Iterable[str]) -> None:
    """Raise InvalidInputError where the setting names a step that there is not."""
    unknown = [name for name in names if name not in OPTIMIZERS]
    if unknown:
        known = ", ".join(OPTIMIZERS)
        raise InvalidInputError(*(Violation("optimizers", f"{name!r} is none of: {known}") for name in unknown))


def sanity(candidate: Candidate, surroundings: Surroundings) -> Candidate | tuple[Violation, ...]:
    """Reject what makes no sense by itself; take what is the server's out of the user's hands."""
    description = candidate.description
    faults = faults_of(description, surroundings.limits, surroundings.stored)
    if faults:
        return faults
    own = {name: value for name, value in description.attributes.items() if fold(name) not in SERVER_ATTRIBUTES}
    taken = [name for name in description.attributes if name not in own]
    warnings = tuple(f"attribute {name} is set by the server; the value given is not used" for name in taken)
    files = tuple(_with_size(file, surroundings.stored) for file in description.input_files)
    return replace(
        candidate,
        description=replace(description, attributes=own, input_files=files),
        hold_reason=candidate.hold_reason or (OWNER_HOLD if description.hold else ""),
        warnings=candidate.warnings + warnings,
    )


def _with_size(file: InputFile, stored: Mapping[str, int]) -> InputFile:
    return replace(file, size=stored[file.checksum or ""])


def requirements(candidate: Candidate, surroundings: Surroundings) -> Candidate | tuple[Violation, ...]:
    """Read the Requirements section in the meaning that the tree in force declares."""
    section = candidate.description.requirements
    if not section:
        return candidate
    try:
        read = read_requirements(section, candidate.vo, surroundings.declarations)
    except InvalidRequirementsError as error:
        return tuple(Violation(f"requirements.{fault.where}", fault.why) for fault in error.violations)
    return replace(candidate, requirements=read)


def expressions(candidate: Candidate, _surroundings: Surroundings) -> Candidate | tuple[Violation, ...]:
    """Hold a job with a ClassAd expression: nobody could say whether a slot satisfies it."""
    return replace(candidate, hold_reason=expression_hold(candidate.description) or candidate.hold_reason)


def expression_hold(description: JobDescription) -> str:
    """Return why the job may not wait as long as no ClassAd expression can be evaluated; empty = it may."""
    fields = {"requirements_expression": description.requirements_expression, "rank": description.rank}
    given = [name for name, expression in fields.items() if expression is not None and expression.strip()]
    return EXPRESSION_HOLD.format(", ".join(given)) if given else ""


def task_queue(candidate: Candidate, _surroundings: Surroundings) -> Candidate | tuple[Violation, ...]:
    """Find what tells its task queue apart beside the pool: keywords and sizes in their normal form."""
    return replace(candidate, needs=job_needs(candidate.description))


OPTIMIZERS: Mapping[str, Optimizer] = MappingProxyType(
    {"sanity": sanity, "requirements": requirements, "expressions": expressions, "task queue": task_queue}
)
"""Every step there is, by the name that the settings use."""
