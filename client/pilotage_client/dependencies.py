"""The dependencies of a submission, from the names and ids that its descriptions give.

A text that begins with a digit, such as 12, 12.3 or 12.0-99, selects existing jobs. Any other text is the name of a job
of the same submission; if several have it, all of them are parents. If none has it, w12 is an existing workflow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from operator import attrgetter
from typing import Any

from pilotage.errors import Faults, InvalidInputError, Violation
from pilotage.job_description import JobDescription
from pilotage.text import did_you_mean
from pilotage.values.dependencies import Dependency, DependencyKind
from pilotage.values.selections import JobSelection
from pilotage_client.selections import names_workflow, read_selections

_parents = attrgetter(*(kind.value for kind in DependencyKind))


def resolve_dependencies(
    descriptions: Sequence[JobDescription], first: int = 0
) -> tuple[list[JobDescription], list[Dependency]]:
    """Return the descriptions without their dependencies, and these; `first` = the index of the first description.

    Raises
    ------
    InvalidInputError
        With all names that no description has.
    """
    waiting = {index for index, each in enumerate(descriptions, start=first) if any(_parents(each))}
    if not waiting:
        return list(descriptions), []
    by_name: dict[str, list[int]] = {}
    for index, description in enumerate(descriptions, start=first):
        by_name.setdefault(description.name, []).append(index)
    faults = Faults()
    dependencies: list[Dependency] = []
    for index, description in enumerate(descriptions, start=first):
        for kind in DependencyKind:
            names = parents_of(description, kind)
            with faults.within(f"descriptions[{index}].{kind}"):
                if names:
                    dependencies.append(_dependency(index, kind, names, by_name))
    faults.raise_any()
    without: dict[str, Any] = {kind.value: () for kind in DependencyKind}
    return [
        replace(each, **without) if index in waiting else each for index, each in enumerate(descriptions, start=first)
    ], dependencies


def parents_of(description: JobDescription, kind: DependencyKind) -> tuple[str, ...]:
    """Return the names and ids of the parents of this kind; programs may give one alone, a set, or ids as numbers."""
    given: Any = getattr(description, kind.value)
    names = (str(given),) if isinstance(given, str | int) else tuple(map(str, given))
    return tuple(sorted(names)) if isinstance(given, AbstractSet) else names


def check_parents(description: JobDescription, kind: DependencyKind, known: Mapping[str, Sequence[int]]) -> None:
    """Raise InvalidInputError if a parent is neither an id nor one of the known names."""
    _dependency(0, kind, parents_of(description, kind), known)


def read_parent(text: str) -> JobSelection:
    """Return the existing jobs that a text such as "12", "12.3" or "w12" selects; raises InvalidInputError."""
    (selection,) = read_selections([text.strip()])
    if isinstance(selection, range):
        why = "is a range of job ids; give 12.0-99 for jobs of cluster 12, or each job alone"
        raise InvalidInputError(Violation(text, why))
    return selection


def _dependency(
    index: int, kind: DependencyKind, parents: Sequence[str], by_name: Mapping[str, Sequence[int]]
) -> Dependency:
    existing: list[JobSelection] = []
    inner: list[int] = []
    faults = Faults()
    for text in parents:
        if text and text in by_name and not text[:1].isdigit():
            inner += by_name[text]
        elif text[:1].isdigit() or names_workflow(text):
            with faults.within(""):
                existing.append(read_parent(text))
        else:
            hint = did_you_mean(text, filter(None, by_name))
            faults.add("", f'no job of this submission has the name "{text}"{hint}')
    faults.raise_any(InvalidInputError)
    return Dependency(index, kind, tuple(existing), tuple(inner))
