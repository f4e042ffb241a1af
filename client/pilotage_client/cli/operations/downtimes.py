"""The command that plans, shows and cancels downtimes."""

from __future__ import annotations

from typing import Any

import click

from pilotage import clock
from pilotage.units import parse_duration
from pilotage_client.api import Client
from pilotage_client.cli.options import (
    ONE_JSON,
    coming_time,
    echo_json,
    node_names,
    time_text,
    with_operator_client,
)
from pilotage_client.cli.show.columns import Column, Listing, View, view_options
from pilotage_client.cli.show.operator_outputs import DowntimeJson
from pilotage_client.models.operations import DowntimeInfo


def _length(seconds: float) -> str:
    """Return a length in the largest unit of which it is a whole number, such as "90 min"."""
    unit, name = next((each for each in ((3600, "h"), (60, "min")) if seconds % each[0] == 0), (1, "s"))
    return f"{seconds / unit:.10g} {name}"


def _times(downtime: DowntimeInfo) -> str:
    return f"{time_text(downtime.start)} to {time_text(downtime.end)}"


def _downtime_json(downtime: DowntimeInfo) -> dict[str, Any]:
    fields = downtime.as_json()
    named = {name: fields.pop(name) for name in ("id", "place", "site", "ce", "queue")}
    return {**named, "state": downtime.state_at(clock.now()), **fields}


DOWNTIMES = Listing(
    DowntimeJson,
    _downtime_json,
    Column("id", priority=0),
    Column("place", priority=0, shortest=16),
    Column("state", priority=1, state=True),
    Column("from", priority=2),
    Column("to", priority=2),
    Column("drain_s", "DRAIN", text=lambda seconds: _length(seconds) if seconds else "", priority=5),
    Column("by", priority=4),
    Column("reason", priority=3, shortest=16),
    empty="no downtimes are planned",
)


@click.command("plan")
@click.argument("place", metavar="SITE[/CE[/QUEUE]]")
@click.option(
    "--from", "start", required=True, metavar="TIME", help='The start: "+2h", "now", or ISO 8601 with a zone.'
)
@click.option("--to", "end", required=True, metavar="TIME", help="The end, likewise; jobs start again then.")
@click.option("--reason", required=True, help="The reason; shown to users.")
@click.option("--drain", default="0 s", metavar="TIME", help="How long before the start no job starts at all.")
@ONE_JSON
@with_operator_client
def plan(client: Client, place: str, start: str, end: str, reason: str, drain: str, as_json: bool) -> None:
    """Plan a downtime: no jobs and pilots that would reach into it, and none at all while it lasts."""
    planned = client.plan_downtime(
        node_names(place),
        start=coming_time(start, "--from"),
        end=coming_time(end, "--to"),
        reason=reason,
        drain_s=parse_duration(drain, "--drain").total_seconds(),
    )
    if as_json:
        echo_json(_downtime_json(planned))
    else:
        click.echo(f"downtime {planned.id} of {planned.place}: {_times(planned)}")


@click.command("list")
@view_options(DOWNTIMES)
@with_operator_client
def list_downtimes(client: Client, view: View) -> None:
    """Show the downtimes that are not over."""
    DOWNTIMES.echo(client.downtimes(), view)


@click.command("cancel")
@click.argument("number", type=click.IntRange(min=1), metavar="ID")
@ONE_JSON
@with_operator_client
def cancel(client: Client, number: int, as_json: bool) -> None:
    """Cancel a downtime, or end it now; bans by operators stay."""
    cancelled = client.cancel_downtime(number)
    if as_json:
        echo_json(_downtime_json(cancelled))
    else:
        click.echo(f"downtime {number} of {cancelled.place} is cancelled")
