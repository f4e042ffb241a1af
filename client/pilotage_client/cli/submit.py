"""The command that submits jobs."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import click

from pilotage.errors import Faults, InvalidInputError, Violation, WorldError
from pilotage.job_description import JobDescription
from pilotage.notifications import NewSubscription
from pilotage.telemetry import trace_id
from pilotage.text import count_text
from pilotage.values.dependencies import Dependency, DependencyKind
from pilotage.values.selections import JobSelection
from pilotage_client.api import Client
from pilotage_client.cli.grammar.job_options import (
    COMMAND,
    STANDARD_INPUT,
    CommandAfterDashes,
    JobOptions,
    with_job_options,
)
from pilotage_client.cli.jobs import show_ends
from pilotage_client.cli.notify import with_subscriptions
from pilotage_client.cli.options import (
    PATIENCE,
    echo_json,
    retry_option,
    with_client,
)
from pilotage_client.cli.resources import IGNORE_UNSUPPORTED, LANGUAGE
from pilotage_client.cli.selection.bulk import ranges
from pilotage_client.cli.show.progress import activity, wait_progress
from pilotage_client.cli.what_if.submission import echo_submission, number_of, show_dry_run
from pilotage_client.cli.workflows import RESCUE, read_workflow
from pilotage_client.connection import new_request_id
from pilotage_client.dependencies import read_parent, resolve_dependencies
from pilotage_client.job_sets import JobSet
from pilotage_client.readers import read_jobs_with_files
from pilotage_client.retry import (
    RetryBudget,
    wait_until_final,
)
from pilotage_client.templates import apply_template, find_template
from pilotage_client.user_log.follower import find_user_logs, user_log_of, write_user_logs

_DESCRIPTION = re.compile(r"descriptions\[(?P<index>\d+)\]\.(?P<field>.*)", re.ASCII)
_DEPENDENCY = re.compile(r"dependencies\[(?P<index>\d+)\]", re.ASCII)
_NAMED_DESCRIPTION = re.compile(r"descriptions\[(?P<index>\d+)\]", re.ASCII)


@click.command(cls=CommandAfterDashes)
@click.argument(
    "files",
    nargs=-1,
    metavar="[FILE...] [-- COMMAND [ARG...]]",
    type=click.Path(path_type=Path, allow_dash=True),
)
@with_job_options
@LANGUAGE
@click.option(
    "-a",
    "--append",
    "appended",
    multiple=True,
    metavar="'NAME = VALUE'",
    help="Add a statement before each queue statement of a submit file, as condor_submit -append. May be repeated.",
)
@click.option(
    "--template",
    "templates",
    multiple=True,
    metavar="NAME",
    help="Apply this job template, given by name or path. May be repeated.",
)
@click.option(
    "--templates",
    "folder",
    envvar="PILOTAGE_TEMPLATES",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="The folder of your site's job templates.",
)
@click.option("--after", multiple=True, metavar="ID", help="Wait until this job or cluster has started.")
@click.option("--after-ok", multiple=True, metavar="ID", help="Wait until this job or cluster is DONE.")
@click.option("--after-any", multiple=True, metavar="ID", help="Wait until this job or cluster has ended, however.")
@click.option(
    "--after-settled",
    multiple=True,
    metavar="ID",
    help="Wait until this job or cluster has ended, or cannot run because a parent has ended badly.",
)
@click.option("--workflow", metavar="NAME", help="All jobs are one workflow with this name.")
@RESCUE
@with_subscriptions
@click.option("--group", default="", help="Submit under this group (default: your first).")
@click.option(
    "--dry-run",
    "--validate-only",
    "dry_run",
    is_flag=True,
    help="Only check the jobs, and explain where they would run and when, as `why` does.",
)
@IGNORE_UNSUPPORTED
@click.option(
    "--request-id",
    default=None,
    metavar="ID",
    help="Repeat the submission with this id, which a failed one printed: the jobs are submitted once.",
)
@click.option(
    "--follow",
    "--wait",
    is_flag=True,
    help="Wait until the jobs have ended, as `wait` does, and write their user logs (log=).",
)
@PATIENCE
@click.option(
    "--json", "as_json", is_flag=True, help='One JSON object {"jobs": [ID...], "warnings": [...], "trace_id": ID}.'
)
@with_client
@click.pass_context
def submit(
    ctx: click.Context,
    /,
    client: Client,
    files: Sequence[Path],
    command: Sequence[str],
    options: JobOptions,
    language: str | None,
    appended: Sequence[str],
    templates: Sequence[str],
    folder: Path | None,
    group: str,
    dry_run: bool,
    ignore_unsupported: bool,
    request_id: str | None,
    follow: bool,
    patience: str,
    as_json: bool,
    workflow: str | None,
    rescues: Sequence[str],
    notify: Sequence[NewSubscription],
    **parents: Sequence[str],
) -> None:
    """Submit the jobs of job files, the workflow of a DAG file, or one command; all jobs or none.

    FILE - is the standard input. The options from --name to --site change the jobs of files too.
    """
    if follow and dry_run:
        raise InvalidInputError(Violation("--follow", "cannot be combined with --dry-run"))
    if command:
        read = _read_command(files, command, options, language=language, append=appended, rescue=rescues)
    else:
        read = _read_files(client, files, language, rescues, appended, ignore_unsupported=ignore_unsupported)
        read = _changed(read, options)
    by_file = _with_templates(read.by_file, templates, folder)
    descriptions, dependencies = _with_dependencies(list(by_file.values()), parents)
    if not descriptions:
        click.echo("nothing is left to submit: all nodes are done", err=True)
        return
    all_dependencies = [*dependencies, *read.dependencies]
    details: dict[str, Any] = {"group": group, "dependencies": all_dependencies, "notify": notify}
    details["workflow"] = workflow or read.workflow
    warnings = (*read.warnings, *_warnings_of_readers(by_file))
    in_files = _in_files(by_file, descriptions, all_dependencies, are_nodes=read.workflow is not None)
    if dry_run:
        with in_files:
            tried = client.dry_run(descriptions, **details)
        show_dry_run(tried, descriptions, warnings, as_json=as_json)
        return
    shown = _submission_shown(client, descriptions)
    with _unknown_outcome(request_id or new_request_id()) as request_id, in_files, shown:
        submitted = client.submit(descriptions, request_id=request_id, **details)
    names = _selection_of(descriptions, submitted)
    warnings = (*warnings, *submitted.warnings)
    _show_submission(submitted, names, warnings, as_json=as_json)
    if follow:
        _follow(ctx, client, submitted.job_ids, retry_option(patience), as_json=as_json)
    elif submitted.job_ids and any(user_log_of(each) for each in descriptions):
        click.echo(f"pilotage: to write the user logs: pilotage userlog {names}", err=True)


def _show_submission(submitted: JobSet, names: str, warnings: Sequence[str], *, as_json: bool) -> None:
    if not as_json:
        echo_submission(len(submitted.job_ids), warnings, f"submitted: {names}")
        return
    more = {"workflow": submitted.workflow} if submitted.workflow else {}
    echo_json({"jobs": list(submitted.job_ids), "warnings": list(warnings), "trace_id": trace_id()} | more)


def _read_command(files: Sequence[Path], command: Sequence[str], options: JobOptions, **of_files: object) -> _ReadFiles:
    """Return the job of a command; raises UsageError for files, and for options that say how they are read."""
    if files:
        raise click.UsageError("give either job files or -- COMMAND")
    if given := [f"--{name}" for name, value in of_files.items() if value]:
        raise click.UsageError(f"{', '.join(given)}: belongs to files, not to -- COMMAND")
    return _ReadFiles({COMMAND: [options.job_of(command)]})


def _with_templates(
    by_file: Mapping[Path, Sequence[JobDescription]], templates: Sequence[str], folder: Path | None
) -> dict[Path, list[JobDescription]]:
    """Return the jobs with the additions of templates; `folder` has those of the site."""
    found = {file: list(jobs) for file, jobs in by_file.items()}
    for template in templates:
        job_template = find_template(template, [folder] if folder else [])
        found = {file: [apply_template(job_template, each) for each in jobs] for file, jobs in found.items()}
    return found


@contextmanager
def _submission_shown(client: Client, descriptions: Sequence[JobDescription]) -> Iterator[None]:
    """Show at a terminal how far a submission is, and its uploads."""
    with activity(f"submitting {count_text(number_of(descriptions), 'job')}") as say:
        client.report_upload = lambda sent, total: say(f"uploading input files: {sent >> 20} of {total >> 20} MiB")
        yield


@contextmanager
def _unknown_outcome(request_id: str) -> Iterator[str]:
    """Say how to repeat a submission of which no answer came."""
    try:
        yield request_id
    except WorldError:
        repeat = f"repeat the command with --request-id {request_id}, which submits them once"
        click.echo(f"pilotage: it is unknown whether the jobs were submitted: {repeat}", err=True)
        raise


@contextmanager
def _in_files(
    by_file: Mapping[Path, Sequence[JobDescription]],
    descriptions: Sequence[JobDescription],
    dependencies: Sequence[Dependency],
    *,
    are_nodes: bool,
) -> Iterator[None]:
    """Name the files and jobs, and the nodes of a DAG, in the faults that the server finds."""
    try:
        yield
    except InvalidInputError as error:
        placed = (_in_file(each, by_file, are_nodes=are_nodes) for each in error.violations)
        named = (_without_indexes(each, descriptions, dependencies) for each in placed)
        raise InvalidInputError(*dict.fromkeys(named)) from error


def _selection_of(descriptions: Sequence[JobDescription], submitted: JobSet) -> str:
    """Return new jobs in the form that commands accept: "w12", or "12.0-99" for each cluster, "12" for a single job."""
    if submitted.workflow:
        return f"w{submitted.workflow}"
    return " ".join(_cluster_names(descriptions, submitted.job_ids))


def _cluster_names(descriptions: Sequence[JobDescription], ids: Sequence[int]) -> Iterator[str]:
    sizes: list[int] = []
    for description in descriptions if ids else ():
        if not description.continues_cluster:
            sizes.append(0)
        sizes[-1] += description.count or 1
    ends = accumulate(sizes)
    for size, end in zip(sizes, ends, strict=True):
        yield f"{ids[end - size]}.0-{size - 1}" if size > 1 else str(ids[end - 1])


def _follow(ctx: click.Context, client: Client, job_ids: Sequence[int], retry: RetryBudget, *, as_json: bool) -> None:
    """Write the user logs of new jobs, if they name some, and wait until the jobs have ended."""
    again = "wait"
    try:
        jobs = retry(lambda: client.jobs(job_ids))
        if logs := retry(lambda: find_user_logs(client, jobs)):
            again = "userlog"
            write_user_logs(client, jobs, logs, retry)
        with wait_progress() as show:
            finished = wait_until_final(client, job_ids, retry, show=show)
    except KeyboardInterrupt:
        click.echo(f"pilotage: the jobs go on; to follow them again: pilotage {again} {ranges(job_ids)}", err=True)
        raise
    show_ends(ctx, finished, as_json=as_json)


@dataclass(frozen=True, slots=True)
class _ReadFiles:
    """The jobs of files; of a DAG also their dependencies and the name of the workflow."""

    by_file: dict[Path, list[JobDescription]]
    dependencies: tuple[Dependency, ...] = ()
    workflow: str | None = None
    warnings: tuple[str, ...] = ()


def _read_files(
    client: Client,
    files: Sequence[Path],
    language: str | None,
    rescues: Sequence[str],
    appended: Sequence[str],
    *,
    ignore_unsupported: bool,
) -> _ReadFiles:
    """Return the jobs of job files, or of one DAG; raises InvalidInputError with the faults of all files."""
    if not files:
        raise click.UsageError("give job files (- = the standard input), or -- COMMAND")
    stored = [file for file in files if str(file) != STANDARD_INPUT]
    with activity("reading the job files"):
        dag = read_workflow(client, stored, language, rescues, ignore_unsupported=ignore_unsupported)
        if dag is None:
            return _ReadFiles(_read_all(files, language, appended, ignore_unsupported))
    if len(files) > 1:
        raise InvalidInputError(Violation(str(stored[0]), "a DAG is submitted alone; SPLICE puts several into one"))
    if appended:
        raise InvalidInputError(Violation("--append", "cannot be combined with a DAG file; see its VARS"))
    return _ReadFiles({files[0]: list(dag.descriptions)}, dag.dependencies, dag.name, dag.warnings)


def _changed(read: _ReadFiles, options: JobOptions) -> _ReadFiles:
    """Return the jobs of files with the changes that options make."""
    if not options.changes and not options.keys:
        return read
    if read.workflow is not None:
        raise click.UsageError("options that describe a job do not go with a DAG file; see its VARS")
    options.refuse_for([job for jobs in read.by_file.values() for job in jobs])
    return replace(read, by_file={file: [*map(options.changed, jobs)] for file, jobs in read.by_file.items()})


def _read_all(
    files: Iterable[Path], language: str | None, appended: Sequence[str], ignore_unsupported: bool
) -> dict[Path, list[JobDescription]]:
    """Return the jobs of all files; raises ReadError or InvalidInputError with the faults of all files."""
    by_file: dict[Path, list[JobDescription]] = {}
    errors: list[InvalidInputError] = []
    for file in files:
        try:
            text = sys.stdin.read() if str(file) == STANDARD_INPUT else None
            named = file if text is None else Path("standard input")
            by_file[named] = read_jobs_with_files(
                named, language=language, ignore_unsupported=ignore_unsupported, appended=appended, text=text
            )
        except InvalidInputError as error:
            errors.append(error)
    if len(errors) > 1:
        raise InvalidInputError(*(violation for error in errors for violation in error.violations))
    if errors:
        raise errors[0]
    return by_file


def _in_file(violation: Violation, by_file: Mapping[Path, Sequence[JobDescription]], *, are_nodes: bool) -> Violation:
    """Return a fault that the server found in `descriptions[N]` with the file of that description in its place."""
    found = _DESCRIPTION.fullmatch(violation.where)
    if found is None:
        return violation
    index = int(found["index"])
    for file, descriptions in by_file.items():
        if index < len(descriptions):
            job = f"job {index + 1}: " if len(descriptions) > 1 else ""
            if are_nodes:
                job = f"node {descriptions[index].name}: "
            return Violation(f"{file}: {job}{found['field']}", violation.why)
        index -= len(descriptions)
    return violation


def _without_indexes(
    violation: Violation, descriptions: Sequence[JobDescription], dependencies: Sequence[Dependency]
) -> Violation:
    """Return a fault of dependencies with their kind, and with names of jobs, in place of indexes."""

    def name(found: re.Match[str]) -> str:
        index = int(found["index"])
        return descriptions[index].name or f"job {index + 1}"

    dependency = _DEPENDENCY.match(violation.where)
    where = violation.where if dependency is None else dependencies[int(dependency["index"])].kind.value
    return Violation(where, _NAMED_DESCRIPTION.sub(name, violation.why))


def _with_dependencies(
    files: Sequence[Sequence[JobDescription]], parents: Mapping[str, Sequence[str]]
) -> tuple[list[JobDescription], list[Dependency]]:
    """Return all descriptions and their dependencies.

    Names are those of the same file; `parents` are of all jobs, by kind.
    """
    descriptions: list[JobDescription] = []
    dependencies: list[Dependency] = []
    for jobs in files:
        resolved, named = resolve_dependencies(jobs, len(descriptions))
        descriptions += resolved
        dependencies += named
    faults = Faults()
    for kind in DependencyKind:
        existing: list[JobSelection] = []
        for text in parents[kind.value]:
            with faults.within(""):
                existing.append(read_parent(text))
        if existing:
            dependencies += (Dependency(index, kind, tuple(existing)) for index in range(len(descriptions)))
    faults.raise_any()
    return descriptions, dependencies


def _warnings_of_readers(by_file: Mapping[Path, Sequence[JobDescription]]) -> Iterator[str]:
    """Yield the warnings of the readers, each once a file."""
    for file, descriptions in by_file.items():
        for warning in dict.fromkeys(warning for each in descriptions for warning in each.warnings):
            yield f"{file}: {warning}"
