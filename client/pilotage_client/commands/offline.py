"""Commands that need no server, for people who are moving over: convert, tree resolve, tree eligible."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import click

from pilotage.effective import effective_queues
from pilotage.pool_mapping import PoolMapper
from pilotage.requirements import read_requirements
from pilotage.resource_tree import QueueId, ResourceTree
from pilotage_client.readers import LANGUAGES, read_jobs
from pilotage_client.readers.shown import as_json as description_json
from pilotage_client.require_options import read_require_options
from pilotage_client.running import echo_json
from pilotage_client.tree_files import read_tree

TREE = click.argument("tree_file", metavar="TREE", type=click.Path(path_type=Path))
LANGUAGE = click.option("--language", type=click.Choice(LANGUAGES), help="Default: from the file's name and text.")


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@LANGUAGE
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line (the default shows them indented).")
def convert(file: Path, language: str | None, as_json: bool) -> None:
    """Show what a job file means here: JDL (DIRAC, gLite, AliEn), an HTCondor submit file, or TOML."""
    for description in read_jobs(file, language=language):
        shown = description_json(description)
        if as_json:
            echo_json(shown)
        else:
            present = {key: value for key, value in shown.items() if value is not None}
            click.echo(json.dumps(present, indent=2, ensure_ascii=False))


@click.command()
@TREE
@click.option("--vo", help="As this VO sees the values (default: without any VO's overlay).")
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
            came_from = ", ".join(str(origin) for origin in value.origins)
            click.echo(f"  {value.name} = {_text(value.value)}  ({came_from})")


def _text(value: Any) -> str:
    return ", ".join(str(item) for item in value) if isinstance(value, tuple) else str(value)


@click.command()
@TREE
@click.option("--vo", required=True, help="The VO that asks.")
@click.option("--require", "requires", multiple=True, metavar="NAME=VALUE", help="A requirement; may be repeated.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object {SITE: {CE: [QUEUE...]}}.")
def eligible(tree_file: Path, vo: str, requires: Sequence[str], as_json: bool) -> None:
    """Print which queues of a tree file fit requirements: "Memory=4000", "SoftwareTag=a,b", 'OS="el9"'."""
    tree = _tree_of(tree_file)
    section = read_require_options(requires, tree.declarations)
    mapper = PoolMapper(tree)
    if section:
        queues = mapper.queues_of(read_requirements(section, vo, tree.declarations))
    else:
        queues = mapper.queues_without_requirements(vo)
    found = nested(queues)
    if as_json:
        echo_json(found)
        return
    for queue in queues:
        click.echo(str(queue))
    click.echo(f"{len(queues)} queues of {len(found)} sites fit", err=True)


def nested(queues: Iterable[QueueId]) -> dict[str, dict[str, list[str]]]:
    """Return {SITE: {CE: [QUEUE…]}} in the order given."""
    found: dict[str, dict[str, list[str]]] = {}
    for queue in queues:
        found.setdefault(queue.site, {}).setdefault(queue.ce, []).append(queue.queue)
    return found


def _tree_of(file: Path) -> ResourceTree:
    tree, warnings = read_tree(file)
    for warning in warnings:
        click.echo(f"warning: {warning}", err=True)
    return tree


COMMANDS = (convert,)
