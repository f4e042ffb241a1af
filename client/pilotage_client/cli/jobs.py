"""Commands that change jobs or wait for them, and those that show the ad of a job."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import click

from pilotage.clock import boot_time_s
from pilotage.errors import InvalidInputError, StateConflictError, Violation
from pilotage.resources.tree import QueueId
from pilotage.text import fold
from pilotage.values.jobs import ChangeResult, JobCondition
from pilotage_client.api import Client
from pilotage_client.cli.options import (
    AS_JSON,
    FAILED,
    IDS,
    PATIENCE,
    ad_as_json,
    count_text,
    echo_json,
    for_each_job,
    long_form,
    past_time,
    retry_option,
    with_client,
)
from pilotage_client.cli.show.outputs import EditedJobJson
from pilotage_client.cli.show.progress import wait_progress
from pilotage_client.models import LIVE_STATES, STATES, JobStatus
from pilotage_client.retry import (
    wait_until_final,
)
from pilotage_client.selections import names_workflow
from pilotage_client.templates import with_change
from pilotage_client.user_log.follower import find_user_logs, write_user_logs


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


ASKED_ABOVE = 100
"""A change of more jobs by a condition is confirmed at a terminal."""

_CONDITION_OPTIONS = (
    click.option("--site", default="", help="In place of ids: jobs that run at a site, or ran there last."),
    click.option("--queue", metavar="SITE/CE/QUEUE", help="Likewise in a queue."),
    click.option("--node", default="", metavar="[SITE/]NODE", help="Likewise on a node."),
    click.option(
        "--state", "states", multiple=True, type=click.Choice(STATES, case_sensitive=False), help="In a state."
    ),
    click.option("--owner", default="", help="Of an owner (default: all that you may change)."),
    click.option("--since", metavar="TIME", help="In their state since then or later: 2 h (ago), 02:00, ISO 8601."),
    click.option("--until", metavar="TIME", help="In their state since before then."),
    click.option("--dry-run", is_flag=True, help="Show which jobs would be changed, and change none."),
    click.option("--yes", is_flag=True, help=f"Do not ask, as else for more than {ASKED_ABOVE} jobs at a terminal."),
)


def condition_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that select jobs by what they have in common."""
    for option in reversed(_CONDITION_OPTIONS):
        command = option(command)
    return command


def read_condition(
    site: str,
    queue: str | None,
    node: str,
    states: Sequence[str],
    owner: str,
    since: str | None,
    until: str | None,
    default_states: Sequence[str],
) -> JobCondition | None:
    """Return the condition that the options make; None = none of them is given.

    `default_states` are those of jobs that the command changes; with a place, jobs that are at none are left out.
    """
    if not any((site, queue, node, states, owner, since, until)):
        return None
    node_site, _, host = node.rpartition("/")
    place = QueueId.parse(queue) if queue else QueueId(site or node_site, "", "")
    if len({fold(name) for name in (site, place.site, node_site) if name}) > 1:
        raise click.UsageError("--site, --queue and --node name different sites")
    wanted = frozenset(state.upper() for state in states) or frozenset(default_states)
    if any((*place, host)) and not states:
        wanted -= _PLACELESS
    return JobCondition(
        wanted,
        place.site,
        place.ce,
        place.queue,
        host,
        owner,
        past_time(since, "--since"),
        past_time(until, "--until"),
    )


_PLACELESS = frozenset({"RECEIVED", "WAITING", "BLOCKED"})


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
    @click.argument("ids", nargs=-1, metavar="[ID...]")
    @condition_options
    @click.option("--reason", default="", help="The reason; stored with the job.")
    @AS_JSON
    @with_client
    @click.pass_context
    def command(
        ctx: click.Context,
        /,
        client: Client,
        ids: Sequence[str],
        reason: str,
        dry_run: bool,
        yes: bool,
        as_json: bool,
        **options: Any,
    ) -> None:
        condition = read_condition(**options, default_states=states_of_workflows or states)
        if (condition is None) is not bool(ids):
            raise click.UsageError("give either ids of jobs, or what they have in common: --node, --since and so on")
        if condition is not None:
            jobs = client.search_jobs(condition)
            if not _is_confirmed(client, jobs, name, dry_run=dry_run, yes=yes, as_json=as_json):
                return
            _show_results(ctx, act(client, jobs, reason, condition), as_json=as_json)
            return
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
        if _is_confirmed(client, jobs, name, dry_run=dry_run, yes=True, as_json=as_json):
            _show_results(ctx, act(client, jobs, reason, None), as_json=as_json)

    return command


def _is_confirmed(client: Client, jobs: Sequence[int], name: str, *, dry_run: bool, yes: bool, as_json: bool) -> bool:
    """Say how many jobs a change touches; returns whether to make it. A dry run lists them instead."""
    if dry_run:
        if as_json:
            for job in client.jobs(jobs):
                echo_json({"id": job.id, "state": job.state, "refusal": None})
        else:
            click.echo(f"{name} would change {count_text(len(jobs), 'job')}" + (f": {ranges(jobs)}" if jobs else ""))
        return False
    if not jobs:
        raise StateConflictError("no job meets the condition")
    if not yes:
        click.echo(f"pilotage: {name} changes {count_text(len(jobs), 'job')}", err=True)
        if len(jobs) > ASKED_ABOVE and sys.stdin.isatty():
            click.confirm("go on?", abort=True, err=True)
    return True


def _show_results(ctx: click.Context, results: Sequence[ChangeResult], *, as_json: bool) -> None:
    if as_json:
        for result in results:
            echo_json({"id": result.job_id, "state": result.state, "refusal": result.refusal or None})
    else:
        _echo_changes(results)
    if any(result.refusal for result in results):
        ctx.exit(FAILED)


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
        click.echo(f"{count_text(len(ids), 'job')} {'is' if len(ids) == 1 else 'are'} {state}: {ranges(ids)}")


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
@AS_JSON
@with_client
@click.pass_context
def edit(ctx: click.Context, client: Client, ids: Sequence[str], changes: Sequence[str], as_json: bool) -> None:
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
        if as_json:
            echo_json(EditedJobJson(id=status.id, state=status.state, warnings=list(warnings)))
            return
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
