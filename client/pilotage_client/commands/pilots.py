"""Commands over pilots: see them, let one in that you start by hand, let them end."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path
from typing import Any

import click

from pilotage.resource_tree import QueueId
from pilotage.resources import parse_time
from pilotage.v1 import pilot_service_pb2
from pilotage_client.api import Client
from pilotage_client.children import program
from pilotage_client.private_files import write_private
from pilotage_client.running import (
    AS_JSON,
    FAILED,
    ONE_JSON,
    echo_json,
    echo_table,
    moment,
    queue_text,
    with_client,
    with_operator_client,
)
from pilotage_client.statuses import iso, time_of

PILOT = "pilotage-pilot"


@click.command()
@click.option("--ended", is_flag=True, help="Also those that have ended, or were lost more than an hour ago.")
@AS_JSON
@with_client
def pilots(client: Client, ended: bool, as_json: bool) -> None:
    """Show pilots: where they are, whether they live, what they have done."""
    found = client.pilots(ended=ended)
    if as_json:
        for pilot in found:
            echo_json(_pilot_json(pilot))
        return
    rows = [
        (
            pilot.stamp,
            queue_text(pilot.queue),
            _pilot_state(pilot),
            pilot.node,
            pilot.jobs,
            pilot.jobs_ended,
            moment(time_of(pilot, "last_seen")),
            pilot.reason,
        )
        for pilot in found
    ]
    echo_table(("STAMP", "QUEUE", "STATE", "NODE", "JOBS", "DONE", "LAST SEEN", "REASON"), rows, empty="no pilots")


def _pilot_json(pilot: pilot_service_pb2.Pilot) -> dict[str, Any]:
    return {
        "stamp": pilot.stamp,
        "site": pilot.queue.site,
        "ce": pilot.queue.ce,
        "queue": pilot.queue.queue,
        "state": _pilot_state(pilot),
        "reason": pilot.reason or None,
        "glidein_id": pilot.glidein_id or None,
        "node": pilot.node or None,
        "jobs": pilot.jobs,
        "jobs_ended": pilot.jobs_ended,
        "vos": list(pilot.vos),
        "registered": iso(time_of(pilot, "registered")),
        "last_seen": iso(time_of(pilot, "last_seen")),
        "ends": iso(time_of(pilot, "ends")),
    }


def _pilot_state(pilot: pilot_service_pb2.Pilot) -> str:
    return pilot_service_pb2.PilotState.Name(pilot.state).removeprefix("PILOT_STATE_")


@click.command(name="pilot-token")
@click.argument("queue", metavar="SITE/CE/QUEUE")
@click.option("--to", "path", required=True, type=click.Path(path_type=Path, dir_okay=False), help="Write it there.")
@click.option("--lifetime", metavar="TIME", help="How long it holds, such as '2 d' (default: the server's).")
@ONE_JSON
@with_operator_client
def pilot_token(client: Client, queue: str, path: Path, lifetime: str | None, as_json: bool) -> None:
    """Make the credential of one pilot that you start by hand in a queue, and print the command to start it."""
    lifetime_s = float(parse_time(lifetime, "--lifetime")) if lifetime else 0.0
    credential = client.register_pilot(QueueId.parse(queue), lifetime_s=lifetime_s)
    write_private(path, credential.token + "\n")
    command = pilot_command(client.server, path.absolute())
    if as_json:
        echo_json({"stamp": credential.stamp, "token_file": str(path.absolute()), "command": command})
        return
    click.echo(f"pilot {credential.stamp} for {queue}: its token lies in {path}; start it with", err=True)
    click.echo(shlex.join(command))


def pilot_command(server: str, token_file: Path) -> list[str]:
    """Return the command that starts a pilot; by its name alone where a shell finds it, else by its path."""
    start = PILOT if shutil.which(PILOT) else program(PILOT)
    addresses = [option for address in server.split(",") for option in ("--server", address.strip())]
    return [start, "run", *addresses, "--token-file", str(token_file)]


@click.command()
@click.argument("stamps", nargs=-1, required=True, metavar="STAMP...")
@click.option("--reason", default="an operator wants it", help="Why; shown with the pilot.")
@click.option("--evict", is_flag=True, help="Evict what runs, rather than let it end.")
@with_operator_client
@click.pass_context
def drain(ctx: click.Context, client: Client, stamps: tuple[str, ...], reason: str, evict: bool) -> None:
    """Let pilots end: they take no new jobs."""
    unknown = client.drain_pilots(stamps, reason=reason, evict=evict)
    for stamp in unknown:
        click.echo(f"there is no live pilot {stamp}", err=True)
    if unknown:
        ctx.exit(FAILED)


COMMANDS = (pilots, pilot_token, drain)
