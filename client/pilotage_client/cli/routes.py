"""Commands about routes of job routers, and about races."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

import click

from pilotage.v1 import jobs_pb2, race_service_pb2, route_service_pb2
from pilotage_client.api import Client
from pilotage_client.cli.options import (
    AS_JSON,
    IDS,
    CommandGroup,
    echo_job_heading,
    echo_json,
    for_each_job,
    queue_text,
    time_text,
    with_client,
    with_operator_client,
)
from pilotage_client.cli.show.columns import Column, Listing, View, view_options, with_local_times
from pilotage_client.cli.show.outputs import RaceCostJson, RaceJson, RoutedJobJson, RouteJson
from pilotage_client.models import iso, state_name, time_of


@click.group(cls=CommandGroup)
def routes() -> None:
    """Show the routes of job routers, and why a route takes a job or not."""


_Route: TypeAlias = tuple[route_service_pb2.Router, route_service_pb2.RouteOutline | route_service_pb2.LeftOutRoute]
"""A router with one of its routes, or with an unused route that may still have routed jobs."""


def _route_json(pair: _Route) -> RouteJson:
    router, route = pair
    outline, left_out = route_service_pb2.RouteOutline(), None
    if isinstance(route, route_service_pb2.RouteOutline):
        outline = route
    else:
        left_out = route.reason
    is_used = left_out is None
    return {
        "route": route.name,
        "target": outline.target or None,
        "requirements": outline.requirements if outline.HasField("requirements") else None,
        "constraint": router.constraint if is_used and router.HasField("constraint") else None,
        "copies": route.copies,
        "max_jobs": outline.max_jobs if is_used else None,
        "idle": route.idle,
        "max_idle_jobs": outline.max_idle_jobs if outline.HasField("max_idle_jobs") else None,
        "throttled": outline.throttled or None,
        "closed": outline.closed or None,
        "left_out": left_out,
        "router": router.name,
        "told": iso(time_of(router, "told")),
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


@routes.command("list")
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


def _notes(router: route_service_pb2.Router) -> Iterator[str]:
    if router.HasField("constraint"):
        yield f"{router.name}: every job must satisfy {router.constraint}"
    if router.HasField("max_jobs"):
        yield f"{router.name}: at most {router.max_jobs} routed jobs in all"
    for route in router.left_out:
        if not route.copies:
            yield f"{router.name}: route {route.name} is not used: {route.reason}"


@routes.command()
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


def _routed_job_json(copy: route_service_pb2.JobCopy) -> RoutedJobJson:
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


ROUTED_JOBS = Listing(
    RoutedJobJson,
    _routed_job_json,
    Column("job", priority=0),
    Column("attempt", priority=3),
    Column("state", priority=1, state=True),
    Column("route", priority=2, shortest=12),
    Column("target", priority=2, shortest=12),
    Column("reference", priority=1, shortest=12),
    empty="",
)


@routes.command("give-up")
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


def _race_json(race: race_service_pb2.Race) -> RaceJson:
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


def _race_rows(race: race_service_pb2.Race) -> Iterator[Mapping[str, object]]:
    """Yield a row for the original, and one for each copy."""
    job = race.original
    yield {
        "job": job.id,
        "racer": "the job itself",
        "state": state_name(job.state),
        "where": _where(job),
        "began": time_of(race, "began"),
        "ended": time_of(race, "ended"),
        "winner": race.winner or None,
        "lost_h": race.lost_core_s / 3600,
        "why": race.outcome or race.reason,
    }
    for copy in race.copies:
        yield {
            "racer": f"copy {copy.id}",
            "state": state_name(copy.state),
            "where": _where(copy),
            "began": time_of(copy, "started"),
            "ended": time_of(copy, "ended"),
            "why": copy.reason,
        }


def _where(job: jobs_pb2.Job) -> str:
    return queue_text(job.queue) if job.HasField("queue") else "-"


RACES = Listing(
    RaceJson,
    _race_json,
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


def _cost_json(cost: race_service_pb2.RaceCost) -> RaceCostJson:
    return {
        "vo": cost.account.vo,
        "group": cost.account.group,
        "owner": cost.account.owner,
        "races": cost.races,
        "won_by_copies": cost.won_by_copies,
        "lost_core_s": cost.lost_core_s,
    }


COSTS = Listing(
    RaceCostJson,
    _cost_json,
    Column(
        "account",
        value=lambda cost: f"{cost.account.vo}/{cost.account.group}/{cost.account.owner}",
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


COMMANDS = (routes, races)
