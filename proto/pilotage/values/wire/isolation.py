"""Levels of isolation ↔ wire."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from pilotage.errors import InvalidInputError, Violation
from pilotage.values.isolation import Isolation

LEVELS: Mapping[str, Isolation] = MappingProxyType({"": Isolation.NONE, **{level.value: level for level in Isolation}})
"""The levels by their texts; a pilot of an earlier release reports none."""


def isolation_from_wire(text: str) -> Isolation:
    """Return the level of a text; raises InvalidInputError."""
    level = LEVELS.get(text)
    if level is None:
        raise InvalidInputError(Violation("", f'"{text:.40}" is none of the levels {", ".join(Isolation)}'))
    return level
