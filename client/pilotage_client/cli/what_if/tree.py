"""Shows what a tree changes, or would: the pools that gain or lose queues, and the jobs that this helps or stops."""

from __future__ import annotations

from collections.abc import Sequence

import click

from pilotage.rpc.wire import section_from_wire
from pilotage.v1 import resource_service_pb2, values_pb2
from pilotage_client.cli.options import echo_table, queue_text, section_text

SHOWN_CHANGES = 20
_SHOWN_QUEUES = 3


def changes_json(answer: resource_service_pb2.PutTreeResponse) -> dict[str, object]:
    """Return the changes as a JSON object."""
    return {
        "version": answer.version,
        "jobs_runnable": answer.jobs_runnable,
        "jobs_stuck": answer.jobs_stuck,
        "first_runnable": list(answer.first_runnable),
        "first_stuck": list(answer.first_stuck),
        "pools_changed": answer.pools_changed,
        "pools_rekeyed": answer.pools_rekeyed,
        "changes": [
            {
                "pool": change.pool_id,
                "vo": change.vo,
                "requirements": section_from_wire(change.requirements),
                "waiting": change.waiting,
                "gained": [queue_text(queue) for queue in change.gained],
                "gained_count": change.gained_count,
                "lost": [queue_text(queue) for queue in change.lost],
                "lost_count": change.lost_count,
            }
            for change in answer.changes
        ],
        "warnings": list(answer.warnings),
    }


def show_changes(answer: resource_service_pb2.PutTreeResponse, *, dry_run: bool) -> None:
    """Print the changes."""
    click.echo(f"tree version {answer.version} {'would be' if dry_run else 'is'} active")
    if answer.changes:
        rows = [
            (
                change.pool_id[:12],
                change.vo,
                section_text(section_from_wire(change.requirements)),
                change.waiting,
                _queues(change.gained_count, change.gained),
                _queues(change.lost_count, change.lost),
            )
            for change in answer.changes[:SHOWN_CHANGES]
        ]
        echo_table(("POOL", "VO", "REQUIREMENTS", "WAITING", "GAINS", "LOSES"), rows, empty="")
    if answer.pools_changed > SHOWN_CHANGES:
        click.echo(f"... and {answer.pools_changed - SHOWN_CHANGES} more pools (--json shows {len(answer.changes)})")
    for count, ids, what in (
        (answer.jobs_runnable, answer.first_runnable, "become runnable"),
        (answer.jobs_stuck, answer.first_stuck, "become stuck"),
    ):
        more = f" ({', '.join(map(str, ids))}{', …' if count > len(ids) else ''})" if ids else ""
        click.echo(f"waiting jobs that {what}: {count}{more}")


def _queues(count: int, queues: Sequence[values_pb2.QueueId]) -> str:
    """Return the number of queues and the first names, such as "2: A/ce/q, B/ce/q"."""
    names = ", ".join(queue_text(queue) for queue in queues[:_SHOWN_QUEUES])
    return f"{count}: {names}{', …' if count > _SHOWN_QUEUES else ''}" if count else ""
