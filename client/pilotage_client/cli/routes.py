"""Commands about routes of job routers, and about races."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

import click

from pilotage.values.routing import LeftOutRoute, RouteOutline
from pilotage_client.api import Client
from pilotage_client.cli.options import (
    AS_JSON,
    IDS,
    echo_job_heading,
    echo_json,
    for_each_job,
    queue_text,
    time_text,
    with_client,
    with_operator_client,
)
from pilotage_client.cli.show.columns import Column, Listing, View, view_options, with_local_times
from pilotage_client.cli.show.grid_outputs import RaceCostJson, RaceJson, RoutedJobJson, RouteJson
from pilotage_client.models import JobStatus, iso
from pilotage_client.models.routes import RaceCostInfo, RaceInfo, RoutedJobInfo, RouteExplanation, RouterInfo

_Route: TypeAlias = tuple[RouterInfo, RouteOutline | LeftOutRoute]
"""A router with one of its routes, or with an unused route that may still have routed jobs."""


def _route_json(pair: _Route) -> RouteJson:
    router, route = pair
    used = route if isinstance(route, RouteOutline) else None
    return {
        "route": route.name,
        "target": used.target if used else None,
        "requirements": used.requirements if used else None,
        "constraint": router.constraint if used else None,
        "copies": route.copies,
        "max_jobs": used.max_jobs if used else None,
        "idle": route.idle,
        "max_idle_jobs": used.max_idle_jobs if used else None,
        "throttled": (used.throttled or None) if used else None,
        "closed": (used.closed or None) if used else None,
        "left_out": route.reason if isinstance(route, LeftOutRoute) else None,
        "router": router.name,
        "told": iso(router.reported),
    }


def _route_rows(pair: _Route) -> Iterator[Mapping[str, object]]:
    """Yield a row for a route; of unused ones only for those that still have routed jobs."""
    shown = _route_json(pair)
    if shown["left_out"] is not None and not shown["copies"]:
        return
    reasons = {"not used": shown["left_out"], "closed": shown["closed"], "throttled": shown["throttled"]}
    most_idle = "-" if shown["left_out"] is not None else "any"
    yield {
        **shown,
        "target": shown["target"] or "-",
        "max_jobs": "-" if shown["max_jobs"] is None else shown["max_jobs"],
        "max_idle_jobs": most_idle if shown["max_idle_jobs"] is None else shown["max_idle_jobs"],
        "obstacle": "; ".join(f"{cause}: {why}" for cause, why in reasons.items() if why),
    }


ROUTES = Listing(
    RouteJson,
    _route_json,
    Column("route", priority=0, shortest=12),
    Column("target", priority=2, shortest=12),
    Column("copies", priority=1),
    Column("max_jobs", "OF", priority=4),
    Column("idle", priority=1),
    Column("max_idle_jobs", "OF", priority=5),
    Column("router", priority=3, shortest=10),
    Column("told", priority=6),
    Column("obstacle", "GETS NO JOB", text=with_local_times, priority=2, shortest=16),
    empty="no job router has reported a route",
    rows=_route_rows,
)


@click.command("list")
@view_options(ROUTES)
@with_client
def list_routes(client: Client, view: View) -> None:
    """Show the routes of all job routers, and the number of their routed jobs."""
    routers = client.routers()
    found: list[_Route] = []
    for router in routers:
        found += ((router, route) for route in router.routes)
        found += ((router, route) for route in router.left_out)
    ROUTES.echo(found, view)
    for line in (line for router in routers if not view.as_json for line in _notes(router)):
        click.echo(line)


def _notes(router: RouterInfo) -> Iterator[str]:
    if router.constraint is not None:
        yield f"{router.name}: every job must satisfy {router.constraint}"
    if router.max_jobs is not None:
        yield f"{router.name}: at most {router.max_jobs} routed jobs in all"
    for route in router.left_out:
        if not route.copies:
            yield f"{router.name}: route {route.name} is not used: {route.reason}"


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


ROUTED_JOBS = Listing(
    RoutedJobJson,
    RoutedJobInfo.as_json,
    Column("job", priority=0),
    Column("attempt", priority=3),
    Column("state", priority=1, state=True),
    Column("route", priority=2, shortest=12),
    Column("target", priority=2, shortest=12),
    Column("reference", priority=1, shortest=12),
    empty="",
)


@click.command("give-up")
@click.argument("router")
@view_options(ROUTED_JOBS)
@with_operator_client
def give_up(client: Client, router: str, view: View) -> None:
    """Free the jobs of a job router that is lost for good, and show its routed jobs, which may still run."""
    copies = client.give_up_router(router)
    if view.as_json:
        ROUTED_JOBS.echo(copies, view)
        return
    if not copies:
        click.echo(f"{router} has no routed jobs; its routes are removed")
        return
    ROUTED_JOBS.echo(copies, view)
    click.echo("The jobs are free. Their routed jobs may still run: stop them at the targets.", err=True)


def _race_rows(race: RaceInfo) -> Iterator[Mapping[str, object]]:
    """Yield a row for the original, and one for each copy."""
    job = race.original
    yield {
        "job": job.id,
        "racer": "the job itself",
        "state": job.state,
        "where": _where(job),
        "began": race.began,
        "ended": race.ended,
        "winner": race.winner or None,
        "lost_h": race.lost_core_s / 3600,
        "why": race.outcome or race.reason,
    }
    for copy in race.copies:
        yield {
            "racer": f"copy {copy.id}",
            "state": copy.state,
            "where": _where(copy),
            "began": copy.started,
            "ended": copy.ended,
            "why": copy.reason,
        }


def _where(job: JobStatus) -> str:
    return queue_text(job) if job.site else "-"


RACES = Listing(
    RaceJson,
    RaceInfo.as_json,
    Column("job", priority=0),
    Column("racer", priority=1),
    Column("state", priority=1, state=True),
    Column("where", priority=2, shortest=16),
    Column("began", priority=5),
    Column("ended", priority=6),
    Column("winner", priority=3),
    Column("lost_h", "LOST h", right=True, priority=4),
    Column("why", priority=3, shortest=16),
    empty="no races",
    rows=_race_rows,
)


COSTS = Listing(
    RaceCostJson,
    RaceCostInfo.as_json,
    Column(
        "account",
        value=lambda cost: f"{cost.vo}/{cost.group}/{cost.owner}",
        priority=0,
        shortest=16,
    ),
    Column("races", priority=1),
    Column("won_by_copies", priority=1),
    Column("lost_core_s", "LOST h", text=lambda seconds: f"{seconds / 3600:.2f}", priority=1),
    empty="no race has ended",
)


@click.command()
@click.argument("ids", nargs=-1, metavar="[ID...]")
@click.option("--open", "open_only", is_flag=True, help="Only races that have not ended.")
@click.option("--owner", default="", help='Only jobs of this owner; "*" = all that you may see. Default: you.')
@click.option("--costs", is_flag=True, help="The costs of ended races, by account.")
@view_options(RACES, COSTS)
@with_client
def races(client: Client, ids: Sequence[str], open_only: bool, owner: str, costs: bool, view: View) -> None:
    """Show races of jobs: of the given originals, or of yours."""
    if costs:
        COSTS.echo(client.race_costs(owner=owner), view)
        return
    # given ids select jobs of any owner
    found = client.races(client.find_jobs(ids).ids, owner=owner or ("*" if ids else ""), open_only=open_only)
    RACES.echo(found, view)
