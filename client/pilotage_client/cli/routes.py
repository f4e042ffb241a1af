"""Commands about routes of job routers, and about races."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import click

from pilotage.v1 import jobs_pb2, race_service_pb2, route_service_pb2
from pilotage_client.api import Client
from pilotage_client.cli.options import (
    AS_JSON,
    IDS,
    echo_job_heading,
    echo_json,
    echo_table,
    for_each_job,
    time_text,
    with_client,
    with_operator_client,
)
from pilotage_client.models import iso, state_name, time_of


@click.command("list")
@AS_JSON
@with_client
def list_routes(client: Client, as_json: bool) -> None:
    """Show the routes of all job routers, and the number of their routed jobs."""
    routers = client.routers()
    if as_json:
        for router in routers:
            for row in _routes_json(router):
                echo_json(row)
        return
    rows = [row for router in routers for row in _rows(router)]
    header = ("ROUTE", "TARGET", "COPIES", "OF", "IDLE", "OF", "ROUTER", "TOLD", "GETS NO JOB")
    echo_table(header, rows, empty="no job router has reported a route")
    for line in (line for router in routers for line in _notes(router)):
        click.echo(line)


def _rows(router: route_service_pb2.Router) -> Iterator[tuple[object, ...]]:
    """Yield a row for each route, and for each unused route that still has routed jobs."""
    yield from (_route_row(router, route) for route in router.routes)
    reported = time_text(time_of(router, "told"))
    for each in router.left_out:
        if each.copies:
            counts = each.copies, "-", each.idle, "-"
            yield each.name, "-", *counts, router.name, reported, f"not used: {each.reason}"


def _route_row(router: route_service_pb2.Router, route: route_service_pb2.RouteOutline) -> tuple[object, ...]:
    most_idle = route.max_idle_jobs if route.HasField("max_idle_jobs") else "any"
    reported = time_text(time_of(router, "told"))
    copies = route.copies, route.max_jobs, route.idle, most_idle
    reasons = {"closed": route.closed, "throttled": route.throttled}
    return (
        route.name,
        route.target,
        *copies,
        router.name,
        reported,
        "; ".join(f"{cause}: {why}" for cause, why in reasons.items() if why),
    )


def _notes(router: route_service_pb2.Router) -> Iterator[str]:
    if router.HasField("constraint"):
        yield f"{router.name}: every job must satisfy {router.constraint}"
    if router.HasField("max_jobs"):
        yield f"{router.name}: at most {router.max_jobs} routed jobs in all"
    for route in router.left_out:
        if not route.copies:
            yield f"{router.name}: route {route.name} is not used: {route.reason}"


def _routes_json(router: route_service_pb2.Router) -> Iterator[dict[str, Any]]:
    shared = {"router": router.name, "told": iso(time_of(router, "told"))}
    for route in router.routes:
        yield {
            "route": route.name,
            "target": route.target,
            "requirements": route.requirements if route.HasField("requirements") else None,
            "constraint": router.constraint if router.HasField("constraint") else None,
            "copies": route.copies,
            "max_jobs": route.max_jobs,
            "idle": route.idle,
            "max_idle_jobs": route.max_idle_jobs if route.HasField("max_idle_jobs") else None,
            "throttled": route.throttled or None,
            "closed": route.closed or None,
            "left_out": None,
            **shared,
        }
    for each in router.left_out:
        yield {
            "route": each.name,
            **dict.fromkeys(("target", "requirements", "constraint")),
            "copies": each.copies,
            "max_jobs": None,
            "idle": each.idle,
            **dict.fromkeys(("max_idle_jobs", "throttled", "closed")),
            "left_out": each.reason,
            **shared,
        }


@click.command()
@IDS
@AS_JSON
@with_client
@click.pass_context
def explain(ctx: click.Context, client: Client, ids: Sequence[str], as_json: bool) -> None:
    """Show for each route whether it takes a job, or all obstacles."""
    jobs = client.find_jobs(ids).ids

    def show(job_id: int) -> None:
        if len(jobs) > 1 and not as_json:
            echo_job_heading(job_id, is_first=job_id == jobs[0])
        _explain(client, job_id, as_json=as_json)

    for_each_job(ctx, jobs, show)


def _explain(client: Client, job_id: int, *, as_json: bool) -> None:
    answer = client.explain_routes(job_id)
    if as_json:
        echo_json(
            {
                "job": job_id,
                "obstacle": answer.obstacle or None,
                "copy": _routed_job_json(answer.copy) if answer.HasField("copy") else None,
                "routes": [
                    {
                        "route": verdict.route,
                        "target": verdict.target,
                        "obstacles": [{"kind": each.kind, "why": each.why} for each in verdict.obstacles],
                        "router": verdict.router,
                    }
                    for verdict in answer.verdicts
                ],
            }
        )
        return
    if answer.obstacle:
        click.echo(f"No route takes job {job_id} now: {answer.obstacle}")
    for line in routed_job_lines(answer):
        click.echo(line)
    for verdict in answer.verdicts:
        click.echo(f"{verdict.route} -> {verdict.target} ({verdict.router})")
        for obstacle in verdict.obstacles:
            click.echo(f"    {obstacle.kind}: {obstacle.why}")
        if not verdict.obstacles:
            click.echo("    takes the job")
    if not answer.verdicts:
        click.echo("no job router has reported a route")


def routed_job_lines(answer: route_service_pb2.ExplainRoutesResponse) -> Iterator[str]:
    """Yield lines about the latest routed job of a job; none if there is none."""
    if not answer.HasField("copy"):
        return
    copy = answer.copy
    found = f", {copy.reference} there" if copy.reference else ""
    routed = time_text(time_of(copy, "routed"))
    yield f"Attempt {copy.attempt} was routed by {copy.route} of {copy.router} to {copy.target} at {routed}{found}"
    if copy.unwanted:
        yield f"    {copy.unwanted}"


def _routed_job_json(copy: route_service_pb2.JobCopy) -> dict[str, Any]:
    return {
        "job": copy.job_id,
        "attempt": copy.attempt,
        "route": copy.route,
        "target": copy.target,
        "reference": copy.reference or None,
        "routed": iso(time_of(copy, "routed")),
        "router": copy.router,
        "state": state_name(copy.state),
    }


@click.command("give-up")
@click.argument("router")
@AS_JSON
@with_operator_client
def give_up(client: Client, router: str, as_json: bool) -> None:
    """Free the jobs of a job router that is lost for good, and show its routed jobs, which may still run."""
    copies = client.give_up_router(router)
    if as_json:
        for copy in copies:
            echo_json(_routed_job_json(copy))
        return
    if not copies:
        click.echo(f"{router} has no routed jobs; its routes are removed")
        return
    rows = [
        (each.job_id, each.attempt, state_name(each.state), each.route, each.target, each.reference) for each in copies
    ]
    echo_table(("JOB", "ATTEMPT", "STATE", "ROUTE", "TARGET", "REFERENCE"), rows, empty="")
    click.echo("The jobs are free. Their routed jobs may still run: stop them at the targets.", err=True)


_RACE_HEADINGS = ("JOB", "RACER", "STATE", "WHERE", "BEGAN", "ENDED", "WINNER", "LOST h", "WHY")
_COST_HEADINGS = ("ACCOUNT", "RACES", "WON BY COPIES", "LOST h")


@click.command()
@click.argument("ids", nargs=-1, metavar="[ID...]")
@click.option("--open", "open_only", is_flag=True, help="Only races that have not ended.")
@click.option("--owner", default="", help='Only jobs of this owner; "*" = all that you may see. Default: you.')
@click.option("--costs", is_flag=True, help="The costs of ended races, by account.")
@AS_JSON
@with_client
def races(client: Client, ids: Sequence[str], open_only: bool, owner: str, costs: bool, as_json: bool) -> None:
    """Show races of jobs: of the given originals, or of yours."""
    if costs:
        _show_costs(client.race_costs(owner=owner), as_json=as_json)
        return
    # given ids select jobs of any owner
    found = client.races(client.find_jobs(ids).ids, owner=owner or ("*" if ids else ""), open_only=open_only)
    if as_json:
        for race in found:
            echo_json(_race_json(race))
        return
    echo_table(_RACE_HEADINGS, (row for race in found for row in _race_rows(race)), empty="no races")


def _race_rows(race: race_service_pb2.Race) -> Iterator[Sequence[object]]:
    """Yield a row for the original, and one for each copy."""
    job = race.original
    yield (
        job.id,
        "the job itself",
        state_name(job.state),
        _where(job),
        time_text(time_of(race, "began")),
        time_text(time_of(race, "ended")) or "-",
        race.winner or "-",
        f"{race.lost_core_s / 3600:.2f}",
        race.outcome or race.reason,
    )
    for copy in race.copies:
        times = (time_text(time_of(copy, "started")) or "-", time_text(time_of(copy, "ended")) or "-")
        yield ("", f"copy {copy.id}", state_name(copy.state), _where(copy), *times, "", "", copy.reason)


def _where(job: jobs_pb2.Job) -> str:
    return f"{job.queue.site}/{job.queue.ce}/{job.queue.queue}" if job.HasField("queue") else "-"


def _race_json(race: race_service_pb2.Race) -> dict[str, Any]:
    return {
        "job": race.original.id,
        "state": state_name(race.original.state),
        "site": race.original.queue.site or None,
        "owner": race.original.owner,
        "vo": race.original.vo,
        "reason": race.reason,
        "began": iso(time_of(race, "began")),
        "ended": iso(time_of(race, "ended")),
        "winner": race.winner or None,
        "outcome": race.outcome or None,
        "lost_core_s": race.lost_core_s,
        "copies": [
            {
                "id": copy.id,
                "state": state_name(copy.state),
                "site": copy.queue.site or None,
                "reason": copy.reason or None,
                "submitted": iso(time_of(copy, "submitted")),
                "started": iso(time_of(copy, "started")),
                "ended": iso(time_of(copy, "ended")),
            }
            for copy in race.copies
        ],
    }


def _show_costs(found: Sequence[race_service_pb2.RaceCost], *, as_json: bool) -> None:
    if as_json:
        for cost in found:
            account = cost.account
            whose = {"vo": account.vo, "group": account.group, "owner": account.owner}
            echo_json(
                {**whose, "races": cost.races, "won_by_copies": cost.won_by_copies, "lost_core_s": cost.lost_core_s}
            )
        return
    rows = (
        (
            f"{cost.account.vo}/{cost.account.group}/{cost.account.owner}",
            cost.races,
            cost.won_by_copies,
            f"{cost.lost_core_s / 3600:.2f}",
        )
        for cost in found
    )
    echo_table(_COST_HEADINGS, rows, empty="no race has ended")
