"""Job descriptions: groups of equal ones, macros filled in, and their stored form as canonical JSON.

Rules
-----
- The descriptions of a submission often differ only in arguments, name and the files of the standard streams. Such a
  group is handled once, through its `model`. If an expression or a policy may read the overrides (`may_see_overrides`),
  the group is split.
- Equal descriptions have equal texts. Defaults are left out, so a field that a later release adds reads as its
  default from older texts. Times are in seconds.
- `pilotage.job_description` defines macros; `render` decides which texts of a job have them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from datetime import timedelta
from functools import reduce
from itertools import compress, repeat
from operator import attrgetter, ne
from typing import Any, NamedTuple, Protocol, Self

from pilotage.classads.references import References, references
from pilotage.job_description import InputFile, JobDescription, JobPolicy, Value, render_text
from pilotage.jobs.environment import NUMBER_VARIABLES, OWNER_VARIABLES
from pilotage.text import folded_set


class Owned(Protocol):
    """Something with an owner."""

    @property
    def owner(self) -> str:
        """The owner."""

    @property
    def vo(self) -> str:
        """The owner's VO."""

    @property
    def group(self) -> str:
        """The owner's group."""


class Numbered(Owned, Protocol):
    """The values that a job's texts are filled in with: owner, id, index in its array, attempt."""

    @property
    def id(self) -> int:
        """The job's id."""

    @property
    def cluster(self) -> int:
        """The id of the first job of its array."""

    @property
    def process(self) -> int:
        """The index in the array, from 0."""

    @property
    def attempt(self) -> int:
        """The attempt."""


def render(description: JobDescription, job: Numbered) -> JobDescription:
    """Return the description of one job to run: macros filled in, environment complete, no count."""

    def text(value: str) -> str:
        return render_text(value, job.cluster, job.process)

    def name(value: str | None) -> str | None:
        return None if value is None else text(value)

    return replace(
        description,
        executable=text(description.executable),
        arguments=text(description.arguments),
        name=text(description.name),
        environment={key: text(value) for key, value in description.environment.items()}
        | dict(zip(NUMBERS, number_values(job), strict=True))
        | owner_environment(job),
        image=name(description.image),
        stdin=name(description.stdin),
        stdout=name(description.stdout),
        stderr=name(description.stderr),
        input_files=tuple(replace(file, name=text(file.name)) for file in description.input_files),
        output_files=tuple(text(pattern) for pattern in description.output_files),
        attributes=_attributes(description.attributes, job),
        count=None,
    )


NUMBERS = tuple(NUMBER_VARIABLES)
"""The names of the environment variables of `number_values`, in order."""


def number_values(job: Numbered) -> tuple[str, str, str, str]:
    """Return the values of the environment variables that identify the job."""
    return str(job.id), str(job.cluster), str(job.process), str(job.attempt)


def owner_environment(owned: Owned) -> dict[str, str]:
    """Return the environment variables of the job's owner."""
    return dict(zip(OWNER_VARIABLES, (owned.owner, owned.vo, owned.group), strict=True))


def _attributes(attributes: Mapping[str, Value], job: Numbered) -> dict[str, Value]:
    return {
        name: render_text(value, job.cluster, job.process) if isinstance(value, str) else value
        for name, value in attributes.items()
    }


OVERRIDE_ATTRIBUTES = folded_set(("Arguments", "JobBatchName", "Out", "Err"))
"""Folded names of the ad's attributes in which the descriptions of a group differ."""

_POLICIES = tuple(field.name for field in fields(JobPolicy))


class Overrides(NamedTuple):
    """The values of one description that differ from its group; `submission_index` = its position there, from 0.

    `continues_cluster` = its jobs continue the cluster of the description before it.
    """

    submission_index: int
    arguments: str
    name: str
    continues_cluster: bool = False
    stdout: str | None = None
    stderr: str | None = None

    @classmethod
    def of(cls, submission_index: int, description: JobDescription) -> Self:
        """Return the overrides of a description."""
        own = (getattr(description, name) for name in _OVERRIDDEN)
        return cls(
            submission_index,
            continues_cluster=description.continues_cluster,
            **dict(zip(_OVERRIDDEN, own, strict=True)),
        )


_OVERRIDDEN = ("arguments", "name", "stderr", "stdout")
"""The fields of descriptions that are overrides, in the order of the canonical text."""
_overridden = attrgetter(*_OVERRIDDEN)


@dataclass(frozen=True, slots=True)
class DescriptionGroup:
    """Descriptions that differ in their `overrides` only, of which there is at least one; `model` is one of them."""

    model: JobDescription
    overrides: Sequence[Overrides]

    @property
    def job_count(self) -> int:
        """The number of jobs of all descriptions."""
        return len(self.overrides) * (self.model.count or 1)

    def split(self) -> Iterator[DescriptionGroup]:
        """Yield each description as a group of its own."""
        for override in self.overrides:
            own = dict(zip(_OVERRIDDEN, _overridden(override), strict=True))
            yield DescriptionGroup(replace(self.model, **own), (override,))


def single_groups(descriptions: Iterable[JobDescription]) -> tuple[DescriptionGroup, ...]:
    """Return each description of a submission as a group of its own."""
    return tuple(
        DescriptionGroup(replace(each, continues_cluster=False), (Overrides.of(place, each),))
        for place, each in enumerate(descriptions)
    )


def may_see_overrides(referred: References) -> bool:
    """Whether expressions with these references may read the overrides of a group."""
    return referred.is_dynamic or not OVERRIDE_ATTRIBUTES.isdisjoint(referred.in_my | referred.target)


def description_references(description: JobDescription) -> References:
    """Return the references of all expressions of a description."""
    policies = (getattr(description.policy, name) for name in _POLICIES)
    texts = (description.requirements_expression, description.rank, description.retry_until, *policies)
    return reduce(References.__or__, (references(text) for text in texts if text), References())


_TIMES = frozenset({"cpu_time", "wall_time", "lease", "retry_delay"})
_LISTS = frozenset({"output_files", "sites", "banned_sites", "platforms", "warnings", "ignored", "retry_exit_codes"})
_SECTIONS = frozenset({"requirements", "attributes"})
_NAMES = tuple(field.name for field in fields(JobDescription))
_EMPTY = JobDescription(executable="")
_GAP = "\0"
"""A text that no description contains: zero characters are refused."""
_quoted = json.encoder.encode_basestring


def description_to_json(description: JobDescription) -> str:
    """Return the canonical text, which `description_from_json` reads."""
    values = {name: getattr(description, name) for name in _NAMES}
    given = {name: _plain(name, value) for name, value in values.items() if value != getattr(_EMPTY, name)}
    return json.dumps(given, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def canonical_texts(group: DescriptionGroup) -> Iterator[str]:
    """Yield the canonical text of each description of the group."""
    columns = {name: list(map(attrgetter(name), group.overrides)) for name in _OVERRIDDEN}
    varying = {name: column for name, column in columns.items() if len(set(column)) > 1}
    if not varying:
        yield from repeat(description_to_json(group.model), len(group.overrides))
        return
    defaults = [getattr(_EMPTY, name) for name in varying]
    templates: dict[tuple[bool, ...], str] = {}
    for values in zip(*varying.values(), strict=True):
        given = tuple(map(ne, values, defaults))
        if given not in templates:
            templates[given] = _template(group.model, dict(zip(varying, given, strict=True)))
        yield templates[given] % tuple(map(_quoted, compress(values, given)))


def _template(model: JobDescription, varying: Mapping[str, bool]) -> str:
    """Return the canonical text with "%s" for the values of varying overrides; True = it differs from its default."""
    own: dict[str, Any] = {name: _GAP if is_given else getattr(_EMPTY, name) for name, is_given in varying.items()}
    return description_to_json(replace(model, **own)).replace("%", "%%").replace(_quoted(_GAP), "%s")


def description_from_json(text: str) -> JobDescription:
    """Return the description of a canonical text."""
    given: dict[str, Any] = json.loads(text)
    return JobDescription(**{"executable": ""} | {name: _read(name, value) for name, value in given.items()})


def _plain(name: str, value: Any) -> Any:
    if name in _TIMES:
        return value / timedelta(microseconds=1) / 1e6
    if name == "input_files":
        return [asdict(file) for file in value]
    if name == "policy":
        return {name: text for name, text in asdict(value).items() if text is not None}
    return dict(value) if isinstance(value, Mapping) else value


def _read(name: str, value: Any) -> Any:
    if name in _TIMES:
        return timedelta(seconds=value)
    if name == "input_files":
        return tuple(InputFile(**file) for file in value)
    if name == "policy":
        return JobPolicy(**value)
    if name in _LISTS:
        return tuple(value)
    return _section(value) if name in _SECTIONS else value


def _section(section: Mapping[str, Any]) -> dict[str, Value]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in section.items()}
