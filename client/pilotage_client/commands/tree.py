"""Commands over the resource tree: the one in force, and files that may come to be."""

from __future__ import annotations

from pathlib import Path

import click

from pilotage.v1 import resource_service_pb2
from pilotage_client.api import Client
from pilotage_client.commands.offline import eligible, resolve
from pilotage_client.running import ONE_JSON, SectionedGroup, echo_json, queue_text, with_operator_client
from pilotage_client.statuses import iso, time_of
from pilotage_client.tree_files import faults_of, read_tree_file, tree_format

SHOWN_CHANGES = 20


@click.group(
    cls=SectionedGroup,
    sections={"The tree in force": ("show", "put"), "Tree files, without a server": ("resolve", "eligible")},
)
def tree() -> None:
    """Show the resource tree, bring a new version of it, or look into a file offline."""


tree.add_command(resolve)
tree.add_command(eligible)


@tree.command()
@ONE_JSON
@with_operator_client
def show(client: Client, as_json: bool) -> None:
    """Print the tree in force, as it was given."""
    answer = client.tree()
    if as_json:
        echo_json(
            {
                "version": answer.version,
                "format": answer.format or None,
                "created": iso(time_of(answer, "created")),
                "created_by": answer.created_by or None,
                "text": answer.text,
            }
        )
        return
    click.echo(answer.text, nl=False)


@tree.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--validate-only", is_flag=True, help="Only say what it would change.")
@ONE_JSON
@with_operator_client
def put(client: Client, file: Path, validate_only: bool, as_json: bool) -> None:
    """Bring a new version of the tree: taken whole, or refused whole with every error."""
    text, format_name = read_tree_file(file), tree_format(file)
    with faults_of(file):
        answer = client.put_tree(text, format_name, validate_only=validate_only)
    for warning in answer.warnings:
        click.echo(f"warning: {warning}", err=True)
    if as_json:
        echo_json(_changes_json(answer))
    else:
        _show_changes(answer, validate_only=validate_only)


def _changes_json(answer: resource_service_pb2.PutTreeResponse) -> dict[str, object]:
    return {
        "version": answer.version,
        "jobs_runnable": answer.jobs_runnable,
        "jobs_stuck": answer.jobs_stuck,
        "pools_changed": answer.pools_changed,
        "pools_rekeyed": answer.pools_rekeyed,
        "changes": [
            {
                "pool": change.pool_id,
                "gained": [queue_text(queue) for queue in change.gained],
                "gained_count": change.gained_count,
                "lost": [queue_text(queue) for queue in change.lost],
                "lost_count": change.lost_count,
            }
            for change in answer.changes
        ],
        "warnings": list(answer.warnings),
    }


def _show_changes(answer: resource_service_pb2.PutTreeResponse, *, validate_only: bool) -> None:
    click.echo(f"tree version {answer.version} {'would be' if validate_only else 'is'} in force")
    for change in answer.changes[:SHOWN_CHANGES]:
        click.echo(f"pool {change.pool_id[:12]}: +{change.gained_count} -{change.lost_count} queues")
    if answer.pools_changed > SHOWN_CHANGES:
        click.echo(f"... and {answer.pools_changed - SHOWN_CHANGES} more pools (--json tells of {len(answer.changes)})")
    click.echo(f"waiting jobs that become runnable: {answer.jobs_runnable}, that become stuck: {answer.jobs_stuck}")
