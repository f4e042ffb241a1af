"""The command `why`, which explains a job's state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from pilotage.rpc.wire import section_from_wire
from pilotage.v1 import job_service_pb2, jobs_pb2, route_service_pb2
from pilotage_client.api import Client
from pilotage_client.cli.options import (
    AS_JSON,
    SOME_IDS,
    echo_json,
    echo_table,
    for_each_job,
    section_text,
    time_text,
    with_client,
)
from pilotage_client.cli.routes import routed_job_lines
from pilotage_client.cli.selection.filters import JobFilters, job_filters, selected_jobs
from pilotage_client.models import iso, job_status, time_of

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
            echo_json(explanation(answer))
            return
        if job_id != jobs[0]:
            click.echo()
        show(answer)
        show_routes(answer.job.id, client.explain_routes(answer.job.id))

    for_each_job(ctx, jobs, explain)


def explanation(answer: job_service_pb2.ExplainJobResponse) -> dict[str, Any]:
    """Return the explanation as a JSON object."""
    return {
        **_status(answer.job),
        "summary": answer.summary,
        "requirements": section_from_wire(answer.requirements),
        "pool_mapped": iso(time_of(answer, "pool_mapped")),
        "tree_version": answer.tree_version,
        "queues_total": answer.queues_total,
        "queues_of_vo": answer.queues_of_vo,
        "excluded": [
            {
                "parameter": exclusion.parameter,
                "asked": exclusion.asked,
                "queues": exclusion.queues,
                "queues_alone": exclusion.queues_alone,
                "example": exclusion.example,
            }
            for exclusion in answer.exclusions
        ],
        "eligible": [
            {
                "site": outlook.queue.site,
                "ce": outlook.queue.ce,
                "queue": outlook.queue.queue,
                "pilots": outlook.pilots,
                "pilots_waiting": outlook.pilots_waiting,
                "free_slots": outlook.free_slots,
                "obstacle": outlook.obstacle or None,
            }
            for outlook in answer.eligible_queues
        ],
        "jobs_ahead": answer.jobs_ahead,
        "order": answer.order,
        "blockers": [{"kind": _kind(blocker), **_status(blocker.job)} for blocker in answer.blockers],
    }


def _status(job: jobs_pb2.Job) -> dict[str, Any]:
    """Return the status of a job as a JSON object, without what the answer does not have."""
    status = job_status(job).as_json()
    del status["usage"], status["futile"]
    return status


def show(answer: job_service_pb2.ExplainJobResponse) -> None:
    """Print the explanation."""
    job = job_status(answer.job)
    click.echo(f"Job {job.id} is {job.state}. {answer.summary}")
    if job.ignored:
        click.echo(f"Ignored in its job file: {'; '.join(job.ignored)}")
    if job.state == "WAITING" and job.attempt and job.reason:
        click.echo(f"It waits again after attempt {job.attempt}: {job.reason}")
    child = job
    for blocker in answer.blockers:
        parent = job_status(blocker.job)
        reason = f": {parent.reason}" if parent.reason else ""
        click.echo(f"Job {child.id} waits for job {parent.id} ({_kind(blocker)}), which is {parent.state}{reason}.")
        child = parent
    if job.pool:
        asked = section_text(section_from_wire(answer.requirements))
        mapped = time_text(time_of(answer, "pool_mapped")) or "not yet"
        click.echo(f"Pool {job.pool[:12]}: {asked} (mapped {mapped}, tree version {answer.tree_version})")
    if job.pool_sites:
        click.echo(f"Sites of the pool: {', '.join(job.pool_sites)}")
    if answer.queues_total:
        eligible = len(answer.eligible_queues)
        click.echo(
            f"Queues: {answer.queues_total} in all, {answer.queues_of_vo} for VO {job.vo}, {eligible} can run it."
        )
    if answer.exclusions:
        click.echo("\nExcluded queues:")
        rows = [
            (each.parameter, each.asked, each.queues, each.queues_alone, each.example) for each in answer.exclusions
        ]
        echo_table(("PARAMETER", "ASKED", "EXCLUDES", "IT ALONE", "FOR EXAMPLE"), rows, empty="")
    _show_outlooks(answer)
    if answer.order:
        ahead = {0: "No job goes", 1: "1 job goes"}.get(answer.jobs_ahead, f"{answer.jobs_ahead} jobs go")
        click.echo(f"{ahead} before it: {answer.order}")


def _kind(blocker: job_service_pb2.Blocker) -> str:
    return job_service_pb2.DependencyKind.Name(blocker.kind).removeprefix("DEPENDENCY_KIND_").lower()


def show_routes(job_id: int, answer: route_service_pb2.ExplainRoutesResponse) -> None:
    """Print the routes that take the job, and its routed job, if there are any."""
    for line in routed_job_lines(answer):
        click.echo(f"\n{line}")
    if answer.obstacle or not answer.verdicts:
        return
    taking = [verdict.route for verdict in answer.verdicts if not verdict.obstacles]
    of_all = f"of {len(answer.verdicts)} routes"
    names = f"{', '.join(taking)} {of_all}" if taking else f"none {of_all}"
    click.echo(f"\nRoutes that take it: {names} (`pilotage routes explain {job_id}` shows why)")


def _show_outlooks(answer: job_service_pb2.ExplainJobResponse) -> None:
    if not answer.eligible_queues:
        return
    click.echo("\nEligible queues:")
    rows = [
        (
            f"{outlook.queue.site}/{outlook.queue.ce}/{outlook.queue.queue}",
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
