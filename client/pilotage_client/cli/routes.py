"""Commands about routes of job routers, and about races."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import click

from pilotage.values.routing import RouteOutline
from pilotage_client.api import Client
from pilotage_client.cli.options import (
    AS_JSON,
    IDS,
    echo_job_heading,
    echo_json,
    echo_table,
    for_each_job,
    queue_text,
    time_text,
    with_client,
    with_operator_client,
)
from pilotage_client.models import JobStatus, iso
from pilotage_client.models.routes import RaceCostInfo, RaceInfo, RouteExplanation, RouterInfo


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


def _rows(router: RouterInfo) -> Iterator[tuple[object, ...]]:
    """Yield a row for each route, and for each unused route that still has routed jobs."""
    yield from (_route_row(router, route) for route in router.routes)
    reported = time_text(router.reported)
    for each in router.left_out:
        if each.copies:
            counts = each.copies, "-", each.idle, "-"
            yield each.name, "-", *counts, router.name, reported, f"not used: {each.reason}"


def _route_row(router: RouterInfo, route: RouteOutline) -> tuple[object, ...]:
    most_idle = "any" if route.max_idle_jobs is None else route.max_idle_jobs
    reported = time_text(router.reported)
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


def _notes(router: RouterInfo) -> Iterator[str]:
    if router.constraint is not None:
        yield f"{router.name}: every job must satisfy {router.constraint}"
    if router.max_jobs is not None:
        yield f"{router.name}: at most {router.max_jobs} routed jobs in all"
    for route in router.left_out:
        if not route.copies:
            yield f"{router.name}: route {route.name} is not used: {route.reason}"


def _routes_json(router: RouterInfo) -> Iterator[dict[str, Any]]:
    shared = {"router": router.name, "told": iso(router.reported)}
    for route in router.routes:
        yield {
            "route": route.name,
            "target": route.target,
            "requirements": route.requirements,
            "constraint": router.constraint,
            "copies": route.copies,
            "max_jobs": route.max_jobs,
            "idle": route.idle,
            "max_idle_jobs": route.max_idle_jobs,
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
        echo_json(answer.as_json())
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


def routed_job_lines(answer: RouteExplanation) -> Iterator[str]:
    """Yield lines about the latest routed job of a job; none if there is none."""
    if (copy := answer.copy) is None:
        return
    found = f", {copy.reference} there" if copy.reference else ""
    routed = time_text(copy.routed)
    yield f"Attempt {copy.attempt} was routed by {copy.route} of {copy.router} to {copy.target} at {routed}{found}"
    if copy.unwanted:
        yield f"    {copy.unwanted}"


@click.command("give-up")
@click.argument("router")
@AS_JSON
@with_operator_client
def give_up(client: Client, router: str, as_json: bool) -> None:
    """Free the jobs of a job router that is lost for good, and show its routed jobs, which may still run."""
    copies = client.give_up_router(router)
    if as_json:
        for copy in copies:
            echo_json(copy.as_json())
        return
    if not copies:
        click.echo(f"{router} has no routed jobs; its routes are removed")
        return
    rows = [(each.job_id, each.attempt, each.state, each.route, each.target, each.reference) for each in copies]
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
            echo_json(race.as_json())
        return
    echo_table(_RACE_HEADINGS, (row for race in found for row in _race_rows(race)), empty="no races")


def _race_rows(race: RaceInfo) -> Iterator[Sequence[object]]:
    """Yield a row for the original, and one for each copy."""
    job = race.original
    yield (
        job.id,
        "the job itself",
        job.state,
        _where(job),
        time_text(race.began),
        time_text(race.ended) or "-",
        race.winner or "-",
        f"{race.lost_core_s / 3600:.2f}",
        race.outcome or race.reason,
    )
    for copy in race.copies:
        times = (time_text(copy.started) or "-", time_text(copy.ended) or "-")
        yield ("", f"copy {copy.id}", copy.state, _where(copy), *times, "", "", copy.reason)


def _where(job: JobStatus) -> str:
    return queue_text(job) if job.site else "-"


def _show_costs(found: Sequence[RaceCostInfo], *, as_json: bool) -> None:
    if as_json:
        for cost in found:
            echo_json(cost.as_json())
        return
    rows = (
        (
            f"{cost.vo}/{cost.group}/{cost.owner}",
            cost.races,
            cost.won_by_copies,
            f"{cost.lost_core_s / 3600:.2f}",
        )
        for cost in found
    )
    echo_table(_COST_HEADINGS, rows, empty="no race has ended")
