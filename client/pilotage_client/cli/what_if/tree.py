"""Shows what a tree changes, or would: the pools that gain or lose queues, and the jobs that this helps or stops."""

from __future__ import annotations

from collections.abc import Sequence

import click

from pilotage.resources.tree import QueueId
from pilotage_client.cli.options import section_text
from pilotage_client.cli.show.tables import echo_table
from pilotage_client.models.operations import TreeChanges

SHOWN_CHANGES = 20
_SHOWN_QUEUES = 3


def show_changes(answer: TreeChanges, *, dry_run: bool) -> None:
    """Print the changes."""
    click.echo(f"tree version {answer.version} {'would be' if dry_run else 'is'} active")
    if answer.changes:
        rows = [
            (
                change.pool_id[:12],
                change.vo,
                section_text(change.requirements),
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


def _queues(count: int, queues: Sequence[QueueId]) -> str:
    """Return the number of queues and the first names, such as "2: A/ce/q, B/ce/q"."""
    names = ", ".join(map(str, queues[:_SHOWN_QUEUES]))
    return f"{count}: {names}{', …' if count > _SHOWN_QUEUES else ''}" if count else ""
