"""The command that plans, shows and cancels downtimes."""

from __future__ import annotations

from typing import Literal

import click

from pilotage import clock
from pilotage.units import parse_duration
from pilotage.v1 import resource_service_pb2
from pilotage_client.api import Client
from pilotage_client.cli.options import (
    ONE_JSON,
    CommandGroup,
    coming_time,
    echo_json,
    node_names,
    time_text,
    with_operator_client,
)
from pilotage_client.cli.show.columns import Column, Listing, View, view_options
from pilotage_client.cli.show.operator_outputs import DowntimeJson
from pilotage_client.models import iso, time_of


def _length(seconds: float) -> str:
    """Return a length in the largest unit of which it is a whole number, such as "90 min"."""
    unit, name = next((each for each in ((3600, "h"), (60, "min")) if seconds % each[0] == 0), (1, "s"))
    return f"{seconds / unit:.10g} {name}"


def _place(downtime: resource_service_pb2.Downtime) -> str:
    return "/".join(part for part in (downtime.site, downtime.ce, downtime.queue) if part)


def _times(downtime: resource_service_pb2.Downtime) -> str:
    return f"{time_text(time_of(downtime, 'start'))} to {time_text(time_of(downtime, 'end'))}"


def _state(downtime: resource_service_pb2.Downtime) -> Literal["planned", "draining", "down"]:
    """Return how far a downtime is: planned, draining, or down."""
    start = time_of(downtime, "start")
    assert start is not None, "a downtime has a start"
    left_s = (start - clock.now()).total_seconds()
    if left_s <= 0:
        return "down"
    return "draining" if left_s <= downtime.drain_s else "planned"


def _downtime_json(downtime: resource_service_pb2.Downtime) -> DowntimeJson:
    return {
        "id": downtime.id,
        "place": _place(downtime),
        "site": downtime.site,
        "ce": downtime.ce or None,
        "queue": downtime.queue or None,
        "state": _state(downtime),
        "from": iso(time_of(downtime, "start")),
        "to": iso(time_of(downtime, "end")),
        "drain_s": downtime.drain_s,
        "by": downtime.by,
        "reason": downtime.reason,
    }


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


class DowntimeGroup(CommandGroup):
    """A group in which a place stands for the command that plans: `downtime SITE` = `downtime plan SITE`."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command of the first argument, and its arguments."""
        if args and args[0] not in self.commands:
            args = ["plan", *args]
        return super().resolve_command(ctx, args)


@click.group(cls=DowntimeGroup)
def downtime() -> None:
    """Plan a downtime of a site, a CE or a queue; `downtime list` and `downtime cancel`."""


@downtime.command("plan")
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
        click.echo(f"downtime {planned.id} of {_place(planned)}: {_times(planned)}")


@downtime.command("list")
@view_options(DOWNTIMES)
@with_operator_client
def list_downtimes(client: Client, view: View) -> None:
    """Show the downtimes that are not over."""
    DOWNTIMES.echo(client.downtimes(), view)


@downtime.command("cancel")
@click.argument("number", type=click.IntRange(min=1), metavar="ID")
@ONE_JSON
@with_operator_client
def cancel(client: Client, number: int, as_json: bool) -> None:
    """Cancel a downtime, or end it now; bans by operators stay."""
    cancelled = client.cancel_downtime(number)
    if as_json:
        echo_json(_downtime_json(cancelled))
    else:
        click.echo(f"downtime {number} of {_place(cancelled)} is cancelled")


COMMANDS = (downtime,)
