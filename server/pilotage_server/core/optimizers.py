"""The optimizer chain: what a job goes through between its submission and its task queue.

Rules
-----
An optimizer is a pure step: candidate → candidate, or a rejection with every fault it found. Which steps there
are and in which order is a setting; the first that rejects ends the chain. A step may hold a job (`hold_reason`)
and may warn its owner. Binding to the task queue's row is left to the operation that stores the job.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType

from pilotage.classad_evaluation import CURRENT_TIME
from pilotage.classad_references import references
from pilotage.classad_text import with_time_from
from pilotage.errors import InvalidInputError, InvalidRequirementsError, Violation
from pilotage.folding import folded_set
from pilotage.job_description import NO_POLICY, InputFile, JobDescription
from pilotage.job_needs import JobNeeds, job_needs
from pilotage.parameters import SHIPPED, ParameterDeclarations
from pilotage.requirements import Requirements, read_requirements
from pilotage_server.core.job_ads import ALWAYS_TOLD
from pilotage_server.core.job_attributes import PAST, described
from pilotage_server.core.job_limits import JobLimits
from pilotage_server.core.owned_attributes import why_not_own
from pilotage_server.core.races import why_no_race
from pilotage_server.core.sanity import faults_of
from pilotage_server.core.slot_attributes import is_published

OWNER_HOLD = "held at submission, as its owner asked"


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a step may know beside the job.

    `stored` maps the owner's uploaded checksums to sizes in bytes. Folded names: `owned` of attributes that the server
    sets by its operators' rules, `published` of those that slots have beside the usual ones.
    """

    limits: JobLimits = field(default_factory=JobLimits)
    declarations: ParameterDeclarations = SHIPPED
    stored: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    owned: frozenset[str] = frozenset()
    published: frozenset[str] = frozenset()


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
    reasons = {name: why_not_own(name, description, surroundings.owned) for name in description.attributes}
    own = {name: value for name, value in description.attributes.items() if not reasons[name]}
    warnings = tuple(why for why in (*reasons.values(), why_no_race(description)) if why)
    files = tuple(_with_size(file, surroundings.stored) for file in description.input_files)
    if files or len(own) < len(description.attributes):
        description = replace(description, attributes=own, input_files=files)
    return replace(
        candidate,
        description=description,
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


def expressions(candidate: Candidate, surroundings: Surroundings) -> Candidate | tuple[Violation, ...]:
    """Tell the owner what his expressions ask of ads that these never have: it is undefined, and undefined is no."""
    description = candidate.description
    of_slots = {"requirements_expression": description.requirements_expression, "rank": description.rank}
    if not any(of_slots.values()) and description.policy == NO_POLICY:
        return candidate
    told = _told(description) | surroundings.owned
    unknown = {where: _unknown(text, told, surroundings.published) for where, text in of_slots.items() if text}
    untold = {where: _untold(text, told) for where, text in _policy_texts(description)}
    warnings = (
        *(_refers(where, names, "no slot publishes at present") for where, names in unknown.items() if names),
        *(_refers(where, names, "no job's ad has") for where, names in untold.items() if names),
    )
    return replace(candidate, warnings=candidate.warnings + warnings)


def _refers(where: str, names: Iterable[str], why: str) -> str:
    return f"{where} refers to {', '.join(names)}, which {why}"


def _policy_texts(description: JobDescription) -> Iterator[tuple[str, str]]:
    for field_ in fields(description.policy):
        text = getattr(description.policy, field_.name)
        if text is not None:
            yield f"policy.{field_.name}", text


def _told(description: JobDescription) -> frozenset[str]:
    """Return the folded names that the ad of such a job has."""
    return ALWAYS_TOLD | PAST | folded_set(described(description))


def _untold(text: str, told: frozenset[str]) -> list[str]:
    """Return what an expression over the job's own ad looks for and cannot be there, as it is spelled."""
    referred = references(with_time_from(CURRENT_TIME, text))
    return [_spelled(name, text) for name in sorted((referred.in_my - told) | referred.target)]


def _unknown(text: str, told: frozenset[str], published: frozenset[str]) -> list[str]:
    """Return what an expression looks for in the slot and cannot be there, as it is spelled."""
    referred = references(text)
    in_slot = sorted(referred.target | (referred.free - told))
    return [_spelled(name, text) for name in in_slot if not is_published(name, published)]


def _spelled(name: str, text: str) -> str:
    """Return a folded name as it stands in the text."""
    found = re.search(rf"\b{re.escape(name)}\b", text, re.IGNORECASE)
    return found.group() if found else name


def task_queue(candidate: Candidate, _surroundings: Surroundings) -> Candidate | tuple[Violation, ...]:
    """Find what tells its task queue apart beside the pool: keywords and sizes in their normal form."""
    return replace(candidate, needs=job_needs(candidate.description))


OPTIMIZERS: Mapping[str, Optimizer] = MappingProxyType(
    {"sanity": sanity, "requirements": requirements, "expressions": expressions, "task queue": task_queue}
)
"""Every step there is, by the name that the settings use."""
