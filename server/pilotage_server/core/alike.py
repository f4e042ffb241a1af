"""Descriptions of one submission that are alike: the jobs of a production differ in arguments and name alone.

Rules
-----
What is the same for all of them is decided once, on a model. That holds as long as nobody looks at what is each
one's own: where an expression or a policy may (`may_see_own`), they are looked at one by one (`apart`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import reduce
from typing import NamedTuple

from pilotage.classad_references import References, references
from pilotage.folding import folded_set
from pilotage.job_description import JobDescription, JobPolicy

OWN_ATTRIBUTES = folded_set(("Arguments", "JobBatchName"))
"""Folded names of the attributes of a job's ad that say what alike descriptions differ in."""

_POLICIES = tuple(field.name for field in fields(JobPolicy))


class Own(NamedTuple):
    """What one of alike descriptions has for itself; `place` = where it stands in its submission, from 0."""

    place: int
    arguments: str
    name: str


@dataclass(frozen=True, slots=True)
class Alike:
    """Descriptions that differ in nothing but `own`, which is never empty; `model` is one of them."""

    model: JobDescription
    own: Sequence[Own]

    @property
    def jobs(self) -> int:
        """How many jobs they ask for in all."""
        return len(self.own) * (self.model.count or 1)

    def apart(self) -> Iterator[Alike]:
        """Yield each description by itself."""
        for own in self.own:
            yield Alike(replace(self.model, arguments=own.arguments, name=own.name), (own,))


def alone(descriptions: Iterable[JobDescription]) -> tuple[Alike, ...]:
    """Return the descriptions of a submission, none of which is taken to be like another."""
    return tuple(Alike(each, (Own(place, each.arguments, each.name),)) for place, each in enumerate(descriptions))


def may_see_own(referred: References) -> bool:
    """Whether what refers to these may look at what alike descriptions differ in."""
    return referred.is_dynamic or not OWN_ATTRIBUTES.isdisjoint(referred.in_my | referred.target)


def references_of(description: JobDescription) -> References:
    """Return what all expressions of a description refer to."""
    policies = (getattr(description.policy, name) for name in _POLICIES)
    texts = (description.requirements_expression, description.rank, *policies)
    return reduce(References.__or__, (references(text) for text in texts if text), References())
