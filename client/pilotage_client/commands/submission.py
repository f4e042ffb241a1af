"""Commands that bring jobs and change what they are: submit, edit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import click

from pilotage.job_description import JobDescription
from pilotage_client.api import Client
from pilotage_client.commands.offline import LANGUAGE
from pilotage_client.job_changes import changed
from pilotage_client.job_templates import applied, find_template
from pilotage_client.readers import read_jobs_with_files
from pilotage_client.running import echo_json, job_ids, with_client


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=click.Path(path_type=Path))
@LANGUAGE
@click.option("--template", metavar="NAME", help="A job template: a site's kind of job, or the path of one.")
@click.option(
    "--templates",
    "folder",
    envvar="PILOTAGE_TEMPLATES",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where your site's job templates are.",
)
@click.option("--group", default="", help="Submit under this group (default: your first).")
@click.option("--validate-only", is_flag=True, help="Only say what would happen.")
@click.option("--json", "as_json", is_flag=True, help='One JSON object {"jobs": [ID...], "warnings": [...]}.')
@with_client
def submit(
    client: Client,
    files: Sequence[Path],
    language: str | None,
    template: str | None,
    folder: Path | None,
    group: str,
    validate_only: bool,
    as_json: bool,
) -> None:
    """Submit the jobs of job files: all of them are taken, or none."""
    by_file = {file: read_jobs_with_files(file, language=language) for file in files}
    if template is not None:
        kind = find_template(template, [folder] if folder else [])
        by_file = {file: [applied(kind, each) for each in jobs] for file, jobs in by_file.items()}
    descriptions = [description for file in files for description in by_file[file]]
    submitted = client.submit(descriptions, group=group, validate_only=validate_only)
    warnings = (*_warnings_of_readers(by_file), *submitted.warnings)
    if as_json:
        echo_json({"jobs": list(submitted.job_ids), "warnings": list(warnings)})
        return
    for warning in warnings:
        click.echo(f"warning: {warning}", err=True)
    number = sum(each.count or 1 for each in descriptions) if validate_only else len(submitted.job_ids)
    jobs = f"{number} job{'s' if number != 1 else ''}"
    click.echo(f"{jobs} would be taken" if validate_only else f"{jobs} submitted: {ranges(submitted.job_ids)}")


def _warnings_of_readers(by_file: Mapping[Path, Sequence[JobDescription]]) -> Iterator[str]:
    """Yield what could not be honoured, each once a file, whatever the number of its jobs."""
    for file, descriptions in by_file.items():
        for warning in dict.fromkeys(warning for each in descriptions for warning in each.warnings):
            yield f"{file}: {warning}"


def ranges(ids: Sequence[int]) -> str:
    """Return ids for people, and for the commands that take ids: "3-7 9"."""
    runs: list[tuple[int, int]] = []
    for job_id in ids:
        if runs and job_id == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], job_id)
        else:
            runs.append((job_id, job_id))
    return " ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


@click.command()
@click.argument("job", metavar="ID")
@click.option("--set", "changes", multiple=True, required=True, metavar="NAME=VALUE", help="May be repeated.")
@with_client
def edit(client: Client, job: str, changes: Sequence[str]) -> None:
    """Change what a waiting or held job is.

    For example: --set priority=5 --set request_memory="2 GB" --set requirements.Memory=4000. An empty value takes
    a wish back: --set sites= lets the job go to any site.
    """
    job_id = job_ids([job])[0]
    description = client.description(job_id)
    for change in changes:
        description = changed(description, change)
    status, warnings = client.edit(job_id, description)
    for warning in warnings:
        click.echo(f"warning: {warning}", err=True)
    click.echo(f"job {status.id} is {status.state}")


COMMANDS = (submit, edit)
