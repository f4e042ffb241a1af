"""Declarations of parameters: type, unit, and inheritance.

Rules
-----
A declaration decides how a requirement is compared. For an undeclared parameter the type of the asked value decides.
Names are case-insensitive and keep the spelling of their declaration.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Self

from pilotage.job_description import Value
from pilotage.text import fold


class ParameterType(StrEnum):
    """How a requirement is compared with an offer."""

    CAPACITY = "capacity"
    """A number: offered ≥ asked."""

    VALUE = "value"
    """Each side is a value or a list; they have a common element."""

    TAGS = "tags"
    """All tags that are asked for are offered."""

    VERSION = "version"
    """Versions in their order: offered ≥ asked."""

    FLAG = "flag"
    """True or false: offered = asked."""


class Inherit(StrEnum):
    """How the values that several levels of the tree state are combined."""

    NEAREST = "nearest"
    UNITE = "unite"


@dataclass(frozen=True, slots=True)
class ParameterDeclaration:
    """The declaration of a parameter; `unit` is the unit of its plain numbers (None = no unit).

    `levels` are its only values, the strongest first: a requirement of one also accepts the stronger ones. None = any
    value.
    """

    name: str
    type: ParameterType
    unit: str | None = None
    inherit: Inherit = Inherit.NEAREST
    levels: tuple[str, ...] | None = None


class ParameterDeclarations:
    """A set of declarations; a later one replaces an earlier one of the same name."""

    __slots__ = ("_by_name",)

    def __init__(self, declarations: Iterable[ParameterDeclaration] = ()) -> None:
        self._by_name: Mapping[str, ParameterDeclaration] = MappingProxyType(
            {fold(declaration.name): declaration for declaration in declarations}
        )

    def __iter__(self) -> Iterator[ParameterDeclaration]:
        return iter(self._by_name.values())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ParameterDeclarations) and dict(self._by_name) == dict(other._by_name)

    def __hash__(self) -> int:
        return hash(frozenset(self._by_name.values()))

    def get(self, name: str) -> ParameterDeclaration | None:
        """Return the declaration of `name`; None = it is not declared."""
        return self._by_name.get(fold(name))

    def united(self) -> frozenset[str]:
        """Return the folded names of the parameters that are united along the path."""
        return frozenset(name for name, found in self._by_name.items() if found.inherit is Inherit.UNITE)

    def extended(self, declarations: Iterable[ParameterDeclaration]) -> Self:
        """Return these declarations with `declarations` added; the added ones win."""
        return type(self)((*self, *declarations))

    def declaration_of(self, name: str, value: Value) -> ParameterDeclaration:
        """Return the declaration of `name`; for an undeclared name, one derived from `value`."""
        return self.get(name) or ParameterDeclaration(name, undeclared_type(value))


def undeclared_type(value: Value) -> ParameterType:
    """Return the type of an undeclared value: numbers are capacities, booleans flags, all others values."""
    elements = value if isinstance(value, tuple) else (value,)
    if elements and all(isinstance(element, bool) for element in elements):
        return ParameterType.FLAG
    if elements and all(isinstance(element, int | float) and not isinstance(element, bool) for element in elements):
        return ParameterType.CAPACITY
    return ParameterType.VALUE


ISOLATION = "Isolation"
"""The parameter with the least isolation of payloads that the pilots of a queue promise."""

SHIPPED = ParameterDeclarations(
    (
        ParameterDeclaration("Memory", ParameterType.CAPACITY, "MiB"),
        ParameterDeclaration("Disk", ParameterType.CAPACITY, "MiB"),
        ParameterDeclaration("CPUs", ParameterType.CAPACITY),
        ParameterDeclaration("GPUs", ParameterType.CAPACITY),
        ParameterDeclaration("GPUMemory", ParameterType.CAPACITY, "MiB"),
        ParameterDeclaration("MaxWallTime", ParameterType.CAPACITY, "s"),
        ParameterDeclaration("Tags", ParameterType.TAGS),
        ParameterDeclaration("RequiredTags", ParameterType.TAGS),
        # The values of `pilotage.values.isolation.Isolation`.
        ParameterDeclaration(ISOLATION, ParameterType.VALUE, levels=("namespace", "uid", "owner", "none")),
    )
)
"""The built-in declarations, which a tree may extend."""
