"""The command `why`, which explains a job's state."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

import click

from pilotage.units import amount_text
from pilotage_client.api import Client
from pilotage_client.cli.options import (
    AS_JSON,
    SOME_IDS,
    echo_json,
    for_each_job,
    queue_text,
    section_text,
    time_text,
    with_client,
)
from pilotage_client.cli.routes import routed_job_lines
from pilotage_client.cli.selection.filters import JobFilters, job_filters, selected_jobs
from pilotage_client.cli.show.columns import with_local_times
from pilotage_client.cli.show.tables import echo_table
from pilotage_client.models import JobStatus
from pilotage_client.models.explanations import HelpfulChange, JobExplanation, StartForecast
from pilotage_client.models.routes import RouteExplanation

SHOWN_QUEUES = 15


@click.command()
@SOME_IDS
@job_filters
@AS_JSON
@with_client
@click.pass_context
def why(ctx: click.Context, client: Client, ids: Sequence[str], filters: JobFilters, as_json: bool) -> None:
    """Explain the state of jobs: their pool, the excluded and eligible queues, the jobs before them."""
    jobs = selected_jobs(client, ids, filters)

    def explain(job_id: int) -> None:
        answer = client.explain(job_id)
        if as_json:
            echo_json(answer.as_json())
            return
        if job_id != jobs[0]:
            click.echo()
        show(answer)
        show_routes(answer.job.id, client.explain_routes(answer.job.id))

    for_each_job(ctx, jobs, explain)


def show(answer: JobExplanation) -> None:
    """Print the explanation of a job."""
    job = answer.job
    click.echo(f"Job {job.id} is {job.state}. {with_local_times(answer.summary)}")
    if job.state == "FAILED" and job.exit_code is not None:
        click.echo(f"What it printed: `pilotage logs {job.id}`; its standard error: `pilotage logs {job.id} --stderr`")
    show_details(answer, job)


def show_details(answer: JobExplanation, job: JobStatus) -> None:
    """Print the explanation without its first line."""
    if answer.start is not None:
        click.echo(start_text(answer.start))
    if job.ignored:
        click.echo(f"Ignored in its job file: {'; '.join(job.ignored)}")
    if job.state == "WAITING" and job.attempt and job.reason:
        click.echo(f"It waits again after attempt {job.attempt}: {job.reason}")
    child = job
    for blocker in answer.blockers:
        parent = blocker.job
        reason = f": {parent.reason}" if parent.reason else ""
        click.echo(f"Job {child.id} waits for job {parent.id} ({blocker.kind}), which is {parent.state}{reason}.")
        child = parent
    if job.pool:
        asked = section_text(answer.requirements)
        mapped = time_text(answer.pool_mapped) or "not yet"
        click.echo(f"Pool {job.pool[:12]}: {asked} (mapped {mapped}, tree version {answer.tree_version})")
    if job.pool_sites:
        click.echo(f"Sites of the pool: {', '.join(job.pool_sites)}")
    if not job.is_final:
        _show_queues(answer, job)
    _show_resources(answer)


def _show_queues(answer: JobExplanation, job: JobStatus) -> None:
    """Print which queues and slots can run the job, and its place in the order."""
    if answer.queues_total:
        eligible = len(answer.eligible_queues)
        click.echo(
            f"Queues: {answer.queues_total} in all, {answer.queues_of_vo} for VO {job.vo}, {eligible} can run it."
        )
    if answer.order:
        ahead = {0: "No job goes", 1: "1 job goes"}.get(answer.jobs_ahead, f"{answer.jobs_ahead} jobs go")
        click.echo(f"{ahead} before it: {answer.order}")
    if answer.exclusions:
        click.echo("\nExcluded queues:")
        rows = [
            (each.parameter, each.asked, each.queues, each.queues_alone, with_local_times(each.example))
            for each in answer.exclusions
        ]
        echo_table(("PARAMETER", "ASKED", "EXCLUDES", "IT ALONE", "FOR EXAMPLE"), rows, empty="")
    _show_relaxations(answer, job)
    _show_outlooks(answer)
    _show_slots(answer)


def start_text(start: StartForecast) -> str:
    """Return the estimate of the start in one sentence."""
    if start.why_none:
        return f"Start: no estimate, {start.why_none}."
    early, median, late = map(_length, (start.early_s, start.median_s, start.late_s))
    return f"Start: in about {median}, with 80 % in {early} to {late}, by {start.starts} {start.basis}."


def _length(seconds: float) -> str:
    """Return a length with two or three digits, such as "90 s", "15 min" or "8 h"."""
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def _show_relaxations(answer: JobExplanation, job: JobStatus) -> None:
    if not answer.relaxations:
        return
    click.echo("\nA single change that opens more queues:")
    rows = [
        (
            each.parameter,
            each.asked or "not asked",
            each.relaxed or "not asked",
            f"+{each.opens}" + (f" -{each.closes}" if each.closes else ""),
            each.example,
        )
        for each in answer.relaxations
    ]
    echo_table(("PARAMETER", "NOW", "CHANGED TO", "QUEUES", "FOR EXAMPLE"), rows, empty="")
    if job.id:  # it is submitted
        click.echo(
            f"To make the first change: `pilotage edit {job.id} --set {shlex.quote(edit_of(answer.relaxations[0]))}`"
        )


def edit_of(change: HelpfulChange) -> str:
    """Return a change as NAME=VALUE, which `edit` takes."""
    return f"{change.field.removesuffix('_mib')}={change.relaxed}"


def _show_slots(answer: JobExplanation) -> None:
    if not answer.slot_exclusions:
        return
    click.echo(f"\nOf {answer.slots_seen} slots at these queues, {answer.slots_matching} match. Excluded slots:")
    rows = [(each.clause, each.slots, each.slots_alone, each.example) for each in answer.slot_exclusions]
    echo_table(("CLAUSE", "EXCLUDES", "IT ALONE", "FOR EXAMPLE"), rows, empty="")


def _show_resources(answer: JobExplanation) -> None:
    if not answer.resources:
        return
    click.echo("\nUsed by the last attempt:")
    rows = [
        (
            each.resource,
            "" if each.asked is None else _amount(each.asked, each.unit),
            "" if each.used is None else _amount(each.used, each.unit),
            f"{each.used / each.asked:.0%}" if each.used is not None and each.asked else "",
        )
        for each in answer.resources
    ]
    echo_table(("RESOURCE", "ASKED", "USED", "PART"), rows, empty="")


def _amount(number: float, unit: str) -> str:
    """Return an amount in a unit in which it is short: exact if it is whole, else with a digit after the point."""
    if not unit:
        return f"{number:.2g}"
    if unit == "MiB" and number >= 1024 and number % 1024:
        return f"{number / 1024:.1f} GB"
    return amount_text(int(number), unit) if number.is_integer() else f"{number:.1f} {unit}"


def show_routes(job_id: int, answer: RouteExplanation) -> None:
    """Print the routes that take the job, and its routed job, if there are any."""
    for line in routed_job_lines(answer):
        click.echo(f"\n{line}")
    if answer.obstacle or not answer.verdicts:
        return
    taking = [verdict.route for verdict in answer.verdicts if not verdict.obstacles]
    of_all = f"of {len(answer.verdicts)} routes"
    names = f"{', '.join(taking)} {of_all}" if taking else f"none {of_all}"
    click.echo(f"\nRoutes that take it: {names} (`pilotage routes explain {job_id}` shows why)")


def _show_outlooks(answer: JobExplanation) -> None:
    if not answer.eligible_queues:
        return
    click.echo("\nEligible queues:")
    rows = [
        (
            queue_text(outlook),
            outlook.pilots,
            outlook.pilots_waiting,
            outlook.free_slots,
            outlook.obstacle,
        )
        for outlook in answer.eligible_queues[:SHOWN_QUEUES]
    ]
    echo_table(("QUEUE", "PILOTS", "ON THE WAY", "FREE SLOTS", "OBSTACLE"), rows, empty="")
    if len(answer.eligible_queues) > SHOWN_QUEUES:
        click.echo(f"... and {len(answer.eligible_queues) - SHOWN_QUEUES} more (--json has all)")
