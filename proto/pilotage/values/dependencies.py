"""Dependencies between jobs: what a job waits for before it may run."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import NamedTuple

from pilotage.errors import InvalidInputError, Violation


class DependencyKind(StrEnum):
    """What a parent must have done before its children may run; the values are those of job files and options."""

    AFTER = "after"
    """It has started, or has ended without a start."""
    AFTER_OK = "after_ok"
    """It is DONE."""
    AFTER_ANY = "after_any"
    """It has ended, however."""


class ParentJobs(NamedTuple):
    """An existing job, or with `process` None all jobs of an existing cluster; any other id names a job, too."""

    cluster: int
    process: int | None = None

    def __str__(self) -> str:
        """Return the name that `parse_parent` reads."""
        return str(self.cluster) if self.process is None else f"{self.cluster}.{self.process}"


class Dependency(NamedTuple):
    """The jobs of one description wait for parents: existing ones, and the jobs of other descriptions.

    `description` and `descriptions` are indexes in the submission, from 0.
    """

    description: int
    kind: DependencyKind
    parents: tuple[ParentJobs, ...] = ()
    descriptions: tuple[int, ...] = ()


_PARENT = re.compile(r"(?P<cluster>\d{1,18})(?:\.(?P<process>\d{1,9}))?", re.ASCII)


def parse_parent(text: str) -> ParentJobs:
    """Return the parent that a text such as "12" or "12.3" names; raises InvalidInputError."""
    found = _PARENT.fullmatch(text.strip())
    if found is None or int(found["cluster"]) == 0:
        raise InvalidInputError(Violation("", f'"{text[:80]}" names no job; write 12 for a cluster or a job, or 12.3'))
    return ParentJobs(int(found["cluster"]), None if found["process"] is None else int(found["process"]))
