"""Commands over pools, queues, pilots and slots."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from pilotage.resource_tree import QueueId
from pilotage.v1 import (
    node_service_pb2,
    pilot_service_pb2,
    pool_service_pb2,
    resource_service_pb2,
    values_pb2,
)
from pilotage.wire import section_from_wire
from pilotage_client.api import Client
from pilotage_client.private_files import write_private
from pilotage_client.running import echo_json, echo_table, section_text, with_client, with_operator_client
from pilotage_client.statuses import time_of

AS_JSON = click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")


@click.command()
@AS_JSON
@with_client
def pools(client: Client, as_json: bool) -> None:
    """Show submit pools: what they ask, how many jobs wait, how many queues could run them."""
    found = client.pools()
    if as_json:
        for pool in found:
            echo_json(_pool_json(pool))
        return
    rows = [
        (
            pool.id[:12],
            pool.vo,
            pool.waiting,
            pool.running,
            len(pool.queues),
            section_text(_section(pool.requirements)),
        )
        for pool in found
    ]
    echo_table(("POOL", "VO", "WAITING", "RUNNING", "QUEUES", "REQUIREMENTS"), rows, empty="no pools")


def _pool_json(pool: pool_service_pb2.Pool) -> dict[str, Any]:
    return {
        "id": pool.id,
        "vo": pool.vo,
        "requirements": _section(pool.requirements),
        "waiting": pool.waiting,
        "running": pool.running,
        "queues": [_queue_text(queue) for queue in pool.queues],
        "mapped": _iso(time_of(pool, "mapped")),
        "tree_version": pool.tree_version,
        "created": _iso(time_of(pool, "created")),
    }


@click.command()
@click.option("--vo", default="", help="As this VO sees them (default: your own).")
@click.option("--site", default="", help="Only those of this site.")
@AS_JSON
@with_client
def queues(client: Client, vo: str, site: str, as_json: bool) -> None:
    """Show the batch queues with their effective values."""
    found = client.queues(vo=vo or client.who_am_i().vo, site=site)
    if as_json:
        for queue in found:
            echo_json(_queue_json(queue))
        return
    rows = [
        (
            _queue_text(queue.queue),
            "yes" if queue.enabled else "no",
            queue.pilots,
            queue.pools,
            queue.waiting,
            queue.running,
            queue.banned,
        )
        for queue in found
    ]
    echo_table(("QUEUE", "ENABLED", "PILOTS", "POOLS", "WAITING", "RUNNING", "BANNED"), rows, empty="no queues")


def _queue_json(queue: resource_service_pb2.QueueInfo) -> dict[str, Any]:
    return {
        "site": queue.queue.site,
        "ce": queue.queue.ce,
        "queue": queue.queue.queue,
        "params": _section(queue.parameters),
        "origins": dict(sorted(queue.origins.items())),
        "enabled": queue.enabled,
        "banned": queue.banned or None,
        "pilots": queue.pilots,
        "pools": queue.pools,
        "waiting": queue.waiting,
        "running": queue.running,
    }


@click.command()
@click.option("--ended", is_flag=True, help="Also those that have ended.")
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
            _queue_text(pilot.queue),
            _pilot_state(pilot),
            pilot.node,
            pilot.jobs,
            pilot.jobs_ended,
            _clock(time_of(pilot, "last_seen")),
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
        "registered": _iso(time_of(pilot, "registered")),
        "last_seen": _iso(time_of(pilot, "last_seen")),
        "ends": _iso(time_of(pilot, "ends")),
    }


def _pilot_state(pilot: pilot_service_pb2.Pilot) -> str:
    return pilot_service_pb2.PilotState.Name(pilot.state).removeprefix("PILOT_STATE_")


@click.command()
@AS_JSON
@with_client
def slots(client: Client, as_json: bool) -> None:
    """Show the slots of live pilots."""
    found = client.slots()
    if as_json:
        for info in found:
            echo_json(_slot_json(info))
        return
    rows = [
        (
            f"{info.slot.name}@{info.node}",
            _queue_text(info.queue),
            info.slot.state,
            info.slot.activity,
            info.slot.amounts.cpus,
            info.slot.free.cpus,
            info.slot.amounts.memory_mib,
            info.slot.job_id or "",
        )
        for info in found
    ]
    echo_table(("SLOT", "QUEUE", "STATE", "ACTIVITY", "CPUS", "FREE", "MEMORY MiB", "JOB"), rows, empty="no slots")


def _slot_json(info: node_service_pb2.SlotInfo) -> dict[str, Any]:
    return {
        "name": info.slot.name,
        "node": info.node,
        "pilot": info.pilot_stamp,
        "site": info.queue.site,
        "ce": info.queue.ce,
        "queue": info.queue.queue,
        "state": info.slot.state,
        "activity": info.slot.activity,
        "cpus": info.slot.amounts.cpus,
        "memory_mib": info.slot.amounts.memory_mib,
        "disk_mib": info.slot.amounts.disk_mib,
        "gpus": info.slot.amounts.gpus,
        "free_cpus": info.slot.free.cpus,
        "load": info.slot.load,
        "job": info.slot.job_id or None,
        "since": _iso(time_of(info.slot, "since")),
        "last_seen": _iso(time_of(info, "last_seen")),
    }


@click.command(name="pilot-token")
@click.argument("queue", metavar="SITE/CE/QUEUE")
@click.option("--to", "path", required=True, type=click.Path(path_type=Path, dir_okay=False), help="Write it there.")
@click.option("--lifetime", "lifetime_s", default=0.0, help="How long it holds, in seconds; 0 = the server's default.")
@with_operator_client
def pilot_token(client: Client, queue: str, path: Path, lifetime_s: float) -> None:
    """Make the credential of one pilot that you start by hand in a queue."""
    credential = client.register_pilot(QueueId.parse(queue), lifetime_s=lifetime_s)
    write_private(path, credential.token + "\n")
    click.echo(f"pilot {credential.stamp} for {queue}: its token lies in {path}")


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
        ctx.exit(1)


def _section(wire: Mapping[str, values_pb2.Value]) -> dict[str, Any]:
    return dict(sorted(section_from_wire(wire).items()))


def _queue_text(queue: values_pb2.QueueId) -> str:
    return f"{queue.site}/{queue.ce}/{queue.queue}"


def _iso(moment: datetime | None) -> str | None:
    return moment.isoformat() if moment else None


def _clock(moment: datetime | None) -> str:
    return moment.astimezone().strftime("%H:%M:%S") if moment else ""


COMMANDS = (pools, queues, pilots, slots, pilot_token, drain)
