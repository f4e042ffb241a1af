"""Commands that show pools and queues."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from pilotage.v1 import pool_service_pb2, resource_service_pb2, values_pb2
from pilotage.wire import section_from_wire
from pilotage_client.api import Client
from pilotage_client.running import AS_JSON, echo_json, echo_table, queue_text, section_text, with_client
from pilotage_client.statuses import iso, time_of


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
        "queues": [queue_text(queue) for queue in pool.queues],
        "mapped": iso(time_of(pool, "mapped")),
        "tree_version": pool.tree_version,
        "created": iso(time_of(pool, "created")),
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
            queue_text(queue.queue),
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


def _section(wire: Mapping[str, values_pb2.Value]) -> dict[str, Any]:
    return dict(sorted(section_from_wire(wire).items()))


COMMANDS = (pools, queues)
