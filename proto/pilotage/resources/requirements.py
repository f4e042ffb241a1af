"""Requirements with their submit pool, and the other needs of a job.

Rules
-----
- The typed text is kept for display; the canonical form alone decides identity, and its hash is the pool id. A change
  of the canonical form needs a new form version.
- Reserved keywords belong to the job, never to the pool.
- `JobNeeds` is a normal form too: it is part of a task queue's key. Times are exact, never rounded to segments.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import NewType

from pilotage.errors import InvalidInputError, InvalidRequirementsError, Violation
from pilotage.job_description import JobDescription, Value
from pilotage.resources.comparisons import NormalForm, normal_form
from pilotage.resources.parameters import SHIPPED, ParameterDeclaration, ParameterDeclarations
from pilotage.text import fold, folded_set, given_value
from pilotage.units import Amount

FORM_VERSION = 1
"""The version of the canonical form; it is part of the form, so another version gives other pool ids."""

PoolId = NewType("PoolId", str)
"""SHA-256 of a canonical form, 64 hex digits."""

RESERVED_KEYWORDS = frozenset({"site", "bannedsite", "bannedsites", "platform", "cputime"})
"""Folded names of the job's own keywords, which may not stand in a Requirements section."""

_SHORT = 12


@dataclass(frozen=True, slots=True)
class Requirement:
    """One entry of a Requirements section: as typed, and its normal form under its declaration."""

    name: str
    asked: Value
    declaration: ParameterDeclaration
    normal: NormalForm


@dataclass(frozen=True, slots=True)
class Requirements:
    """The requirements of one submit pool; `items` are ordered by folded name."""

    vo: str
    items: tuple[Requirement, ...]

    @property
    def section(self) -> dict[str, Value]:
        """The section as typed; `read_requirements` turns it into equal requirements."""
        return {item.name: item.asked for item in self.items}

    def canonical_form(self) -> str:
        """Return the JSON text that equal requirements of one VO share, in every process and release."""
        form = {
            "form": FORM_VERSION,
            "requirements": {fold(item.name): [item.declaration.type.value, item.normal] for item in self.items},
            "vo": fold(self.vo),
        }
        return json.dumps(form, sort_keys=True, separators=(",", ":"), allow_nan=False)


def pool_id(requirements: Requirements) -> PoolId:
    """Return the id of the submit pool that `requirements` belong to.

    Returns
    -------
    PoolId
        64 hex digits: SHA-256 of the canonical form. Equal requirements give equal ids in every process.
    """
    return PoolId(hashlib.sha256(requirements.canonical_form().encode()).hexdigest())


def short_pool_id(pool: str) -> str:
    """Return the leading digits of a pool's id, for display."""
    return pool[:_SHORT]


def read_requirements(
    section: Mapping[str, object], vo: str, declarations: ParameterDeclarations = SHIPPED
) -> Requirements:
    """Return the requirements of a section: name → single value or list.

    An empty section equals a missing one. Names that differ in letter case alone are one parameter, which may be
    repeated with an equal value.

    Raises
    ------
    InvalidRequirementsError
        With every fault of the section; `where` is the parameter.
    """
    items: dict[str, Requirement] = {}
    violations: list[Violation] = []
    for name, asked in section.items():
        try:
            item = _read_requirement(name, asked, declarations)
        except InvalidRequirementsError as error:
            violations += error.violations
            continue
        first = items.setdefault(fold(name), item)
        if (first.declaration.type, first.normal) != (item.declaration.type, item.normal):
            why = f"is asked twice, as {first.asked!r} and as {item.asked!r}"
            violations.append(Violation(name, why))
    if violations:
        raise InvalidRequirementsError(*violations)
    return Requirements(vo, tuple(items[name] for name in sorted(items)))


def keyword_fault(name: str) -> str:
    """Return why a Requirements section may not have this name; "" = it may."""
    is_keyword = fold(name) in RESERVED_KEYWORDS
    return "is a keyword of the job: state it beside the Requirements section, not in it" if is_keyword else ""


def _read_requirement(name: str, asked: object, declarations: ParameterDeclarations) -> Requirement:
    if not name.strip():
        raise InvalidRequirementsError(Violation("Requirements", f"{name!r} is not a parameter's name"))
    if why := keyword_fault(name):
        raise InvalidRequirementsError(Violation(name, why))
    value = _as_value(name, asked)
    meaning = declarations.declaration_of(name, value)
    return Requirement(name, value, meaning, normal_form(meaning, value))


def _as_value(name: str, asked: object) -> Value:
    try:
        return given_value(asked)
    except InvalidInputError as error:
        raise InvalidRequirementsError(*(Violation(name, each.why) for each in error.violations)) from None


_ANY = "any"


@dataclass(frozen=True, slots=True)
class JobNeeds:
    """The keywords and sizes of a job; empty or None = no restriction.

    Names are folded, sorted and distinct: the job runs at any of `sites`, at none of `banned_sites`, and on any of
    `platforms`. `cpu_time_s` is normalised CPU seconds, `wall_time_s` the longest run that the job states.
    """

    sites: tuple[str, ...] = ()
    banned_sites: tuple[str, ...] = ()
    platforms: tuple[str, ...] = ()
    cpu_time_s: Amount | None = None
    cpus: int | None = None
    memory_mib: int | None = None
    disk_mib: int | None = None
    gpus: int | None = None
    wall_time_s: Amount | None = None


def job_needs(description: JobDescription) -> JobNeeds:
    """Return the needs of a job; "ANY" among sites or platforms removes that restriction, as in DIRAC."""
    return JobNeeds(
        sites=_restriction(description.sites),
        banned_sites=tuple(sorted(folded_set(description.banned_sites))),
        platforms=_restriction(description.platforms),
        cpu_time_s=_seconds(description.cpu_time),
        cpus=description.request_cpus,
        memory_mib=description.request_memory_mib,
        disk_mib=description.request_disk_mib,
        gpus=description.request_gpus,
        wall_time_s=_seconds(description.wall_time),
    )


def _seconds(length: timedelta | None) -> Amount | None:
    """Return a length in seconds; whole seconds as an integer, so that equal lengths have one form."""
    seconds = None if length is None else length.total_seconds()
    return int(seconds) if seconds is not None and seconds.is_integer() else seconds


def _restriction(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(folded_set(restricting_names(names))))


def restricting_names(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names of sites or platforms as typed, or none if "ANY" is one of them."""
    given = tuple(names)
    return () if _ANY in folded_set(given) else given
