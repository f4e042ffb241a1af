"""The texts of one job: the macros of its array filled in, and the environment that every job gets.

Rules
-----
Only the numbers of the job itself are filled in, so a rendered file name is as safe as the one that was
checked. `$(Cluster)` is the id of the array's first job, `$(Process)` the place in it (HTCondor manual,
condor_submit: the same names); letter case does not matter. Any other text stays as it is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from pilotage.job_description import JobDescription, Value
from pilotage_server.core.job_record import JobRecord

_MACRO = re.compile(r"\$\((?:(cluster|clusterid)|process|procid)\)", re.IGNORECASE)


def render_text(text: str, cluster: int, process: int) -> str:
    """Return the text with `$(Cluster)`, `$(ClusterId)`, `$(Process)` and `$(ProcId)` filled in."""
    if "$(" not in text:
        return text
    return _MACRO.sub(lambda macro: str(cluster if macro[1] else process), text)


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
