"""The texts of one job: the macros of its array filled in, and the environment that every job gets.

Rules
-----
What a macro means is `pilotage.job_macros`; here is decided which texts of a job have them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol

from pilotage.job_description import JobDescription, Value
from pilotage.job_macros import render_text


class Owned(Protocol):
    """Who owns something."""

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
    """What a job's texts are filled in with: whose it is, its id, its place in its array, its attempt."""

    @property
    def id(self) -> int:
        """The job's id."""

    @property
    def cluster(self) -> int:
        """The id of the first job of its array."""

    @property
    def process(self) -> int:
        """Its place in the array, from 0."""

    @property
    def attempt(self) -> int:
        """The attempt."""


def render(description: JobDescription, job: Numbered) -> JobDescription:
    """Return what this one job is to run: macros filled in, its numbers in the environment, no count."""

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
        | dict(zip(NUMBERS, numbers(job), strict=True))
        | belongings(job),
        stdin=name(description.stdin),
        stdout=name(description.stdout),
        stderr=name(description.stderr),
        input_files=tuple(replace(file, name=text(file.name)) for file in description.input_files),
        output_files=tuple(text(pattern) for pattern in description.output_files),
        attributes=_attributes(description.attributes, job),
        count=None,
    )


NUMBERS = ("PILOTAGE_JOB_ID", "PILOTAGE_CLUSTER_ID", "PILOTAGE_ARRAY_INDEX", "PILOTAGE_ATTEMPT")
"""The names of `numbers`, in order."""


def numbers(job: Numbered) -> tuple[str, str, str, str]:
    """Return what the environment says of the one job."""
    return str(job.id), str(job.cluster), str(job.process), str(job.attempt)


def belongings(of: Owned) -> dict[str, str]:
    """Return what the environment says of whose a job is."""
    return {"PILOTAGE_OWNER": of.owner, "PILOTAGE_VO": of.vo, "PILOTAGE_GROUP": of.group}


def _attributes(attributes: Mapping[str, Value], job: Numbered) -> dict[str, Value]:
    return {
        name: render_text(value, job.cluster, job.process) if isinstance(value, str) else value
        for name, value in attributes.items()
    }
