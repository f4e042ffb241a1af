"""Dependencies between jobs: what a job waits for before it may run."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from pilotage.values.selections import JobSelection


class DependencyKind(StrEnum):
    """What a parent must have done before its children may run; the values are those of job files and options."""

    AFTER = "after"
    """It has started, or has ended without a start."""
    AFTER_OK = "after_ok"
    """It is DONE."""
    AFTER_ANY = "after_any"
    """It has ended, however."""
    AFTER_SETTLED = "after_settled"
    """It has ended, or is futile: it waits for a parent that has ended badly or is futile itself."""


class Dependency(NamedTuple):
    """The jobs of one description wait for parents: existing ones, and the jobs of other descriptions.

    `description` and `descriptions` are indexes in the submission, from 0. `ranges` have the first and the last index
    of many descriptions, whose jobs are one parent.
    """

    description: int
    kind: DependencyKind
    parents: tuple[JobSelection, ...] = ()
    descriptions: tuple[int, ...] = ()
    ranges: tuple[tuple[int, int], ...] = ()
