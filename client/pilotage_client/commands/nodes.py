"""Commands about nodes: attributes that operators set from afar."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from pilotage.errors import InvalidInputError, Violation
from pilotage.v1 import node_service_pb2
from pilotage_client.api import Client
from pilotage_client.operator_calls import NodeName
from pilotage_client.running import AS_JSON, CommandGroup, echo_json, echo_table, moment, with_operator_client
from pilotage_client.statuses import iso, time_of


@click.group(cls=CommandGroup)
def node() -> None:
    """Set attributes of nodes from afar, as far as their policies let them be set."""


_NODES = click.option("--node", "names", multiple=True, metavar="SITE/NODE", help="A node; may be given again.")


@node.command("set")
@_NODES
@click.argument("settings", nargs=-1, required=True, metavar="ATTR=EXPR...")
@AS_JSON
@with_operator_client
def set_attributes(client: Client, names: tuple[str, ...], settings: tuple[str, ...], as_json: bool) -> None:
    """Set attributes of nodes; they outlive the pilots on them."""
    _print(client.set_node_attributes(_nodes(client, names), _expressions(settings)), as_json=as_json)


@node.command("unset")
@_NODES
@click.argument("attributes", nargs=-1, required=True, metavar="ATTR...")
@AS_JSON
@with_operator_client
def unset_attributes(client: Client, names: tuple[str, ...], attributes: tuple[str, ...], as_json: bool) -> None:
    """Let attributes of nodes be again as their policies say."""
    _print(client.set_node_attributes(_nodes(client, names), {}, attributes), as_json=as_json)


@node.command("list")
@_NODES
@AS_JSON
@with_operator_client
def list_attributes(client: Client, names: tuple[str, ...], as_json: bool) -> None:
    """Show what is set on nodes, on which since when by whom."""
    _print(client.node_attributes(_nodes(client, names) if names else ()), as_json=as_json)


def _nodes(client: Client, names: Sequence[str]) -> list[NodeName]:
    """Return the nodes of these names; a name without a site is looked for among the nodes with live pilots."""
    if not names:
        raise InvalidInputError(Violation("--node", "which node? such as --node CERN/node17"))
    split = [name.rpartition("/") for name in names]
    bare = {host for site, _, host in split if not site}
    sites: dict[str, set[str]] = {}
    for info in client.slots() if bare else ():
        sites.setdefault(info.node, set()).add(info.queue.site)
    return [(site or _site_of(host, sites.get(host, set())), host) for site, _, host in split]


def _site_of(host: str, sites: set[str]) -> str:
    if len(sites) == 1:
        return next(iter(sites))
    why = f"nodes of this name are at {', '.join(sorted(sites))}" if sites else "no live pilot is on it"
    raise InvalidInputError(Violation("--node", f"{host}: {why}; say SITE/{host}"))


def _expressions(settings: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for setting in settings:
        name, equals, expression = setting.partition("=")
        if not (equals and name.strip() and expression.strip()):
            raise InvalidInputError(Violation(setting, "is not ATTR=EXPR, such as OnlyMulticore=True"))
        found[name.strip()] = expression.strip()
    return found


def _print(found: Sequence[node_service_pb2.NodeSettings], *, as_json: bool) -> None:
    if as_json:
        for settings in found:
            echo_json(_json(settings))
        return
    rows = [
        (f"{of.node.site}/{of.node.node}", each.name, each.expression, moment(time_of(each, "set")), each.set_by)
        for of in found
        for each in of.settings
    ]
    echo_table(("NODE", "ATTRIBUTE", "EXPRESSION", "SET", "BY"), rows, empty="nothing is set")


def _json(settings: node_service_pb2.NodeSettings) -> dict[str, Any]:
    return {
        "site": settings.node.site,
        "node": settings.node.node,
        "settings": {
            each.name: {"expression": each.expression, "set": iso(time_of(each, "set")), "by": each.set_by}
            for each in settings.settings
        },
    }
