"""Commands that change jobs or wait for them, and those that show the ad of a job."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import click

from pilotage.clock import boot_time_s
from pilotage.errors import InvalidInputError, StateConflictError, Violation
from pilotage.job_description import JobDescription
from pilotage.text import count_text
from pilotage.values.jobs import ALL_OWNERS, ChangeResult, JobCondition
from pilotage_client.api import Client
from pilotage_client.cli.options import (
    AS_JSON,
    FAILED,
    IDS,
    PATIENCE,
    SOME_IDS,
    ad_as_json,
    echo_json,
    for_each_job,
    long_form,
    retry_option,
    with_client,
)
from pilotage_client.cli.selection.bulk import ASKED_ABOVE, change_all, is_confirmed, ranges, show_changes
from pilotage_client.cli.selection.columns import AUTOFORMAT, AutoformatCommand, print_columns, read_columns
from pilotage_client.cli.selection.filters import (
    JobFilters,
    ads_of_jobs,
    job_filters,
    raise_none,
    runs_as_ranges,
    selected_jobs,
)
from pilotage_client.cli.show.outputs import EditedJobJson
from pilotage_client.cli.show.progress import wait_progress
from pilotage_client.job_calls import MOST_JOBS
from pilotage_client.models import LIVE_STATES, STATES, JobStatus
from pilotage_client.retry import (
    wait_until_final,
)
from pilotage_client.selections import names_workflow
from pilotage_client.templates import with_change
from pilotage_client.user_log.follower import find_user_logs, write_user_logs


@click.command(cls=AutoformatCommand)
@SOME_IDS
@job_filters
@AUTOFORMAT
@click.option(
    "--json", "as_json", is_flag=True, help="One JSON object a line with the attributes; expressions as text."
)
@with_client
@click.pass_context
def ad(
    ctx: click.Context, client: Client, ids: Sequence[str], filters: JobFilters, af: Sequence[str], as_json: bool
) -> None:
    """Print the ClassAds of jobs, as `condor_q -long` does."""
    form = read_columns(af)
    jobs = selected_jobs(client, ids, filters)
    if form is not None:
        print_columns(client.list_ads(ads_of_jobs(jobs), attributes=form.attributes), form, as_json=as_json)
        return

    def show(job_id: int) -> None:
        text = client.ad(job_id)
        if as_json:
            echo_json(ad_as_json(text))
            return
        if job_id != jobs[0]:
            click.echo()
        click.echo(long_form(text))

    for_each_job(ctx, jobs, show)


def _change(
    name: str,
    help_text: str,
    act: Callable[[Client, Sequence[int], str, JobCondition | None], list[ChangeResult]],
    states: Sequence[str],
    states_of_workflows: Sequence[str] = (),
) -> click.Command:
    """Return the command of a change; of a whole cluster it changes the jobs in `states`.

    `states_of_workflows` are those of a workflow, and of jobs selected by a condition; empty = `states`.
    """

    @click.command(name=name, help=help_text)
    @SOME_IDS
    @job_filters
    @click.option("--dry-run", is_flag=True, help="Show which jobs would be changed, and change none.")
    @click.option("--yes", is_flag=True, help=f"Do not ask, as else for more than {ASKED_ABOVE} jobs at a terminal.")
    @click.option("--reason", default="", help="The reason; stored with the job.")
    @AS_JSON
    @with_client
    @click.pass_context
    def command(
        ctx: click.Context,
        /,
        client: Client,
        ids: Sequence[str],
        filters: JobFilters,
        dry_run: bool,
        yes: bool,
        reason: str,
        as_json: bool,
    ) -> None:
        if not ids and not filters.are_given:
            raise click.UsageError("give ids of jobs, or what they have in common: --node, --since and so on")
        condition: JobCondition | None = None
        owners: Mapping[str, int] | None = None
        jobs = _named(client, ids, states, states_of_workflows or states, name) if ids else []
        if filters.are_given:
            condition = filters.condition(client, states_of_workflows or states, ALL_OWNERS)
            found = client.count_jobs(replace(condition, runs=runs_as_ranges(jobs)), MOST_JOBS)
            if found.more:
                raise StateConflictError(f"more than {MOST_JOBS:,} jobs meet the condition; narrow it")
            jobs, owners = found.ids, found.owners
            if not jobs:
                raise_none(client, filters)
        if dry_run:
            _show_dry_run(client, jobs, states, name, as_json=as_json)
            return
        if (filters.are_given or len(jobs) > ASKED_ABOVE) and not is_confirmed(client, jobs, name, owners, yes=yes):
            raise click.Abort
        changed = change_all(name, jobs, lambda some: act(client, some, reason, condition))
        show_changes(changed, as_json=as_json)
        if any(result.refusal for result in changed.results):
            ctx.exit(FAILED)

    return command


def _named(
    client: Client, ids: Sequence[str], states: Sequence[str], states_of_workflows: Sequence[str], name: str
) -> list[int]:
    """Return the jobs that ids name: of whole clusters and workflows those that a change suits.

    Raises
    ------
    StateConflictError
        The clusters have no such job.
    """
    workflows = [each for each in ids if names_workflow(each)]
    found = (
        client.find_jobs(workflows, states=states_of_workflows),
        client.find_jobs([each for each in ids if each not in workflows], states=states),
    )
    jobs = list(dict.fromkeys(job for each in found for job in each.ids))
    if not jobs:
        clusters = [cluster for each in found for cluster in each.clusters]
        names = ", ".join(f"{'workflow' if each.workflow else 'cluster'} {each.selection}" for each in clusters)
        raise StateConflictError(f"{names} has no job that `{name}` can change")
    return jobs


def _show_dry_run(client: Client, jobs: Sequence[int], states: Sequence[str], name: str, *, as_json: bool) -> None:
    """Print which jobs a change in `states` would change; the others would be refused."""
    if as_json:
        for job in client.jobs(jobs):
            refusal = None if job.state in states else f"`{name}` changes no job that is {job.state}"
            echo_json({"id": job.id, "state": job.state, "refusal": refusal})
        return
    suits = JobCondition(frozenset(states), owner=ALL_OWNERS, runs=runs_as_ranges(jobs))
    changed = client.count_jobs(suits, len(jobs)).ids
    click.echo(f"{name} would change {count_text(len(changed), 'job')}" + (f": {ranges(changed)}" if changed else ""))
    if others := len(jobs) - len(changed):
        click.echo(f"pilotage: {count_text(others, 'job')} in other states would be refused", err=True)


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


_EDITABLE = ("WAITING", "BLOCKED", "HELD")


@click.command()
@SOME_IDS
@job_filters
@click.option("--set", "changes", multiple=True, required=True, metavar="NAME=VALUE", help="May be repeated.")
@click.option("--yes", is_flag=True, help=f"Do not ask, as else for more than {ASKED_ABOVE} jobs at a terminal.")
@AS_JSON
@with_client
@click.pass_context
def edit(
    ctx: click.Context,
    client: Client,
    ids: Sequence[str],
    filters: JobFilters,
    changes: Sequence[str],
    yes: bool,
    as_json: bool,
) -> None:
    """Change the descriptions of waiting, blocked or held jobs, each for itself.

    For example: --set priority=5 --set request_memory="2 GB" --set requirements.Memory=4000. An empty value unsets a
    field: with --set sites= the job may run at any site.
    """
    for each in changes:
        with_change(JobDescription("/bin/true"), each)  # a misspelled name is refused before any job is changed
    if ids and not filters.are_given:
        jobs = _named(client, ids, _EDITABLE, _EDITABLE, "edit")
    elif ids or filters.states or not filters.are_given:
        jobs = selected_jobs(client, ids, filters)
    else:
        jobs = selected_jobs(client, ids, replace(filters, states=_EDITABLE))
    if (filters.are_given or len(jobs) > ASKED_ABOVE) and not is_confirmed(client, jobs, "edit", yes=yes):
        raise click.Abort
    warned: set[str] = set()

    def change(job_id: int) -> None:
        description = client.description(job_id)
        for each in changes:
            description = with_change(description, each)
        status, warnings = client.edit(job_id, description)
        if as_json:
            echo_json(EditedJobJson(id=status.id, state=status.state, warnings=list(warnings)))
            return
        for warning in warnings:
            if warning not in warned:
                click.echo(f"warning: {warning}", err=True)
        warned.update(warnings)
        click.echo(f"job {status.id} is {status.state}")

    for_each_job(ctx, jobs, change)


@click.command()
@SOME_IDS
@job_filters
@click.option("--timeout", "timeout_s", type=click.FloatRange(min=0), help="Give up after this number of seconds.")
@PATIENCE
@AS_JSON
@with_client
@click.pass_context
def wait(
    ctx: click.Context,
    client: Client,
    ids: Sequence[str],
    filters: JobFilters,
    timeout_s: float | None,
    patience: str,
    as_json: bool,
) -> None:
    """Wait until jobs have ended; exits 1 if a job did not end as DONE, or at the timeout.

    Jobs that are blocked behind parents that have ended badly are not waited for.
    """
    retry, ends_s = retry_option(patience), boot_time_s() + (math.inf if timeout_s is None else timeout_s)
    wanted = retry(lambda: selected_jobs(client, ids, filters), until_s=ends_s)
    with wait_progress() as show:
        finished = wait_until_final(client, wanted, retry, ends_s - boot_time_s(), show)
    show_ends(ctx, finished, as_json=as_json)


def show_ends(ctx: click.Context, finished: Iterable[JobStatus], *, as_json: bool) -> None:
    """Print how jobs have ended, and exit with 1 if one did not end as DONE."""
    failed = False
    for job in finished:
        failed |= job.state != "DONE"
        if as_json:
            echo_json(job.as_json())
        elif job.state != "DONE":
            reason = f": {job.reason}" if job.reason else ""
            advice = f"; see `pilotage why {job.id}`" if job.state == "BLOCKED" else ""
            click.echo(f"job {job.id} is {job.state}{reason}{advice}", err=True)
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
