"""Commands that show what jobs have written and what has happened to them."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from pilotage.errors import InvalidInputError, StateConflictError, Violation
from pilotage_client.api import Client
from pilotage_client.cli.options import (
    AS_JSON,
    PATIENCE,
    SOME_IDS,
    echo_job_heading,
    echo_json,
    for_each_job,
    retry_option,
    time_text,
    with_client,
)
from pilotage_client.cli.selection.bulk import ranges
from pilotage_client.cli.selection.filters import JobFilters, job_filters, selected_jobs
from pilotage_client.cli.show.outputs import OutputPartJson
from pilotage_client.cli.show.tables import echo_table
from pilotage_client.job_calls import LONGEST_POLL_S
from pilotage_client.models import FINAL_STATES, JobEvent, JobFile, OutputPart
from pilotage_client.retry import (
    RetryBudget,
    follow_output_until_final,
    follow_until_final,
)


@click.command()
@SOME_IDS
@job_filters
@click.option("--to", "folder", type=click.Path(path_type=Path, file_okay=False), help="Write the files there.")
@click.option("--file", "name", metavar="NAME", help="Only this file.")
@click.option("--list", "listed", is_flag=True, help="Only list the files.")
@click.option("--attempt", type=click.IntRange(min=1), help="That of this attempt. Default: the last one that ended.")
@AS_JSON
@with_client
@click.pass_context
def output(
    ctx: click.Context,
    client: Client,
    ids: Sequence[str],
    filters: JobFilters,
    folder: Path | None,
    name: str | None,
    listed: bool,
    attempt: int | None,
    as_json: bool,
) -> None:
    """Print the standard output of jobs that have ended, or fetch their output files to a folder.

    Of a job that was held, removed, evicted or killed these are what it had written; a note says so. The command
    "logs" shows the output of a running job.

    With several jobs each has a folder of its own below it, with the job's id as its name. The option --json lists the
    files, one a line. With --to it also writes them and adds their paths.
    """
    if folder is not None and listed:
        raise InvalidInputError(Violation("--list", "cannot be combined with --to"))
    jobs = selected_jobs(client, ids, filters)
    several = len(jobs) > 1

    def show(job_id: int) -> None:
        listing = client.output_listing(job_id, attempt or 0)
        files = list(listing.files)
        if listing.partial:
            note = f"the output of job {job_id} is partial: attempt {listing.attempt} was stopped ({listing.partial})"
            click.echo(f"pilotage: {note}", err=True)
        more = {"job": job_id} if several else {}
        if folder is not None:
            chosen, to = _chosen(files, job_id, name), folder / str(job_id) if several else folder
            _write_files(client, job_id, chosen, to, more, as_json=as_json)
            return
        if several and not as_json:
            echo_job_heading(job_id, is_first=job_id == jobs[0])
        if listed or as_json:
            _list_files(_chosen(files, job_id, name), more, as_json=as_json)
        elif name is not None:
            _print_files(client, job_id, _chosen(files, job_id, name))
        else:
            _print_standard_output(client, job_id, files)

    for_each_job(ctx, jobs, show)


def warn_truncated(files: Iterable[JobFile], job_id: int | None = None) -> None:
    """Warn on the standard error about truncated files; `job_id` names the job in the warning."""
    of_job = f" of job {job_id}" if job_id is not None else ""
    for file in files:
        if file.truncated:
            note = f"{file.name}{of_job} is truncated: the pilot cut it at {file.size} bytes"
            click.echo(f"pilotage: {note}", err=True)


def _chosen(files: list[JobFile], job_id: int, name: str | None) -> list[JobFile]:
    chosen = [file for file in files if name in (None, file.name)]
    if name is not None and not chosen:
        names = ", ".join(file.name for file in files)
        has = f"; it has {names}" if names else f", nor any other; see `pilotage why {job_id}`"
        raise StateConflictError(f"job {job_id} has no output file {name}{has}")
    return chosen


def _write_files(
    client: Client,
    job_id: int,
    files: list[JobFile],
    folder: Path,
    more: Mapping[str, Any],
    *,
    as_json: bool,
) -> None:
    """Write the files and print their paths; `more` goes before the keys of JSON."""
    for file, path in zip(files, client.fetch_files(job_id, files, folder), strict=True):
        if as_json:
            echo_json({**more, **_file_json(file), "path": str(path)})
        else:
            click.echo(path)
    warn_truncated(files)


def _list_files(files: list[JobFile], more: Mapping[str, Any], *, as_json: bool) -> None:
    if as_json:
        for file in files:
            echo_json({**more, **_file_json(file)})
        return
    rows = ((file.name, file.size, "yes" if file.truncated else "") for file in files)
    echo_table(("NAME", "BYTES", "TRUNCATED"), rows, empty="no files")


def _file_json(file: JobFile) -> dict[str, Any]:
    return {"name": file.name, "size": file.size, "truncated": file.truncated}


def _print_standard_output(client: Client, job_id: int, files: list[JobFile]) -> None:
    """Print the job's standard output; if it is empty, point at the standard error."""
    out, err = client.standard_files(job_id)
    sizes = {file.name: file.size for file in files}
    if out != err and not sizes.get(out) and sizes.get(err):
        hint = f"its standard error has {sizes[err]} bytes: pilotage output {job_id} --file {shlex.quote(err)}"
        click.echo(f"pilotage: job {job_id} has printed nothing; {hint}", err=True)
    _print_files(client, job_id, _chosen(files, job_id, out))


def _print_files(client: Client, job_id: int, files: Iterable[JobFile]) -> None:
    """Print files piece by piece, whatever their size."""
    out = sys.stdout.buffer
    for file in files:
        for piece in client.stream_output(job_id, file):
            out.write(piece)
        out.flush()
        warn_truncated([file])


@click.command()
@SOME_IDS
@job_filters
@click.option("--follow", "-f", is_flag=True, help="Continue until the job has ended; of one job only.")
@PATIENCE
@AS_JSON
@with_client
@click.pass_context
def events(
    ctx: click.Context,
    client: Client,
    ids: Sequence[str],
    filters: JobFilters,
    follow: bool,
    patience: str,
    as_json: bool,
) -> None:
    """Show the events of jobs, oldest first."""
    retry = retry_option(patience)
    jobs = retry(lambda: selected_jobs(client, ids, filters))
    if follow and len(jobs) > 1:
        named = " ".join(ids) or "those with these options"
        raise InvalidInputError(Violation("--follow", f"follows one job, and {named} are {len(jobs)} jobs"))

    def show(job_id: int) -> None:
        if len(jobs) > 1 and not as_json:
            echo_job_heading(job_id, is_first=job_id == jobs[0])
        _show_events(client, job_id, retry, follow=follow, as_json=as_json)

    for_each_job(ctx, jobs, show)


def _show_events(client: Client, job_id: int, retry: RetryBudget, *, follow: bool, as_json: bool) -> None:
    found: Iterable[JobEvent] = follow_until_final(client, job_id, retry) if follow else client.events(job_id)
    last: JobEvent | None = None
    for last in found:
        if as_json:
            echo_json(last.as_json())
        else:
            cause = f"{last.cause} by {last.actor}"
            reason = f": {last.reason}" if last.reason not in ("", cause) else ""
            click.echo(f"{time_text(last.time)}  {last.after:<10} {cause}{reason}")
    is_final = last is not None and last.after in FINAL_STATES
    if is_final and not as_json:
        warn_truncated(retry(lambda: client.output_files(job_id)))
    elif follow and not is_final:
        _warn_futile(job_id)


def _warn_futile(job_id: int) -> None:
    click.echo(f"pilotage: job {job_id} cannot run as things stand; see `pilotage why {job_id}`", err=True)


@click.command()
@click.argument("job", metavar="[ID]", default="")
@job_filters
@click.option("--follow", "-f", is_flag=True, help="Continue until the job has ended.")
@click.option("--stderr", "error", is_flag=True, help="The standard error instead of the standard output.")
@PATIENCE
@AS_JSON
@with_client
def logs(
    client: Client, job: str, filters: JobFilters, follow: bool, error: bool, patience: str, as_json: bool
) -> None:
    """Print the standard output of a job, also while it runs.

    Of a running job these are the last 64 KiB so far, and with --follow all that it prints from then on. Of a job that
    has ended it is what was stored. The command "events" shows what happened to the job.

    --json prints it in parts, with their attempt and offset.
    """
    retry = retry_option(patience)
    found = retry(lambda: selected_jobs(client, [job] if job else [], filters))
    if len(found) > 1 and job:
        raise InvalidInputError(Violation(job, f"names {len(found)} jobs; name one, such as {job}.0"))
    if len(found) > 1:
        raise InvalidInputError(
            Violation("logs", f"shows one job, and {len(found)} meet the condition: {ranges(found)}")
        )
    job_id = found[0]
    if follow:
        if not _print_parts(follow_output_until_final(client, job_id, retry, error=error), as_json=as_json):
            _warn_futile(job_id)
    elif not _print_parts(client.follow_output(job_id, error=error, follow=False), as_json=as_json):
        why = f"the pilot of job {job_id} has sent nothing within {LONGEST_POLL_S:g} s"
        raise StateConflictError(f"{why}; --follow waits longer")


def _print_parts(parts: Iterable[OutputPart], *, as_json: bool) -> bool:
    """Print output as it comes, with notes on gaps and ends on the standard error; returns whether it is complete."""
    out, attempt, end = sys.stdout.buffer, 0, 0
    for part in parts:
        if part.attempt not in (0, attempt):  # 0 = no attempt runs
            if attempt:
                click.echo(f"pilotage: attempt {part.attempt} begins", err=True)
            attempt, end = part.attempt, 0
        if part.content and part.offset > end:
            click.echo(f"pilotage: {part.offset - end} bytes before this are left out", err=True)
        if not as_json:
            out.write(part.content)
            out.flush()
        elif part.content or part.partial:
            echo_json(_part_json(part))
        end = max(end, part.offset + len(part.content))
        if part.partial:
            click.echo(f"pilotage: attempt {part.attempt} was stopped ({part.partial})", err=True)
        if part.over:
            return True
    return False


def _part_json(part: OutputPart) -> OutputPartJson:
    text = part.content.decode(errors="replace")
    return {"attempt": part.attempt, "offset": part.offset, "text": text, "partial": part.partial or None}
