"""The texts of one job: the macros of its array filled in, and the environment that every job gets.

Rules
-----
What a macro means is `pilotage.job_macros`; here is decided which texts of a job have them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pilotage.job_description import JobDescription, Value
from pilotage.job_macros import render_text
from pilotage_server.core.job_record import JobRecord


def render(description: JobDescription, job: JobRecord) -> JobDescription:
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
        environment={key: text(value) for key, value in description.environment.items()} | _numbers(job),
        stdin=name(description.stdin),
        stdout=name(description.stdout),
        stderr=name(description.stderr),
        input_files=tuple(replace(file, name=text(file.name)) for file in description.input_files),
        output_files=tuple(text(pattern) for pattern in description.output_files),
        attributes=_attributes(description.attributes, job),
        count=None,
    )


def _numbers(job: JobRecord) -> dict[str, str]:
    return {
        "PILOTAGE_JOB_ID": str(job.id),
        "PILOTAGE_CLUSTER_ID": str(job.cluster),
        "PILOTAGE_ARRAY_INDEX": str(job.process),
        "PILOTAGE_ATTEMPT": str(job.attempt),
        "PILOTAGE_OWNER": job.owner,
        "PILOTAGE_VO": job.vo,
        "PILOTAGE_GROUP": job.group,
    }


def _attributes(attributes: Mapping[str, Value], job: JobRecord) -> dict[str, Value]:
    return {
        name: render_text(value, job.cluster, job.process) if isinstance(value, str) else value
        for name, value in attributes.items()
    }
