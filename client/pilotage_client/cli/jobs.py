"""Commands about jobs: submit, edit, status, changes, output, and the commands that wait for jobs."""

from __future__ import annotations

import math
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import click

from pilotage.errors import Faults, InvalidInputError, StateConflictError, Violation, WorldError
from pilotage.job_description import JobDescription
from pilotage.units import parse_duration
from pilotage.v1 import job_service_pb2, jobs_pb2
from pilotage.values.dependencies import Dependency, DependencyKind, ParentJobs, parse_parent
from pilotage.values.jobs import ChangeResult
from pilotage_client.api import LONGEST_POLL_S, Client
from pilotage_client.cli.options import (
    AS_JSON,
    FAILED,
    IDS,
    ad_as_json,
    echo_json,
    echo_table,
    job_ids,
    long_form,
    time_text,
    with_client,
)
from pilotage_client.cli.resources import LANGUAGE
from pilotage_client.connection import new_request_id
from pilotage_client.dependencies import resolve_dependencies
from pilotage_client.models import FINAL_STATES, JobEvent, JobStatus, state_name
from pilotage_client.readers import read_jobs_with_files
from pilotage_client.retry import (
    DEFAULT_RETRY_S,
    RetryBudget,
    follow_output_until_final,
    follow_until_final,
    wait_until_final,
)
from pilotage_client.templates import apply_template, find_template, with_change


@click.command()
@click.argument("job", metavar="ID")
@click.option("--to", "folder", type=click.Path(path_type=Path, file_okay=False), help="Write the files there.")
@click.option("--file", "name", metavar="NAME", help="Only this file.")
@click.option("--list", "listed", is_flag=True, help="Only list the files.")
@AS_JSON
@with_client
def output(client: Client, job: str, folder: Path | None, name: str | None, listed: bool, as_json: bool) -> None:
    """Print the standard output of a job that has ended, or fetch its output files to a folder.

    Of a job that was held, removed, evicted or killed these are what it had written; a note says so. The command
    "logs" shows the output of a running job.

    --json lists the files, one a line; with --to it also writes them and adds their paths.
    """
    if folder is not None and listed:
        raise InvalidInputError(Violation("--list", "cannot be combined with --to"))
    job_id = job_ids([job])[0]
    listing = client.output_listing(job_id)
    files = list(listing.files)
    if listing.partial:
        note = f"the output of job {job_id} is partial: attempt {listing.attempt} was stopped ({listing.partial})"
        click.echo(f"pilotage: {note}", err=True)
    if folder is not None:
        _write_files(client, job_id, _chosen(files, job_id, name), folder, as_json=as_json)
    elif listed or as_json:
        _list_files(_chosen(files, job_id, name), as_json=as_json)
    elif name is not None:
        _print_files(client, job_id, _chosen(files, job_id, name))
    else:
        _print_standard_output(client, job_id, files)


def warn_truncated(files: Iterable[jobs_pb2.OutputFile], job_id: int | None = None) -> None:
    """Warn on the standard error about truncated files; `job_id` names the job in the warning."""
    of_job = f" of job {job_id}" if job_id is not None else ""
    for file in files:
        if file.truncated:
            note = f"{file.name}{of_job} is truncated: the pilot cut it at {file.size} bytes"
            click.echo(f"pilotage: {note}", err=True)


def _chosen(files: list[jobs_pb2.OutputFile], job_id: int, name: str | None) -> list[jobs_pb2.OutputFile]:
    chosen = [file for file in files if name in (None, file.name)]
    if name is not None and not chosen:
        names = ", ".join(file.name for file in files)
        raise StateConflictError(f"job {job_id} has no output file {name}" + (f"; it has {names}" if names else " yet"))
    return chosen


def _write_files(client: Client, job_id: int, files: list[jobs_pb2.OutputFile], folder: Path, *, as_json: bool) -> None:
    for file, path in zip(files, client.fetch_files(job_id, files, folder), strict=True):
        if as_json:
            echo_json({**_file_json(file), "path": str(path)})
        else:
            click.echo(path)
    warn_truncated(files)


def _list_files(files: list[jobs_pb2.OutputFile], *, as_json: bool) -> None:
    if as_json:
        for file in files:
            echo_json(_file_json(file))
        return
    rows = ((file.name, file.size, "yes" if file.truncated else "") for file in files)
    echo_table(("NAME", "BYTES", "TRUNCATED"), rows, empty="no files")


def _file_json(file: jobs_pb2.OutputFile) -> dict[str, Any]:
    return {"name": file.name, "size": file.size, "truncated": file.truncated}


def _print_standard_output(client: Client, job_id: int, files: list[jobs_pb2.OutputFile]) -> None:
    """Print the job's standard output; if it is empty, point at the standard error."""
    out, err = client.standard_files(job_id)
    sizes = {file.name: file.size for file in files}
    if out != err and not sizes.get(out) and sizes.get(err):
        hint = f"its standard error has {sizes[err]} bytes: pilotage output {job_id} --file {shlex.quote(err)}"
        click.echo(f"pilotage: job {job_id} has printed nothing; {hint}", err=True)
    _print_files(client, job_id, _chosen(files, job_id, out))


def _print_files(client: Client, job_id: int, files: Iterable[jobs_pb2.OutputFile]) -> None:
    """Print files piece by piece, whatever their size."""
    out = sys.stdout.buffer
    for file in files:
        for piece in client.stream_output(job_id, file):
            out.write(piece)
        out.flush()
        warn_truncated([file])


DEFAULT_LIMIT = 100
"""The number of jobs that `status` shows without ids."""
MAX_OUTPUT_CHECKS = 20
"""The largest number of jobs whose output files `status` checks, with a call for each."""

STATES = tuple(state_name(number) for number in jobs_pb2.JobState.values() if number)


@click.command()
@click.argument("ids", nargs=-1, metavar="[ID...]")
@click.option("--state", "states", multiple=True, type=click.Choice(STATES, case_sensitive=False), help="Only these.")
@click.option("--owner", default="", help='Only jobs of this owner; "*" = all that you may see. Default: you.')
@click.option("--pool", default="", help="Only jobs of this pool (its whole id).")
@click.option(
    "--limit", type=click.IntRange(min=0), help=f"Only the newest N; 0 = all. Default: {DEFAULT_LIMIT}, with --json 0."
)
@AS_JSON
@with_client
def status(
    client: Client, ids: Sequence[str], states: Sequence[str], owner: str, pool: str, limit: int | None, as_json: bool
) -> None:
    """Show the state of jobs: of the given ones, or of yours."""
    most = limit if limit is not None else 0 if as_json else DEFAULT_LIMIT
    jobs: Iterable[JobStatus]
    if ids:
        jobs = client.jobs(job_ids(ids))
    elif most:
        jobs = _newest(client.list_jobs(states=states, owner=owner, pool=pool, newest_first=True), most)
    else:
        jobs = client.list_jobs(states=states, owner=owner, pool=pool)
    if as_json:
        for job in jobs:
            echo_json(job.as_json())
        return
    shown = list(jobs)
    headings = ("ID", "NAME", "STATE", "WHERE", "ATTEMPT", "EXIT", "SUBMITTED", "REASON")
    echo_table(headings, (_status_row(job) for job in shown), empty="no jobs")
    if ids and len(shown) <= MAX_OUTPUT_CHECKS:
        for each in shown:
            if each.attempt:
                warn_truncated(client.output_files(each.id), each.id)


def _newest(newest_first: Iterator[JobStatus], limit: int) -> list[JobStatus]:
    """Return the first `limit` jobs, oldest first; prints a note if there are more."""
    newest = list(islice(newest_first, limit + 1))
    if len(newest) > limit:
        click.echo(f"Showing the newest {limit} jobs; --limit 0 shows all, --state RUNNING the running.", err=True)
    return newest[limit - 1 :: -1]


def _status_row(job: JobStatus) -> tuple[object, ...]:
    where = "/".join(part for part in (job.site, job.ce, job.queue) if part)
    return (
        job.id,
        job.name,
        job.state,
        where,
        job.attempt or "",
        job.exit_code,
        time_text(job.submitted),
        job.reason,
    )


@click.command()
@click.argument("job", metavar="ID")
@click.option("--json", "as_json", is_flag=True, help="One JSON object with the attributes; expressions as text.")
@with_client
def ad(client: Client, job: str, as_json: bool) -> None:
    """Print a job's ClassAd, as `condor_q -long` does."""
    text = client.ad(job_ids([job])[0])
    if as_json:
        echo_json(ad_as_json(text))
    else:
        click.echo(long_form(text))


def _change(
    name: str, help_text: str, act: Callable[[Client, Sequence[int], str], list[ChangeResult]]
) -> click.Command:
    @click.command(name=name, help=help_text)
    @IDS
    @click.option("--reason", default="", help="The reason; stored with the job.")
    @AS_JSON
    @with_client
    @click.pass_context
    def command(ctx: click.Context, client: Client, ids: Sequence[str], reason: str, as_json: bool) -> None:
        results = act(client, job_ids(ids), reason)
        for result in results:
            if as_json:
                echo_json({"id": result.job_id, "state": result.state, "refusal": result.refusal or None})
            elif result.refusal:
                click.echo(f"pilotage: {result.refusal}", err=True)
            else:
                click.echo(f"job {result.job_id} is {result.state}")
        if any(result.refusal for result in results):
            ctx.exit(FAILED)

    return command


remove = _change("remove", "Remove jobs; running ones are killed.", Client.remove)
hold = _change("hold", "Hold jobs until they are released; running ones are killed.", Client.hold)
release = _change("release", "Return held jobs to the queue.", Client.release)
reschedule = _change("reschedule", "Return jobs to the queue with a new count of attempts.", Client.reschedule)


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=click.Path(path_type=Path))
@LANGUAGE
@click.option("--template", metavar="NAME", help="Apply this job template, given by name or path.")
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
@click.option("--group", default="", help="Submit under this group (default: your first).")
@click.option("--validate-only", is_flag=True, help="Only check the jobs.")
@click.option(
    "--request-id",
    default=None,
    metavar="ID",
    help="Repeat the submission with this id, which a failed one printed: the jobs are submitted once.",
)
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
    request_id: str | None,
    as_json: bool,
    **parents: Sequence[str],
) -> None:
    """Submit the jobs of job files, all or none."""
    by_file = {file: read_jobs_with_files(file, language=language) for file in files}
    if template is not None:
        job_template = find_template(template, [folder] if folder else [])
        by_file = {file: [apply_template(job_template, each) for each in jobs] for file, jobs in by_file.items()}
    descriptions, dependencies = _with_dependencies([by_file[file] for file in files], parents)
    request_id = request_id or new_request_id()
    try:
        submitted = client.submit(
            descriptions,
            group=group,
            validate_only=validate_only,
            request_id=request_id,
            dependencies=dependencies,
        )
    except WorldError:
        if not validate_only:
            repeat = f"repeat the command with --request-id {request_id}, which submits them once"
            click.echo(f"pilotage: it is unknown whether the jobs were submitted: {repeat}", err=True)
        raise
    warnings = (*_warnings_of_readers(by_file), *submitted.warnings)
    if as_json:
        echo_json({"jobs": list(submitted.job_ids), "warnings": list(warnings)})
        return
    for warning in warnings:
        click.echo(f"warning: {warning}", err=True)
    number = sum(each.count or 1 for each in descriptions) if validate_only else len(submitted.job_ids)
    jobs = f"{number} job{'s' if number != 1 else ''}"
    click.echo(f"{jobs} would be submitted" if validate_only else f"{jobs} submitted: {ranges(submitted.job_ids)}")


def _with_dependencies(
    files: Sequence[Sequence[JobDescription]], parents: Mapping[str, Sequence[str]]
) -> tuple[list[JobDescription], list[Dependency]]:
    """Return all descriptions and their dependencies: names are those of the same file, `parents` are of all jobs."""
    descriptions: list[JobDescription] = []
    dependencies: list[Dependency] = []
    for jobs in files:
        resolved, named = resolve_dependencies(jobs, len(descriptions))
        descriptions += resolved
        dependencies += named
    faults = Faults()
    for kind in DependencyKind:
        existing: list[ParentJobs] = []
        for text in parents[kind.value]:
            with faults.within(f"--{kind.value.replace('_', '-')}"):
                existing.append(parse_parent(text))
        if existing:
            dependencies += (Dependency(index, kind, tuple(existing)) for index in range(len(descriptions)))
    faults.raise_any()
    return descriptions, dependencies


def _warnings_of_readers(by_file: Mapping[Path, Sequence[JobDescription]]) -> Iterator[str]:
    """Yield the warnings of the readers, each once a file."""
    for file, descriptions in by_file.items():
        for warning in dict.fromkeys(warning for each in descriptions for warning in each.warnings):
            yield f"{file}: {warning}"


def ranges(ids: Sequence[int]) -> str:
    """Return ids in the form that commands accept: "3-7 9"."""
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
    """Change the description of a waiting or held job.

    For example: --set priority=5 --set request_memory="2 GB" --set requirements.Memory=4000. An empty value unsets a
    field: with --set sites= the job may run at any site.
    """
    job_id = job_ids([job])[0]
    description = client.description(job_id)
    for change in changes:
        description = with_change(description, change)
    status, warnings = client.edit(job_id, description)
    for warning in warnings:
        click.echo(f"warning: {warning}", err=True)
    click.echo(f"job {status.id} is {status.state}")


PATIENCE = click.option(
    "--patience",
    default=f"{DEFAULT_RETRY_S / 60:.0f} min",
    show_default=True,
    metavar="TIME",
    help="How long to retry while the server cannot be reached.",
)


def retry_option(text: str) -> RetryBudget:
    """Return the retries of the option --patience; they are reported on the standard error."""
    seconds = parse_duration(text, "--patience").total_seconds()
    return RetryBudget(seconds, lambda line: click.echo(f"pilotage: {line}", err=True))


@click.command()
@IDS
@click.option("--timeout", "timeout_s", type=click.FloatRange(min=0), help="Give up after this number of seconds.")
@PATIENCE
@AS_JSON
@with_client
@click.pass_context
def wait(
    ctx: click.Context, client: Client, ids: Sequence[str], timeout_s: float | None, patience: str, as_json: bool
) -> None:
    """Wait until jobs have ended; exits 1 if a job did not end as DONE, or at the timeout."""
    wanted, retry = job_ids(ids), retry_option(patience)
    finished = wait_until_final(client, wanted, retry, math.inf if timeout_s is None else timeout_s)
    for job in finished:
        if as_json:
            echo_json(job.as_json())
        elif job.state != "DONE":
            click.echo(f"job {job.id} is {job.state}: {job.reason}", err=True)
    if any(job.state != "DONE" for job in finished):
        ctx.exit(FAILED)


@click.command()
@click.argument("job", metavar="ID")
@click.option("--follow", "-f", is_flag=True, help="Continue until the job has ended.")
@PATIENCE
@AS_JSON
@with_client
def events(client: Client, job: str, follow: bool, patience: str, as_json: bool) -> None:
    """Show the events of a job, oldest first."""
    job_id, retry = job_ids([job])[0], retry_option(patience)
    found: Iterable[JobEvent] = follow_until_final(client, job_id, retry) if follow else client.events(job_id)
    last: JobEvent | None = None
    for last in found:
        if as_json:
            echo_json(last.as_json())
        else:
            cause = f"{last.cause} by {last.actor}"
            reason = f": {last.reason}" if last.reason not in ("", cause) else ""
            click.echo(f"{time_text(last.time)}  {last.after:<10} {cause}{reason}")
    if last is not None and last.after in FINAL_STATES and not as_json:
        warn_truncated(retry(lambda: client.output_files(job_id)))


@click.command()
@click.argument("job", metavar="ID")
@click.option("--follow", "-f", is_flag=True, help="Continue until the job has ended.")
@click.option("--stderr", "error", is_flag=True, help="The standard error instead of the standard output.")
@PATIENCE
@with_client
def logs(client: Client, job: str, follow: bool, error: bool, patience: str) -> None:
    """Print the standard output of a job, also while it runs.

    Of a running job these are the last 64 KiB so far, and with --follow all that it prints from then on. Of a job that
    has ended it is what was stored. The command "events" shows what happened to the job.
    """
    job_id, retry = job_ids([job])[0], retry_option(patience)
    if follow:
        _print_parts(follow_output_until_final(client, job_id, retry, error=error))
    elif not _print_parts(client.follow_output(job_id, error=error, follow=False)):
        why = f"the pilot of job {job_id} has sent nothing within {LONGEST_POLL_S:g} s"
        raise StateConflictError(f"{why}; --follow waits longer")


def _print_parts(parts: Iterable[job_service_pb2.FollowOutputResponse]) -> bool:
    """Print output as it comes, with notes on gaps and ends on the standard error; returns whether it is complete."""
    out, attempt, end = sys.stdout.buffer, 0, 0
    for part in parts:
        if part.attempt != attempt:
            if attempt:
                click.echo(f"pilotage: attempt {part.attempt} begins", err=True)
            attempt, end = part.attempt, 0
        if part.content and part.offset > end:
            click.echo(f"pilotage: {part.offset - end} bytes before this are left out", err=True)
        out.write(part.content)
        out.flush()
        end = max(end, part.offset + len(part.content))
        if part.partial:
            click.echo(f"pilotage: attempt {part.attempt} was stopped ({part.partial})", err=True)
        if part.over:
            return True
    return False


COMMANDS = (submit, edit, status, ad, remove, hold, release, reschedule, wait, events, logs, output)
