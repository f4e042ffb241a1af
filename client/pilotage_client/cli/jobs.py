"""Commands about jobs: submit, edit, changes, output, and the commands that wait for jobs."""

from __future__ import annotations

import math
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import click

from pilotage.clock import boot_time_s
from pilotage.errors import Faults, InvalidInputError, StateConflictError, Violation, WorldError
from pilotage.job_description import JobDescription
from pilotage.notifications import NewSubscription
from pilotage.units import parse_duration
from pilotage.v1 import job_service_pb2, jobs_pb2
from pilotage.values.dependencies import Dependency, DependencyKind
from pilotage.values.jobs import ChangeResult, SubmittedJobs
from pilotage.values.selections import JobSelection
from pilotage_client.api import LONGEST_POLL_S, Client
from pilotage_client.cli.notify import with_subscriptions
from pilotage_client.cli.options import (
    AS_JSON,
    FAILED,
    IDS,
    ad_as_json,
    echo_job_heading,
    echo_json,
    echo_table,
    for_each_job,
    long_form,
    time_text,
    with_client,
)
from pilotage_client.cli.resources import IGNORE_UNSUPPORTED, LANGUAGE
from pilotage_client.cli.workflows import RESCUE, read_workflow
from pilotage_client.connection import new_request_id
from pilotage_client.dependencies import read_parent, resolve_dependencies
from pilotage_client.models import FINAL_STATES, LIVE_STATES, STATES, JobEvent, JobStatus
from pilotage_client.readers import read_jobs_with_files
from pilotage_client.retry import (
    DEFAULT_RETRY_S,
    RetryBudget,
    follow_output_until_final,
    follow_until_final,
    wait_until_final,
)
from pilotage_client.selections import names_workflow
from pilotage_client.templates import apply_template, find_template, with_change
from pilotage_client.user_log.follower import find_user_logs, user_log_of, write_user_logs


@click.command()
@IDS
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
    folder: Path | None,
    name: str | None,
    listed: bool,
    attempt: int | None,
    as_json: bool,
) -> None:
    """Print the standard output of jobs that have ended, or fetch their output files to a folder.

    Of a job that was held, removed, evicted or killed these are what it had written; a note says so. The command
    "logs" shows the output of a running job.

    With several jobs each has a folder of its own below it, with the job's id as its name. --json lists the files, one
    a line; with --to it also writes them and adds their paths.
    """
    if folder is not None and listed:
        raise InvalidInputError(Violation("--list", "cannot be combined with --to"))
    jobs = client.find_jobs(ids).ids
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


def _write_files(
    client: Client,
    job_id: int,
    files: list[jobs_pb2.OutputFile],
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


def _list_files(files: list[jobs_pb2.OutputFile], more: Mapping[str, Any], *, as_json: bool) -> None:
    if as_json:
        for file in files:
            echo_json({**more, **_file_json(file)})
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


_DESCRIPTION = re.compile(r"descriptions\[(?P<index>\d+)\]\.(?P<field>.*)", re.ASCII)
_DEPENDENCY = re.compile(r"dependencies\[(?P<index>\d+)\]", re.ASCII)
_NAMED_DESCRIPTION = re.compile(r"descriptions\[(?P<index>\d+)\]", re.ASCII)


@click.command()
@IDS
@click.option(
    "--json", "as_json", is_flag=True, help="One JSON object a line with the attributes; expressions as text."
)
@with_client
@click.pass_context
def ad(ctx: click.Context, client: Client, ids: Sequence[str], as_json: bool) -> None:
    """Print the ClassAds of jobs, as `condor_q -long` does."""
    jobs = client.find_jobs(ids).ids

    def show(job_id: int) -> None:
        text = client.ad(job_id)
        if as_json:
            echo_json(ad_as_json(text))
            return
        if job_id != jobs[0]:
            click.echo()
        click.echo(long_form(text))

    for_each_job(ctx, jobs, show)


MOST_LINES = 20
"""The largest number of changed jobs that are printed one by one."""


def _change(
    name: str,
    help_text: str,
    act: Callable[[Client, Sequence[int], str], list[ChangeResult]],
    states: Sequence[str],
    states_of_workflows: Sequence[str] = (),
) -> click.Command:
    """Return the command of a change; of a whole cluster it changes the jobs in `states`.

    `states_of_workflows` are those of a workflow; empty = `states`.
    """

    @click.command(name=name, help=help_text)
    @IDS
    @click.option("--reason", default="", help="The reason; stored with the job.")
    @AS_JSON
    @with_client
    @click.pass_context
    def command(ctx: click.Context, client: Client, ids: Sequence[str], reason: str, as_json: bool) -> None:
        workflows = [each for each in ids if names_workflow(each)]
        found = (
            client.find_jobs(workflows, states=states_of_workflows or states),
            client.find_jobs([each for each in ids if each not in workflows], states=states),
        )
        jobs = list(dict.fromkeys(job for each in found for job in each.ids))
        if not jobs:
            clusters = [cluster for each in found for cluster in each.clusters]
            names = ", ".join(f"{'workflow' if each.workflow else 'cluster'} {each.selection}" for each in clusters)
            raise StateConflictError(f"{names} has no job that `{name}` can change")
        results = act(client, jobs, reason)
        if as_json:
            for result in results:
                echo_json({"id": result.job_id, "state": result.state, "refusal": result.refusal or None})
        else:
            _echo_changes(results)
        if any(result.refusal for result in results):
            ctx.exit(FAILED)

    return command


def _echo_changes(results: Sequence[ChangeResult]) -> None:
    """Print the state of each changed job, of many jobs in one line for each state; print each refusal."""
    ids_of: dict[str, list[int]] = {}
    for result in results:
        if result.refusal:
            click.echo(f"pilotage: {result.refusal}", err=True)
        elif len(results) <= MOST_LINES:
            click.echo(f"job {result.job_id} is {result.state}")
        else:
            ids_of.setdefault(result.state, []).append(result.job_id)
    for state, ids in ids_of.items():
        click.echo(f"{len(ids)} jobs are {state}: {ranges(ids)}")


_NOT_WAITING = tuple(state for state in STATES if state not in ("RECEIVED", "WAITING"))

remove = _change("remove", "Remove jobs; running ones are killed.", Client.remove, LIVE_STATES)
hold = _change(
    "hold",
    "Hold jobs until they are released; running ones are killed.",
    Client.hold,
    [state for state in LIVE_STATES if state != "HELD"],
)
release = _change("release", "Return held jobs to the queue.", Client.release, ["HELD"])
reschedule = _change(
    "reschedule",
    "Return jobs to the queue with a new count of attempts; of a workflow those that failed or were removed.",
    Client.reschedule,
    _NOT_WAITING,
    ["FAILED", "REMOVED"],
)


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
@click.option("--validate-only", is_flag=True, help="Only check the jobs.")
@IGNORE_UNSUPPORTED
@click.option(
    "--request-id",
    default=None,
    metavar="ID",
    help="Repeat the submission with this id, which a failed one printed: the jobs are submitted once.",
)
@click.option(
    "--follow", is_flag=True, help="Wait until the jobs have ended, as `wait` does, and write their user logs (log=)."
)
@PATIENCE
@click.option("--json", "as_json", is_flag=True, help='One JSON object {"jobs": [ID...], "warnings": [...]}.')
@with_client
@click.pass_context
def submit(
    ctx: click.Context,
    /,
    client: Client,
    files: Sequence[Path],
    language: str | None,
    template: str | None,
    folder: Path | None,
    group: str,
    validate_only: bool,
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
    """Submit the jobs of job files, or the workflow of a DAG file, all or none."""
    if follow and validate_only:
        raise InvalidInputError(Violation("--follow", "cannot be combined with --validate-only"))
    read = _read_files(client, files, language, rescues, ignore_unsupported=ignore_unsupported)
    by_file = read.by_file
    if template is not None:
        job_template = find_template(template, [folder] if folder else [])
        by_file = {file: [apply_template(job_template, each) for each in jobs] for file, jobs in by_file.items()}
    descriptions, dependencies = _with_dependencies([by_file[file] for file in files], parents)
    if not descriptions:
        click.echo("nothing is left to submit: all nodes are done", err=True)
        return
    all_dependencies = [*dependencies, *read.dependencies]
    with (
        _unknown_outcome(request_id or new_request_id(), validate_only=validate_only) as request_id,
        _in_files(by_file, descriptions, all_dependencies, are_nodes=read.workflow is not None),
    ):
        submitted = client.submit(
            descriptions,
            group=group,
            validate_only=validate_only,
            request_id=request_id,
            dependencies=all_dependencies,
            notify=notify,
            workflow=workflow or read.workflow,
        )
    warnings = (*read.warnings, *_warnings_of_readers(by_file), *submitted.warnings)
    names = _selection_of(descriptions, submitted)
    if as_json:
        more = {"workflow": submitted.workflow} if submitted.workflow else {}
        echo_json({"jobs": list(submitted.job_ids), "warnings": list(warnings)} | more)
    else:
        number = sum(each.count or 1 for each in descriptions) if validate_only else len(submitted.job_ids)
        _echo_submission(number, warnings, "would be submitted" if validate_only else f"submitted: {names}")
    if follow:
        _follow(ctx, client, submitted.job_ids, retry_option(patience), as_json=as_json)
    elif submitted.job_ids and any(user_log_of(each) for each in descriptions):
        click.echo(f"pilotage: to write the user logs: pilotage userlog {names}", err=True)


def _echo_submission(jobs: int, warnings: Iterable[str], what: str) -> None:
    for warning in warnings:
        click.echo(f"warning: {warning}", err=True)
    click.echo(f"{jobs} job{'s' if jobs != 1 else ''} {what}")


@contextmanager
def _unknown_outcome(request_id: str, *, validate_only: bool) -> Iterator[str]:
    """Say how to repeat a submission of which no answer came."""
    try:
        yield request_id
    except WorldError:
        if not validate_only:
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


def _selection_of(descriptions: Sequence[JobDescription], submitted: SubmittedJobs) -> str:
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
    try:
        jobs = retry(lambda: client.jobs(job_ids))
        if logs := retry(lambda: find_user_logs(client, jobs)):
            write_user_logs(client, jobs, logs, retry)
        finished = wait_until_final(client, job_ids, retry)
    except KeyboardInterrupt:
        click.echo(f"pilotage: the jobs go on; to follow them again: pilotage userlog {ranges(job_ids)}", err=True)
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
    client: Client, files: Sequence[Path], language: str | None, rescues: Sequence[str], *, ignore_unsupported: bool
) -> _ReadFiles:
    """Return the jobs of job files, or of one DAG; raises InvalidInputError with the faults of all files."""
    dag = read_workflow(client, files, language, rescues, ignore_unsupported=ignore_unsupported)
    if dag is None:
        return _ReadFiles(_read_all(files, language, ignore_unsupported))
    return _ReadFiles({files[0]: list(dag.descriptions)}, dag.dependencies, dag.name, dag.warnings)


def _read_all(
    files: Iterable[Path], language: str | None, ignore_unsupported: bool
) -> dict[Path, list[JobDescription]]:
    """Return the jobs of all files; raises ReadError or InvalidInputError with the faults of all files."""
    by_file: dict[Path, list[JobDescription]] = {}
    errors: list[InvalidInputError] = []
    for file in files:
        try:
            by_file[file] = read_jobs_with_files(file, language=language, ignore_unsupported=ignore_unsupported)
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
@IDS
@click.option("--set", "changes", multiple=True, required=True, metavar="NAME=VALUE", help="May be repeated.")
@with_client
@click.pass_context
def edit(ctx: click.Context, client: Client, ids: Sequence[str], changes: Sequence[str]) -> None:
    """Change the descriptions of waiting or held jobs, each for itself.

    For example: --set priority=5 --set request_memory="2 GB" --set requirements.Memory=4000. An empty value unsets a
    field: with --set sites= the job may run at any site.
    """
    warned: set[str] = set()

    def change(job_id: int) -> None:
        description = client.description(job_id)
        for each in changes:
            description = with_change(description, each)
        status, warnings = client.edit(job_id, description)
        for warning in warnings:
            if warning not in warned:
                click.echo(f"warning: {warning}", err=True)
        warned.update(warnings)
        click.echo(f"job {status.id} is {status.state}")

    for_each_job(ctx, client.find_jobs(ids).ids, change)


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
    """Wait until jobs have ended; exits 1 if a job did not end as DONE, or at the timeout.

    Jobs that are blocked behind parents that have ended badly are not waited for.
    """
    retry, ends_s = retry_option(patience), boot_time_s() + (math.inf if timeout_s is None else timeout_s)
    wanted = retry(lambda: client.find_jobs(ids).ids, until_s=ends_s)
    show_ends(ctx, wait_until_final(client, wanted, retry, ends_s - boot_time_s()), as_json=as_json)


def show_ends(ctx: click.Context, finished: Iterable[JobStatus], *, as_json: bool) -> None:
    """Print how jobs have ended, and exit with 1 if one did not end as DONE."""
    failed = False
    for job in finished:
        failed |= job.state != "DONE"
        if as_json:
            echo_json(job.as_json())
        elif job.state != "DONE":
            advice = f"; see `pilotage why {job.id}`" if job.state == "BLOCKED" else ""
            click.echo(f"job {job.id} is {job.state}: {job.reason}{advice}", err=True)
    if failed:
        ctx.exit(FAILED)


@click.command()
@IDS
@click.option("--log", "file", type=click.Path(path_type=Path, dir_okay=False), help="One log for all, not their own.")
@PATIENCE
@AS_JSON
@with_client
@click.pass_context
def userlog(
    ctx: click.Context, client: Client, ids: Sequence[str], file: Path | None, patience: str, as_json: bool
) -> None:
    """Write the user logs of jobs (log = FILE), as HTCondor does, until the jobs have ended; exits as `wait`.

    It may be stopped and started again at any time: it adds the events that are missing.
    """
    retry = retry_option(patience)
    wanted = retry(lambda: client.find_jobs(ids).ids)
    jobs = retry(lambda: client.jobs(wanted))
    logs = retry(lambda: find_user_logs(client, jobs, file))
    if not logs:
        raise InvalidInputError(Violation(" ".join(ids), "no job names a user log (log = FILE); give --log FILE"))
    show_ends(ctx, write_user_logs(client, jobs, logs, retry), as_json=as_json)


@click.command()
@IDS
@click.option("--follow", "-f", is_flag=True, help="Continue until the job has ended; of one job only.")
@PATIENCE
@AS_JSON
@with_client
@click.pass_context
def events(ctx: click.Context, client: Client, ids: Sequence[str], follow: bool, patience: str, as_json: bool) -> None:
    """Show the events of jobs, oldest first."""
    retry = retry_option(patience)
    jobs = retry(lambda: client.find_jobs(ids)).ids
    if follow and len(jobs) > 1:
        raise InvalidInputError(Violation("--follow", f"follows one job, and {' '.join(ids)} are {len(jobs)} jobs"))

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
    retry = retry_option(patience)
    found = retry(lambda: client.find_jobs([job])).ids
    if len(found) > 1:
        raise InvalidInputError(Violation(job, f"names {len(found)} jobs; name one, such as {job}.0"))
    job_id = found[0]
    if follow:
        _print_parts(follow_output_until_final(client, job_id, retry, error=error))
    elif not _print_parts(client.follow_output(job_id, error=error, follow=False)):
        why = f"the pilot of job {job_id} has sent nothing within {LONGEST_POLL_S:g} s"
        raise StateConflictError(f"{why}; --follow waits longer")


def _print_parts(parts: Iterable[job_service_pb2.FollowOutputResponse]) -> bool:
    """Print output as it comes, with notes on gaps and ends on the standard error; returns whether it is complete."""
    out, attempt, end = sys.stdout.buffer, 0, 0
    for part in parts:
        if part.attempt not in (0, attempt):  # 0 = no attempt runs
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


COMMANDS = (submit, edit, ad, remove, hold, release, reschedule, wait, events, logs, userlog, output)
