"""Commands about black holes: places that get no more than single jobs, because jobs fail fast there."""

from __future__ import annotations

from typing import Any

import click

from pilotage import clock
from pilotage.errors import InvalidInputError, Violation
from pilotage.resources import parse_duration
from pilotage.v1 import resource_service_pb2
from pilotage_client.api import Client
from pilotage_client.running import AS_JSON, CommandGroup, echo_json, echo_table, moment, with_operator_client
from pilotage_client.statuses import iso, time_of


@click.group(cls=CommandGroup)
def health() -> None:
    """Show and change which nodes, queues and sites are throttled as black holes."""


_PLACE = click.argument("name", metavar="SITE[/NODE|/CE/QUEUE]")


@health.command("list")
@AS_JSON
@with_operator_client
def list_throttles(client: Client, as_json: bool) -> None:
    """Show the places that are throttled or held, or were opened lately, with the evidence."""
    found = client.throttles()
    if as_json:
        for each in found:
            echo_json(_json(each))
        return
    rows = [
        (
            _name(each.place),
            each.state,
            moment(time_of(each, "since")),
            f"{each.failures} of {each.ends}",
            moment(time_of(each, "next_trial")) or "-",
            each.by,
            each.reason,
        )
        for each in found
    ]
    header = ("PLACE", "STATE", "SINCE", "FAILED", "NEXT TRIAL", "BY", "REASON")
    echo_table(header, rows, empty="no place is throttled")


@health.command()
@_PLACE
@click.option("--reason", required=True, help="Why; users see it.")
@click.option("--for", "duration", metavar="TIME", help='How long, such as "2 h"; default: until it is opened.')
@with_operator_client
def hold(client: Client, name: str, reason: str, duration: str | None) -> None:
    """Let a place get no job; when the time is over, it is tried with single jobs."""
    until = clock.now() + parse_duration(duration, "--for") if duration else None
    held, warnings = client.hold_place(_place(name), reason=reason, until=until)
    for warning in warnings:
        click.echo(f"warning: {warning}", err=True)
    click.echo(f"{_name(held.place)} is held" + (f" until {until.isoformat(timespec='seconds')}" if until else ""))


@health.command("open")
@_PLACE
@with_operator_client
def open_place(client: Client, name: str) -> None:
    """Let a place get jobs again, without trials."""
    click.echo(f"{_name(client.open_place(_place(name)).place)} is open")


def _place(name: str) -> resource_service_pb2.Place:
    """Return the place that a name of one, two or three parts means; a queue's name may hold a slash."""
    match name.split("/", 2):
        case [site] if site:
            return resource_service_pb2.Place(site=site)
        case [site, node] if site and node:
            return resource_service_pb2.Place(site=site, node=node)
        case [site, ce, queue] if site and ce and queue:
            return resource_service_pb2.Place(site=site, ce=ce, queue=queue)
        case _:
            raise InvalidInputError(Violation(name, "names no place; write SITE, SITE/NODE or SITE/CE/QUEUE"))


def _name(place: resource_service_pb2.Place) -> str:
    return "/".join(part for part in (place.site, place.ce, place.queue, place.node) if part)


def _json(throttle: resource_service_pb2.Throttle) -> dict[str, Any]:
    place = throttle.place
    return {
        "place": _name(place),
        "site": place.site,
        "ce": place.ce or None,
        "queue": place.queue or None,
        "node": place.node or None,
        "state": throttle.state,
        "since": iso(time_of(throttle, "since")),
        "failures": throttle.failures,
        "attempts": throttle.ends,
        "proofs": throttle.proofs,
        "next_trial": iso(time_of(throttle, "next_trial")),
        "by": throttle.by or None,
        "reason": throttle.reason,
    }
