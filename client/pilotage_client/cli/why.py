"""The command `why`, which explains a job's state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from pilotage.rpc.wire import section_from_wire, value_from_wire
from pilotage.units import amount_text
from pilotage.v1 import job_service_pb2, jobs_pb2, route_service_pb2
from pilotage_client.api import Client
from pilotage_client.cli.options import (
    AS_JSON,
    IDS,
    echo_json,
    echo_table,
    for_each_job,
    queue_text,
    section_text,
    time_text,
    with_client,
)
from pilotage_client.cli.routes import routed_job_lines
from pilotage_client.models import JobStatus, iso, job_status, time_of

SHOWN_QUEUES = 15


@click.command()
@IDS
@AS_JSON
@with_client
@click.pass_context
def why(ctx: click.Context, client: Client, ids: Sequence[str], as_json: bool) -> None:
    """Explain the state of jobs: their pool, the excluded and eligible queues, the jobs before them."""
    jobs = client.find_jobs(ids).ids

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
    """Return the explanation of a job as a JSON object."""
    return {**_status(answer.job), **reasons(answer)}


def reasons(answer: job_service_pb2.ExplainJobResponse) -> dict[str, Any]:
    """Return the explanation as a JSON object, without the job."""
    return {
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
        "relaxations": [_relaxation(each) for each in answer.relaxations],
        "slots": {
            "seen": answer.slots_seen,
            "matching": answer.slots_matching,
            "excluded": [
                {
                    "clause": each.clause,
                    "slots": each.slots,
                    "slots_alone": each.slots_alone,
                    "example": each.example,
                }
                for each in answer.slot_exclusions
            ],
        },
        "start": _start(answer.start) if answer.HasField("start") else None,
        "resources": [_resource(each) for each in answer.resources],
        "blockers": [{"kind": _kind(blocker), **_status(blocker.job)} for blocker in answer.blockers],
    }


def _relaxation(relaxation: job_service_pb2.Relaxation) -> dict[str, Any]:
    return {
        "field": relaxation.field,
        "value": value_from_wire(relaxation.value) if relaxation.HasField("value") else None,
        "parameter": relaxation.parameter,
        "asked": relaxation.asked or None,
        "relaxed": relaxation.relaxed or None,
        "opens": relaxation.opens,
        "closes": relaxation.closes,
        "example": queue_text(relaxation.example),
    }


def _resource(use: job_service_pb2.ResourceUse) -> dict[str, Any]:
    return {
        "resource": use.resource,
        "unit": use.unit or None,
        "asked": use.asked if use.HasField("asked") else None,
        "used": use.used if use.HasField("used") else None,
    }


def _start(start: job_service_pb2.StartEstimate) -> dict[str, Any]:
    is_none = bool(start.why_none)
    return {
        "why_none": start.why_none or None,
        "basis": start.basis or None,
        "starts": start.starts,
        "early_s": None if is_none else start.early_s,
        "median_s": None if is_none else start.median_s,
        "late_s": None if is_none else start.late_s,
    }


def _status(job: jobs_pb2.Job) -> dict[str, Any]:
    """Return the status of a job as a JSON object, without what the answer does not have."""
    status = job_status(job).as_json()
    del status["usage"], status["futile"]  # `resources` compares the use with what was asked
    return status


def show(answer: job_service_pb2.ExplainJobResponse) -> None:
    """Print the explanation of a job."""
    job = job_status(answer.job)
    click.echo(f"Job {job.id} is {job.state}. {answer.summary}")
    show_details(answer, job)


def show_details(answer: job_service_pb2.ExplainJobResponse, job: JobStatus) -> None:
    """Print the explanation without its first line."""
    if answer.HasField("start"):
        click.echo(start_text(answer.start))
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
    _show_resources(answer)
    if answer.exclusions:
        click.echo("\nExcluded queues:")
        rows = [
            (each.parameter, each.asked, each.queues, each.queues_alone, each.example) for each in answer.exclusions
        ]
        echo_table(("PARAMETER", "ASKED", "EXCLUDES", "IT ALONE", "FOR EXAMPLE"), rows, empty="")
    _show_relaxations(answer)
    _show_outlooks(answer)
    _show_slots(answer)
    if answer.order:
        ahead = {0: "No job goes", 1: "1 job goes"}.get(answer.jobs_ahead, f"{answer.jobs_ahead} jobs go")
        click.echo(f"{ahead} before it: {answer.order}")


def start_text(start: job_service_pb2.StartEstimate) -> str:
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


def _show_relaxations(answer: job_service_pb2.ExplainJobResponse) -> None:
    if not answer.relaxations:
        return
    click.echo("\nA single change that opens more queues:")
    rows = [
        (
            each.parameter,
            each.asked or "not asked",
            each.relaxed or "not asked",
            f"+{each.opens}" + (f" -{each.closes}" if each.closes else ""),
            queue_text(each.example),
        )
        for each in answer.relaxations
    ]
    echo_table(("PARAMETER", "NOW", "CHANGED TO", "QUEUES", "FOR EXAMPLE"), rows, empty="")


def _show_slots(answer: job_service_pb2.ExplainJobResponse) -> None:
    if not answer.slot_exclusions:
        return
    click.echo(f"\nOf {answer.slots_seen} slots at these queues, {answer.slots_matching} match. Excluded slots:")
    rows = [(each.clause, each.slots, each.slots_alone, each.example) for each in answer.slot_exclusions]
    echo_table(("CLAUSE", "EXCLUDES", "IT ALONE", "FOR EXAMPLE"), rows, empty="")


def _show_resources(answer: job_service_pb2.ExplainJobResponse) -> None:
    if not answer.resources:
        return
    click.echo("\nUsed by the last attempt:")
    rows = [
        (
            each.resource,
            _amount(each.asked, each.unit) if each.HasField("asked") else "",
            _amount(each.used, each.unit) if each.HasField("used") else "",
            f"{each.used / each.asked:.0%}" if each.HasField("used") and each.asked else "",
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
