"""The optimizer chain: the steps of a job between its submission and its task queue.

A step is pure: it returns the candidate or all faults found. The settings name the steps and their order; the first
rejection ends the chain. A step may hold a job (`hold_reason`) and add warnings for the owner. The attributes that
every slot ad has are listed here, too (HTCondor manual, machine ClassAd attributes).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType

from pilotage.classads.evaluation import CURRENT_TIME
from pilotage.classads.references import nested_names, references
from pilotage.classads.tokens import bracketed, with_time_from
from pilotage.errors import InvalidInputError, InvalidRequirementsError, Violation
from pilotage.job_description import NO_POLICY, JobDescription
from pilotage.jobs.images import is_sif
from pilotage.resources.parameters import SHIPPED, ParameterDeclarations
from pilotage.resources.requirements import JobNeeds, Requirements, job_needs, read_requirements
from pilotage.text import fold, folded_set
from pilotage_server.core.jobs.attributes import RUN_HISTORY_NAMES, attribute_fault, description_attributes
from pilotage_server.core.jobs.files import JobLimits
from pilotage_server.core.jobs.usage import USAGE_NAMES
from pilotage_server.core.queueing.job_ads import ALWAYS_PRESENT
from pilotage_server.core.races.races import race_refusal
from pilotage_server.core.submission.validation import description_faults

STANDARD_ATTRIBUTES = folded_set(
    (
        *("MyType", "Name", "Machine", "SlotID", "SlotType", "SlotTypeID", "VirtualMachineID", "DSlotID"),
        *("SlotDynamic", "DynamicSlot", "PartitionableSlot", "NumDynamicSlots", "SlotWeight"),
        *("Site", "CE", "Queue", "UidDomain", "FileSystemDomain", "CondorVersion", "PilotageVersion"),
        *("State", "Activity", "EnteredCurrentState", "EnteredCurrentActivity", "LastClaimEnd", "CurrentRank"),
        *("Arch", "OpSys", "OpSysAndVer", "OpSysMajorVer", "OpSysVer", "OpSysName", "OpSysShortName", "OpSysLongName"),
        *("OpSysLegacy", "Microarch", "KernelVersion", "HasFileTransfer"),
        *("Cpus", "Memory", "Disk", "GPUs", "Gpus", "VirtualMemory", "DetectedCpus", "DetectedMemory", "DetectedGPUs"),
        *("TotalCpus", "TotalMemory", "TotalDisk", "TotalGPUs", "TotalVirtualMemory", "TotalSlots"),
        *("TotalSlotCpus", "TotalSlotMemory", "TotalSlotDisk", "TotalSlotGPUs", "AssignedGPUs"),
        *("LoadAvg", "CondorLoadAvg", "TotalLoadAvg", "TotalCondorLoadAvg", "KeyboardIdle", "ConsoleIdle"),
        *("Mips", "KFlops", "ClockMin", "ClockDay", "MyCurrentTime", "CurrentTime", "LastHeardFrom"),
        *("RemoteUser", "RemoteOwner", "RemoteGroup", "RemoteUserPrio", "ClientMachine", "JobId", "JobStart"),
        *("TotalClaimRunTime", "TotalJobRunTime", "TotalTimeClaimedBusy", "TotalTimeUnclaimedIdle"),
        *("Start", "Rank", "Requirements", "PreemptionRequirements", "IsOwner"),
        *("MaxJobRetirementTime", "MachineMaxVacateTime"),
    )
)
"""Folded names of the attributes of every slot ad."""

_OF_OTHER_SLOTS = re.compile(r"(slot|vm)\d+_.+")


def is_published(folded: str, published: frozenset[str]) -> bool:
    """Whether some slot has the attribute; `published` are folded names from slot ads."""
    return folded in STANDARD_ATTRIBUTES or folded in published or _OF_OTHER_SLOTS.fullmatch(folded) is not None


_HAS_SIF = "HasSIF"
_OWNER_HOLD = "held at submission, as its owner asked"


@dataclass(frozen=True, slots=True)
class OptimizerContext:
    """The values that a step may read beside the job.

    `stored` maps the owner's uploaded checksums to sizes in bytes. `owned` = folded names that submit transforms set;
    `published` = those that slots have beside the standard ones.
    """

    limits: JobLimits = field(default_factory=JobLimits)
    declarations: ParameterDeclarations = SHIPPED
    stored: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    owned: frozenset[str] = frozenset()
    published: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class SubmitCandidate:
    """A job on its way through the chain; `hold_reason` "" = it is not held. `warnings` are for its owner."""

    vo: str
    description: JobDescription
    requirements: Requirements | None = None
    needs: JobNeeds | None = None
    hold_reason: str = ""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Rejection:
    """The job is rejected; there is at least one violation, with paths that start at the description."""

    optimizer: str
    violations: tuple[Violation, ...]


Optimizer = Callable[[SubmitCandidate, OptimizerContext], SubmitCandidate | tuple[Violation, ...]]
"""One step; violations reject the candidate."""


def run_chain(
    names: Iterable[str], candidate: SubmitCandidate, context: OptimizerContext
) -> SubmitCandidate | Rejection:
    """Return the candidate after all steps, or the first rejection."""
    for name in names:
        outcome = OPTIMIZERS[name](candidate, context)
        if not isinstance(outcome, SubmitCandidate):
            return Rejection(name, outcome)
        candidate = outcome
    return candidate


def check_chain(names: Iterable[str]) -> None:
    """Raise InvalidInputError if a name is not that of a step."""
    unknown = [name for name in names if name not in OPTIMIZERS]
    if unknown:
        known = ", ".join(OPTIMIZERS)
        raise InvalidInputError(*(Violation("optimizers", f"{name!r} is none of: {known}") for name in unknown))


def sanity(candidate: SubmitCandidate, context: OptimizerContext) -> SubmitCandidate | tuple[Violation, ...]:
    """Reject invalid descriptions, and remove attributes that only the server sets."""
    description = _requiring_its_runtime(candidate.description)
    faults = description_faults(description, context.limits, context.stored)
    if faults:
        return faults
    reasons = {name: attribute_fault(name, description, context.owned) for name in description.attributes}
    own = {name: value for name, value in description.attributes.items() if not reasons[name]}
    warnings = tuple(why for why in (*reasons.values(), race_refusal(description)) if why)
    files = tuple(replace(file, size=context.stored[file.checksum or ""]) for file in description.input_files)
    if files or len(own) < len(description.attributes):
        description = replace(description, attributes=own, input_files=files)
    return replace(
        candidate,
        description=description,
        hold_reason=candidate.hold_reason or (_OWNER_HOLD if description.hold else ""),
        warnings=candidate.warnings + warnings,
    )


def _requiring_its_runtime(description: JobDescription) -> JobDescription:
    """Return the description with the requirement that HTCondor's submit adds for a SIF image, unless it is there."""
    own = (description.requirements_expression or "").strip()
    if description.image is None or not is_sif(description.image) or fold(_HAS_SIF) in fold(own):
        return description
    expression = f"TARGET.{_HAS_SIF} && {bracketed(own)}" if own else f"TARGET.{_HAS_SIF}"
    return replace(description, requirements_expression=expression)


def requirements(candidate: SubmitCandidate, context: OptimizerContext) -> SubmitCandidate | tuple[Violation, ...]:
    """Parse the Requirements section as the active tree declares its parameters."""
    section = candidate.description.requirements
    if not section:
        return candidate
    try:
        read = read_requirements(section, candidate.vo, context.declarations)
    except InvalidRequirementsError as error:
        return tuple(Violation(f"requirements.{fault.where}", fault.why) for fault in error.violations)
    return replace(candidate, requirements=read)


def expressions(candidate: SubmitCandidate, context: OptimizerContext) -> SubmitCandidate | tuple[Violation, ...]:
    """Warn of attributes that an expression reads and no ad has: they are undefined, so the expression is not true."""
    description = candidate.description
    of_slots = {"requirements_expression": description.requirements_expression, "rank": description.rank}
    if not any(of_slots.values()) and description.policy == NO_POLICY and description.retry_until is None:
        return candidate
    job_names = _job_names(description) | context.owned
    missing_in_slots = {
        where: _missing_in_slots(text, job_names, context.published) for where, text in of_slots.items() if text
    }
    missing_in_job = {
        where: _missing_in_job(text, job_names | USAGE_NAMES) for where, text in _policy_texts(description)
    }
    of_own_sites = (
        f"{where} refers to Site, which is the job's own list of sites; write TARGET.Site for the slot's site"
        for where, text in of_slots.items()
        if text and description.sites and "site" in references(text).free
    )
    warnings = (
        *of_own_sites,
        *(_refers(where, names, "no slot publishes at present") for where, names in missing_in_slots.items() if names),
        *(_refers(where, names, "no job's ad has") for where, names in missing_in_job.items() if names),
    )
    return replace(candidate, warnings=candidate.warnings + warnings)


def _refers(where: str, names: Iterable[str], why: str) -> str:
    return f"{where} refers to {', '.join(names)}, which {why}"


def _policy_texts(description: JobDescription) -> Iterator[tuple[str, str]]:
    for field_ in fields(description.policy):
        text = getattr(description.policy, field_.name)
        if text is not None:
            yield f"policy.{field_.name}", text
    if description.retry_until is not None:
        yield "retry_until", description.retry_until


def _job_names(description: JobDescription) -> frozenset[str]:
    """Return the folded names of the attributes of such a job's ad."""
    return ALWAYS_PRESENT | RUN_HISTORY_NAMES | folded_set(description_attributes(description))


def _missing_in_job(text: str, job_names: frozenset[str]) -> list[str]:
    """Return the attributes that an expression over the job's own ad reads and that the ad lacks, as spelled."""
    referred = references(with_time_from(CURRENT_TIME, text))
    return _spelled((referred.in_my - job_names) | referred.target, text)


def _missing_in_slots(text: str, job_names: frozenset[str], published: frozenset[str]) -> list[str]:
    """Return the attributes that an expression reads and no slot has, as spelled."""
    referred = references(text)
    in_slot = referred.target | (referred.free - job_names)
    return _spelled((name for name in in_slot if not is_published(name, published)), text)


def _spelled(names: Iterable[str], text: str) -> list[str]:
    """Return folded names as the text spells them, in order, without those that nested ads may have."""
    found = {name: re.search(rf"\b{re.escape(name)}\b", text, re.IGNORECASE) for name in names}
    nested = nested_names(text)
    return [match.group() if match else name for name, match in sorted(found.items()) if name not in nested]


def task_queue(candidate: SubmitCandidate, _context: OptimizerContext) -> SubmitCandidate | tuple[Violation, ...]:
    """Normalise the keywords and sizes that separate task queues."""
    return replace(candidate, needs=job_needs(candidate.description))


OPTIMIZERS: Mapping[str, Optimizer] = MappingProxyType(
    {"sanity": sanity, "requirements": requirements, "expressions": expressions, "task queue": task_queue}
)
"""All steps by their names in the settings."""
