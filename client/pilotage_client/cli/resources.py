"""Commands about resources: pools, queues, the resource tree; and offline commands on job and tree files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from pilotage.resources.inheritance import effective_queues
from pilotage.resources.parameters import SHIPPED
from pilotage.resources.selection import EligibleNodes, NodeType, get_eligible_nodes, node_type
from pilotage.resources.tree import ResourceTree
from pilotage.rpc.wire import section_from_wire
from pilotage.v1 import resource_service_pb2, values_pb2
from pilotage_client.api import Client
from pilotage_client.cli.options import (
    AS_JSON,
    ONE_JSON,
    SectionedGroup,
    echo_json,
    echo_table,
    queue_text,
    section_text,
    server_options,
    with_client,
    with_operator_client,
)
from pilotage_client.cli.selection.filters import read_place
from pilotage_client.cli.selection.names import check_place
from pilotage_client.cli.workflows import is_dag, workflow_as_json
from pilotage_client.connection import ServerOptions
from pilotage_client.files import faults_of, read_tree, read_tree_file, tree_format
from pilotage_client.models import iso, time_of
from pilotage_client.readers import LANGUAGES, read_jobs
from pilotage_client.readers.draft import as_json as description_json
from pilotage_client.readers.requirements import read_require_options
from pilotage_client.workflows import read_dag


@click.command()
@AS_JSON
@with_client
def pools(client: Client, as_json: bool) -> None:
    """Show submit pools with their requirements, jobs and eligible queues."""
    found = client.pools()
    if as_json:
        for pool in found:
            echo_json(
                {
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
            )
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


@click.command()
@click.option(
    "--vo", default="", help='As this VO sees them; "*" = of all VOs, for operators. Default: all that you may see.'
)
@click.option("--site", default="", help="Only queues of this site.")
@click.option("--ce", default="", metavar="[SITE/]CE", help="Only queues of this CE.")
@click.option("--queue", "name", default="", metavar="SITE/CE/QUEUE", help="Only this queue.")
@AS_JSON
@with_client
def queues(client: Client, vo: str, site: str, ce: str, name: str, as_json: bool) -> None:
    """Show the batch queues with their effective values, their jobs, and why they have no pilots.

    MATCHED counts jobs that were sent there and have not started, such as those that wait in Slurm.
    """
    place = read_place(site, ce, name)
    found = [each for each in client.queues(vo="" if vo == "*" else vo, site=place.site) if place.has(each.queue)]
    if not found:
        check_place(client, place.site, place.ce, place.queue)
    if as_json:
        for queue in found:
            echo_json(
                {
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
                    "matched": queue.matched,
                    "running": queue.running,
                    "pilot_problem": queue.pilot_problem or None,
                    "health": queue.health or None,
                    "downtime": queue.downtime or None,
                }
            )
        return
    rows = [
        (
            queue_text(queue.queue),
            "yes" if queue.enabled else "no",
            queue.pilots,
            queue.pools,
            queue.waiting,
            queue.matched,
            queue.running,
            "; ".join(filter(None, (queue.banned, queue.health, queue.downtime))) or queue.pilot_problem,
        )
        for queue in found
    ]
    echo_table(
        ("QUEUE", "ENABLED", "PILOTS", "POOLS", "WAITING", "MATCHED", "RUNNING", "PROBLEM"), rows, empty="no queues"
    )


def _section(wire: Mapping[str, values_pb2.Value]) -> dict[str, Any]:
    return dict(sorted(section_from_wire(wire).items()))


TREE = click.argument("tree_file", metavar="TREE", type=click.Path(path_type=Path))
LANGUAGE = click.option(
    "--language", type=click.Choice((*LANGUAGES, "dag")), help="Default: by the file's name and text."
)
IGNORE_UNSUPPORTED = click.option(
    "--ignore-unsupported", is_flag=True, help="Ignore statements that Pilotage does not support; warn of each."
)


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@LANGUAGE
@IGNORE_UNSUPPORTED
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line (default: indented).")
def convert(file: Path, language: str | None, ignore_unsupported: bool, as_json: bool) -> None:
    """Show how Pilotage reads a job file (JDL of DIRAC, gLite, AliEn; CFG; submit file; TOML), or a DAG file."""
    if is_dag(file, language):
        jobs = workflow_as_json(read_dag(file, ignore_unsupported=ignore_unsupported, with_files=False))
    else:
        jobs = map(description_json, read_jobs(file, language=language, ignore_unsupported=ignore_unsupported))
    for shown in jobs:
        if as_json:
            echo_json(shown)
        else:
            present = {key: value for key, value in shown.items() if value is not None}
            click.echo(json.dumps(present, indent=2, ensure_ascii=False))


@click.command()
@TREE
@click.option("--vo", help="As this VO sees the values (default: without overlays).")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
def resolve(tree_file: Path, vo: str | None, as_json: bool) -> None:
    """Print every queue of a tree file with its effective values."""
    for queue in effective_queues(_tree_of(tree_file), vo):
        if as_json:
            params = dict(sorted(queue.parameters().items()))
            echo_json({"ce": queue.id.ce, "params": params, "queue": queue.id.queue, "site": queue.id.site})
            continue
        click.echo(str(queue.id))
        for value in queue.values.values():
            origins = ", ".join(str(origin) for origin in value.origins)
            items = value.value if isinstance(value.value, tuple) else (value.value,)
            click.echo(f"  {value.name} = {', '.join(map(str, items))}  ({origins})")


@click.command()
@click.argument("tree_file", metavar="[TREE]", required=False, type=click.Path(path_type=Path))
@click.option("--vo", default="", help="The VO of the jobs (default, of a server's tree: your VO).")
@click.option("--require", "requires", multiple=True, metavar="NAME=VALUE", help="A requirement; may be repeated.")
@click.option(
    "--require-ce", "ce_requires", multiple=True, metavar="NAME=VALUE", help="A requirement on the computing element."
)
@click.option(
    "--level",
    type=click.Choice([*NodeType], case_sensitive=False),
    default=NodeType.QUEUE,
    show_default=True,
    help="The lowest level to print.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="One JSON value: {SITE: {CE: [QUEUE...]}}, {SITE: [CE...]} or [SITE...]."
)
@server_options
def eligible(
    tree_file: Path | None,
    vo: str,
    requires: Sequence[str],
    ce_requires: Sequence[str],
    level: str,
    as_json: bool,
    **connection: Any,
) -> None:
    """Print the eligible sites, computing elements and queues of a tree file, or of the server's tree without TREE.

    Requirements: "Memory=4000", "SoftwareTag=a,b", 'OS="el9"'. Without TREE, put versions in quotes: 'Release="2.10"'.
    """
    lowest = node_type(level)
    if tree_file is None:
        found = _eligible_on_server(connection, vo, lowest, ce_requires, requires)
    else:
        found = _eligible_in_file(tree_file, connection, vo, lowest, ce_requires, requires)
    if as_json:
        echo_json(found)
        return
    paths = list(_paths(found))
    for path in paths:
        click.echo("/".join(path))
    sites = len({path[0] for path in paths})
    of_sites = "" if lowest is NodeType.SITE else f" of {sites} sites"
    click.echo(f"{len(paths)} {_NODES[lowest]}{of_sites} are eligible", err=True)


_NODES = {NodeType.SITE: "sites", NodeType.CE: "computing elements", NodeType.QUEUE: "queues"}


def _eligible_on_server(
    connection: Mapping[str, Any], vo: str, level: NodeType, ce_requires: Sequence[str], requires: Sequence[str]
) -> EligibleNodes:
    of_ce, of_queue = read_require_options(ce_requires, SHIPPED), read_require_options(requires, SHIPPED)
    with Client.located(ServerOptions(**connection)) as client:
        return client.eligible_nodes(vo=vo, level=level, ce_select=of_ce, queue_select=of_queue)


def _eligible_in_file(
    file: Path,
    connection: Mapping[str, Any],
    vo: str,
    level: NodeType,
    ce_requires: Sequence[str],
    requires: Sequence[str],
) -> EligibleNodes:
    if any(connection.values()):
        raise click.UsageError("give either a tree file or the options of a server")
    if not vo:
        raise click.UsageError("a tree file needs --vo, the VO of the jobs")
    tree = _tree_of(file)
    of_ce = read_require_options(ce_requires, tree.declarations)
    of_queue = read_require_options(requires, tree.declarations)
    return get_eligible_nodes(tree, vo, level, of_ce, of_queue)


def _paths(nodes: Any) -> Iterator[tuple[str, ...]]:
    """Yield the names of each lowest node from its site down."""
    if isinstance(nodes, list):
        yield from ((name,) for name in nodes)  # the names of the lowest level
        return
    for name, inner in nodes.items():
        yield from ((name, *path) for path in _paths(inner))


def _tree_of(file: Path) -> ResourceTree:
    tree, warnings = read_tree(file)
    for warning in warnings:
        click.echo(f"warning: {warning}", err=True)
    return tree


SHOWN_CHANGES = 20


@click.group(
    cls=SectionedGroup,
    sections={"The active tree": ("show", "put"), "Tree files, without a server": ("resolve", "eligible")},
)
def tree() -> None:
    """Show or replace the resource tree, or inspect a tree file offline."""


tree.add_command(resolve)
tree.add_command(eligible)


@tree.command()
@ONE_JSON
@with_operator_client
def show(client: Client, as_json: bool) -> None:
    """Print the active tree as it was given."""
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
    if not answer.version:
        click.echo("pilotage: there is no tree yet; `pilotage tree put FILE` activates one", err=True)
    click.echo(answer.text, nl=False)


@tree.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--validate-only", is_flag=True, help="Only show the changes.")
@ONE_JSON
@with_operator_client
def put(client: Client, file: Path, validate_only: bool, as_json: bool) -> None:
    """Activate a new version of the tree, whole or not at all."""
    text, format_name = read_tree_file(file), tree_format(file)
    with faults_of(file):
        answer = client.put_tree(text, format_name, validate_only=validate_only)
    for warning in answer.warnings:
        click.echo(f"warning: {warning}", err=True)
    if as_json:
        echo_json(_changes_json(answer))
    else:
        click.echo(f"tree version {answer.version} {'would be' if validate_only else 'is'} active")
        for change in answer.changes[:SHOWN_CHANGES]:
            click.echo(f"pool {change.pool_id[:12]}: +{change.gained_count} -{change.lost_count} queues")
        if answer.pools_changed > SHOWN_CHANGES:
            click.echo(
                f"... and {answer.pools_changed - SHOWN_CHANGES} more pools (--json shows {len(answer.changes)})"
            )
        click.echo(f"waiting jobs that become runnable: {answer.jobs_runnable}, that become stuck: {answer.jobs_stuck}")


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


COMMANDS = (pools, queues, convert, tree)
