"""Requirements and their submit pool: the canonical form that equal requirements share, and its hash.

Rules
-----
What people typed is kept for showing; the canonical form alone decides identity. A change of the canonical
form needs a new form version. Reserved keywords belong to the job, never to the pool.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NewType

from pilotage.comparisons import Normal, normal_form
from pilotage.errors import InvalidRequirementsError, Violation
from pilotage.folding import fold
from pilotage.job_description import Value
from pilotage.parameters import SHIPPED, ParameterDeclaration, ParameterDeclarations

FORM_VERSION = 1
"""The version of the canonical form; it leads the form, so another version gives other pool ids."""

PoolId = NewType("PoolId", str)
"""SHA-256 of a canonical form in 64 hex digits."""

RESERVED_KEYWORDS = frozenset({"site", "bannedsite", "bannedsites", "platform", "cputime"})
"""Folded names that say where a job goes by themselves and therefore stand beside the section."""

_SHORT = 12


@dataclass(frozen=True, slots=True)
class Requirement:
    """One line of a Requirements section: as it was typed, and its normal form under its declaration."""

    name: str
    asked: Value
    declaration: ParameterDeclaration
    normal: Normal


@dataclass(frozen=True, slots=True)
class Requirements:
    """What the jobs of one submit pool ask of a place; `items` are ordered by folded name."""

    vo: str
    items: tuple[Requirement, ...]

    @property
    def section(self) -> dict[str, Value]:
        """Return the section as it was typed; `read_requirements` makes the same requirements of it."""
        return {item.name: item.asked for item in self.items}

    def canonical_form(self) -> str:
        """Return the JSON text that equal requirements of one VO share in every process and release."""
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
    """Return the digits of a pool's id that people are shown."""
    return pool[:_SHORT]


def read_requirements(
    section: Mapping[str, object], vo: str, declarations: ParameterDeclarations = SHIPPED
) -> Requirements:
    """Return the requirements of a section: name → single value or list.

    An empty section asks nothing, as if there were none. Names that differ in letter case alone are one
    parameter, which may be stated again but not differently.

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


def _read_requirement(name: str, asked: object, declarations: ParameterDeclarations) -> Requirement:
    if not name.strip():
        raise InvalidRequirementsError(Violation("Requirements", f"{name!r} is not a parameter's name"))
    if fold(name) in RESERVED_KEYWORDS:
        why = "is a keyword of the job: state it beside the Requirements section, not in it"
        raise InvalidRequirementsError(Violation(name, why))
    value = _as_value(name, asked)
    meaning = declarations.meaning_of(name, value)
    return Requirement(name, value, meaning, normal_form(meaning, value))


def _as_value(name: str, asked: object) -> Value:
    if isinstance(asked, bool | int | float | str):
        return asked
    if isinstance(asked, list | tuple) and all(isinstance(one, bool | int | float | str) for one in asked):
        return tuple(asked)
    why = f"{asked!r} is neither a number, a text, true or false, nor a list of these"
    raise InvalidRequirementsError(Violation(name, why))
