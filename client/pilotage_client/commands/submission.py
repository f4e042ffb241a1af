"""Commands that bring jobs and change what they are: submit, edit."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from pilotage.errors import InvalidInputError, Violation
from pilotage.folding import fold
from pilotage.job_description import JobDescription
from pilotage.parameters import SHIPPED
from pilotage.resources import parse_duration, parse_size_mib, parse_whole_number
from pilotage_client.api import Client
from pilotage_client.commands.offline import LANGUAGE
from pilotage_client.readers import read_jobs
from pilotage_client.readers.local_files import resolve_local_files
from pilotage_client.require_options import read_require_options
from pilotage_client.running import echo_json, job_ids, with_client


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=click.Path(path_type=Path))
@LANGUAGE
@click.option("--group", default="", help="Submit under this group (default: your first).")
@click.option("--validate-only", is_flag=True, help="Only say what would happen.")
@click.option("--json", "as_json", is_flag=True, help='One JSON object {"jobs": [ID...], "warnings": [...]}.')
@with_client
def submit(
    client: Client,
    files: Sequence[Path],
    language: str | None,
    group: str,
    validate_only: bool,
    as_json: bool,
) -> None:
    """Submit the jobs of job files: all of them are taken, or none."""
    descriptions = [description for file in files for description in _descriptions(file, language)]
    submitted = client.submit(descriptions, group=group, validate_only=validate_only)
    if as_json:
        echo_json({"jobs": list(submitted.job_ids), "warnings": list(submitted.warnings)})
        return
    for warning in submitted.warnings:
        click.echo(f"warning: {warning}", err=True)
    if validate_only:
        click.echo(f"{sum(description.count or 1 for description in descriptions)} jobs would be taken")
    else:
        number = len(submitted.job_ids)
        click.echo(f"{number} job{'s' if number != 1 else ''} submitted: {ranges(submitted.job_ids)}")


def _descriptions(file: Path, language: str | None) -> list[JobDescription]:
    return [resolve_local_files(each, file.parent) for each in read_jobs(file, language=language)]


def ranges(ids: Sequence[int]) -> str:
    """Return ids for people, and for the commands that take ids: "3-7 9"."""
    runs: list[tuple[int, int]] = []
    for job_id in ids:
        if runs and job_id == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], job_id)
        else:
            runs.append((job_id, job_id))
    return " ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


_TEXTS = ("executable", "arguments", "name", "stdin", "stdout", "stderr", "requirements_expression", "rank")
_LISTS = ("sites", "banned_sites", "platforms", "output_files")
_COUNTS = ("request_cpus", "request_gpus")
_SIZES = {"request_memory": "request_memory_mib", "request_disk": "request_disk_mib"}
_TIMES = ("cpu_time", "wall_time", "lease")


@click.command()
@click.argument("job", metavar="ID")
@click.option("--set", "changes", multiple=True, required=True, metavar="NAME=VALUE", help="May be repeated.")
@with_client
def edit(client: Client, job: str, changes: Sequence[str]) -> None:
    """Change a waiting or held job: --set priority=5 --set request_memory="2 GB" --set requirements.Memory=4000.

    An empty value takes a wish back: --set sites= lets the job go to any site.
    """
    job_id = job_ids([job])[0]
    description = client.description(job_id)
    for change in changes:
        description = changed(description, change)
    status, warnings = client.edit(job_id, description)
    for warning in warnings:
        click.echo(f"warning: {warning}", err=True)
    click.echo(f"job {status.id} is {status.state}")


def changed(description: JobDescription, change: str) -> JobDescription:
    """Return the description with one NAME=VALUE; raises InvalidInputError for an unknown name or a bad value."""
    name, equals, text = change.partition("=")
    name, text = name.strip(), text.strip()
    if not equals:
        raise InvalidInputError(Violation(change, "is no change; write NAME=VALUE"))
    if name.startswith("requirements."):
        return _with_requirement(description, name.removeprefix("requirements."), text)
    if name.startswith("environment."):
        variable = name.removeprefix("environment.")
        return dataclasses.replace(description, environment={**description.environment, variable: text})
    field, value = _field(name, text)
    return dataclasses.replace(description, **{field: value})


def _field(name: str, text: str) -> tuple[str, Any]:
    if name in _TEXTS:
        return name, text if text or name in {"executable", "arguments", "name"} else None
    if name in _LISTS:
        return name, tuple(item.strip() for item in text.split(",") if item.strip())
    if name == "priority":
        return name, parse_whole_number(text or 0, name)
    if name in _COUNTS:
        return name, parse_whole_number(text, name, least=0) if text else None
    if name in _SIZES:
        return _SIZES[name], parse_size_mib(text, name) if text else None
    if name in _TIMES:
        return name, parse_duration(text, name) if text else None
    known = ", ".join(
        (*_TEXTS, *_LISTS, *_COUNTS, *_SIZES, *_TIMES, "priority", "requirements.NAME", "environment.NAME")
    )
    raise InvalidInputError(Violation(name, f"cannot be changed; these can: {known}"))


def _with_requirement(description: JobDescription, name: str, text: str) -> JobDescription:
    section = dict(description.requirements or {})
    for present in [known for known in section if fold(known) == fold(name)]:
        del section[present]
    if text:
        section.update(read_require_options([f"{name}={text}"], SHIPPED))
    return dataclasses.replace(description, requirements=section or None)


COMMANDS = (submit, edit)
