"""Commands about resources: pools, queues, the resource tree; and offline commands on job and tree files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from pilotage.resources.inheritance import effective_queues
from pilotage.resources.node_types import EligibleNodes, NodeType, node_type
from pilotage.resources.parameters import SHIPPED
from pilotage.resources.selection import get_eligible_nodes
from pilotage.resources.tree import ResourceTree
from pilotage.text import count_text, fold
from pilotage_client.api import Client
from pilotage_client.cli.options import (
    ONE_JSON,
    echo_json,
    queue_text,
    section_text,
    server_options,
    with_client,
    with_operator_client,
)
from pilotage_client.cli.selection.filters import read_place
from pilotage_client.cli.selection.names import check_place
from pilotage_client.cli.show.columns import Column, Listing, View, view_options, with_local_times
from pilotage_client.cli.show.grid_outputs import PoolJson, QueueJson
from pilotage_client.cli.what_if.tree import show_changes
from pilotage_client.cli.workflows import is_dag, workflow_as_json
from pilotage_client.connection import ServerOptions
from pilotage_client.files import faults_of, read_tree, read_tree_file, tree_format
from pilotage_client.models.grid import PoolInfo, QueueInfo
from pilotage_client.readers import LANGUAGES, read_jobs
from pilotage_client.readers.draft import as_json as description_json
from pilotage_client.readers.requirements import read_require_options
from pilotage_client.workflows import read_dag

POOLS = Listing(
    PoolJson,
    PoolInfo.as_json,
    Column("id", "POOL", text=lambda pool_id: pool_id[:12], priority=0),
    Column("vo", priority=3),
    Column("waiting", priority=1),
    Column("running", priority=1),
    Column("queues", text=lambda queues: str(len(queues)), right=True, priority=2),
    Column("requirements", text=section_text, priority=4, shortest=16),
    empty="no pools",
)


@click.command()
@click.option("--vo", default="", help="Only pools of this VO.")
@click.option("--site", default="", help="Only pools that a queue of this site can run.")
@view_options(POOLS)
@with_client
def pools(client: Client, vo: str, site: str, view: View) -> None:
    """Show submit pools with their requirements, jobs and eligible queues."""
    found = [
        pool
        for pool in client.pools()
        if vo in ("", pool.vo) and (not site or fold(site) in (fold(queue.site) for queue in pool.queues))
    ]
    if not found:
        check_place(client, site)
    POOLS.echo(found, view)


QUEUES = Listing(
    QueueJson,
    QueueInfo.as_json,
    Column("where", "QUEUE", value=lambda queue: queue_text(queue), priority=0, shortest=24),
    Column("enabled", priority=4, state=True),
    Column("pilots", priority=3),
    Column("pools", priority=6),
    Column("waiting", priority=2),
    Column("matched", priority=5),
    Column("running", priority=2),
    Column("problem", value=lambda queue: queue.problem, text=with_local_times, priority=1, shortest=28),
    empty="no queues",
)


@click.command()
@click.option(
    "--vo", default="", help='As this VO sees them; "*" = of all VOs, for operators. Default: all that you may see.'
)
@click.option("--site", default="", help="Only queues of this site.")
@click.option("--ce", default="", metavar="[SITE/]CE", help="Only queues of this CE.")
@click.option("--queue", "name", default="", metavar="SITE/CE/QUEUE", help="Only this queue.")
@view_options(QUEUES)
@with_client
def queues(client: Client, vo: str, site: str, ce: str, name: str, view: View) -> None:
    """Show the batch queues with their effective values, their jobs, and why they have no pilots.

    MATCHED counts jobs that were sent there and have not started, such as those that wait in Slurm.
    """
    place = read_place(site, ce, name)
    found = [each for each in client.queues(vo="" if vo == "*" else vo, site=place.site) if place.has(each)]
    if not found:
        check_place(client, place.site, place.ce, place.queue)
    QUEUES.echo(found, view)


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
    of_sites = "" if lowest is NodeType.SITE else f" of {count_text(sites, 'site')}"
    click.echo(f"eligible: {count_text(len(paths), _NODES[lowest])}{of_sites}", err=True)


_NODES = {NodeType.SITE: "site", NodeType.CE: "computing element", NodeType.QUEUE: "queue"}


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


@click.command()
@ONE_JSON
@with_operator_client
def show(client: Client, as_json: bool) -> None:
    """Print the active tree as it was given."""
    answer = client.tree()
    if as_json:
        echo_json(answer.as_json())
        return
    if not answer.version:
        click.echo("pilotage: there is no tree yet; `pilotage tree put FILE` activates one", err=True)
    click.echo(answer.text, nl=False)


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--dry-run", "--validate-only", "dry_run", is_flag=True, help="Only show what it would change.")
@ONE_JSON
@with_operator_client
def put(client: Client, file: Path, dry_run: bool, as_json: bool) -> None:
    """Activate a new version of the tree, whole or not at all."""
    text, format_name = read_tree_file(file), tree_format(file)
    with faults_of(file):
        answer = client.put_tree(text, format_name, dry_run=dry_run)
    for warning in answer.warnings:
        click.echo(f"warning: {warning}", err=True)
    if as_json:
        echo_json(answer.as_json())
    else:
        show_changes(answer, dry_run=dry_run)
