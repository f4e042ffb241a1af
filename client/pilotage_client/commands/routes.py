"""Commands about routes, by which jobs go as copies to places that take no pilots."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import click

from pilotage.v1 import route_service_pb2
from pilotage_client.api import Client
from pilotage_client.running import (
    AS_JSON,
    ONE_JSON,
    CommandGroup,
    echo_json,
    echo_table,
    job_ids,
    moment,
    with_client,
    with_operator_client,
)
from pilotage_client.statuses import iso, state_name, time_of


@click.group(cls=CommandGroup)
def routes() -> None:
    """Show by which routes jobs go as copies to other places, and why a job does not."""


@routes.command("list")
@AS_JSON
@with_client
def list_routes(client: Client, as_json: bool) -> None:
    """Show the routes of all job routers, and how many copies they have."""
    routers = client.routers()
    if as_json:
        for router in routers:
            for row in _json_of_router(router):
                echo_json(row)
        return
    rows = [_row(router, route) for router in routers for route in router.routes]
    header = ("ROUTE", "TARGET", "COPIES", "OF", "IDLE", "OF", "ROUTER", "TOLD", "GETS NO JOB")
    echo_table(header, rows, empty="no job router has told of a route")
    for line in (line for router in routers for line in _notes(router)):
        click.echo(line)


def _row(router: route_service_pb2.Router, route: route_service_pb2.RouteOutline) -> tuple[object, ...]:
    most_idle = route.max_idle_jobs if route.HasField("max_idle_jobs") else "any"
    told = moment(time_of(router, "told"))
    copies = route.copies, route.max_jobs, route.idle, most_idle
    return (route.name, route.target, *copies, router.name, told, _why_no_job(route))


def _why_no_job(route: route_service_pb2.RouteOutline) -> str:
    reasons = {"closed": route.closed, "throttled": route.throttled}
    return "; ".join(f"{word}: {why}" for word, why in reasons.items() if why)


def _notes(router: route_service_pb2.Router) -> Iterator[str]:
    if router.HasField("constraint"):
        yield f"{router.name}: every job must fulfil {router.constraint}"
    if router.HasField("max_jobs"):
        yield f"{router.name}: at most {router.max_jobs} copies of all routes"
    for each in router.left_out:
        yield f"{router.name}: route {each.name} is not used: {each.reason}"


def _json_of_router(router: route_service_pb2.Router) -> Iterator[dict[str, Any]]:
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
        absent = dict.fromkeys(("target", "requirements", "constraint", "copies", "max_jobs", "idle", "max_idle_jobs"))
        yield {"route": each.name, **absent, "throttled": None, "closed": None, "left_out": each.reason, **shared}


@routes.command()
@click.argument("job", metavar="ID")
@ONE_JSON
@with_client
def explain(client: Client, job: str, as_json: bool) -> None:
    """Say of each route whether it takes a job, or all that keeps the job from it."""
    (job_id,) = job_ids([job])[:1]
    answer = client.explain_routes(job_id)
    if as_json:
        echo_json(_explanation(job_id, answer))
        return
    if answer.obstacle:
        click.echo(f"Job {job_id} goes no route now: {answer.obstacle}")
    for line in copy_lines(answer):
        click.echo(line)
    for verdict in answer.verdicts:
        click.echo(f"{verdict.route} -> {verdict.target} ({verdict.router})")
        for obstacle in verdict.obstacles:
            click.echo(f"    {obstacle.kind}: {obstacle.why}")
        if not verdict.obstacles:
            click.echo("    takes the job")
    if not answer.verdicts:
        click.echo("no job router has told of a route")


def copy_lines(answer: route_service_pb2.ExplainRoutesResponse) -> Iterator[str]:
    """Yield what there is to say of the copy that was made of a job last; nothing where none is known."""
    if not answer.HasField("copy"):
        return
    copy = answer.copy
    found = f", {copy.reference} there" if copy.reference else ""
    routed = moment(time_of(copy, "routed"))
    yield f"Attempt {copy.attempt} went by route {copy.route} of {copy.router} to {copy.target} at {routed}{found}"
    if copy.unwanted:
        yield f"    {copy.unwanted}"


def _explanation(job_id: int, answer: route_service_pb2.ExplainRoutesResponse) -> dict[str, Any]:
    return {
        "job": job_id,
        "obstacle": answer.obstacle or None,
        "copy": _json_of_copy(answer.copy) if answer.HasField("copy") else None,
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


def _json_of_copy(copy: route_service_pb2.JobCopy) -> dict[str, Any]:
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


@routes.command("give-up")
@click.argument("router")
@AS_JSON
@with_operator_client
def give_up(client: Client, router: str, as_json: bool) -> None:
    """Free the jobs of a job router that is gone for good; copies that it made may still run, and are shown."""
    copies = client.give_up_router(router)
    if as_json:
        for copy in copies:
            echo_json(_json_of_copy(copy))
        return
    if not copies:
        click.echo(f"{router} holds no job; what it told of its routes is forgotten")
        return
    echo_table(("JOB", "ATTEMPT", "STATE", "ROUTE", "TARGET", "REFERENCE"), _copy_rows(copies), empty="")
    click.echo("The jobs are free. Copies that were made of them may still run: stop them where they are.", err=True)


def _copy_rows(copies: Iterable[route_service_pb2.JobCopy]) -> Iterator[tuple[object, ...]]:
    for copy in copies:
        yield copy.job_id, copy.attempt, state_name(copy.state), copy.route, copy.target, copy.reference
