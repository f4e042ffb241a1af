"""What operators and agents have set on nodes, in the database: one row a node."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime

from sqlmodel import Session

from pilotage_server.core.node_settings import NodeId, NodeSettings, Setting
from pilotage_server.storage import bulk

_ALL = "SELECT site, node, version, settings_json FROM node_settings"
_OF_NODES = f"{_ALL} WHERE site = ANY(?) AND node = ANY(?)"
_INSERT = "INSERT INTO node_settings (site, node, version, settings_json) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING"
_CHANGE = "UPDATE node_settings SET version = ?, settings_json = ? WHERE site = ? AND node = ? AND version = ?"


def load_node_settings(session: Session, nodes: Collection[NodeId] | None = None) -> dict[NodeId, NodeSettings]:
    """Return what is or was set on these nodes (None = on all), by site and name."""
    if nodes is None:
        rows = bulk.rows(session, _ALL)
    else:
        sites, names = {node.site for node in nodes}, {node.node for node in nodes}
        rows = bulk.rows(session, _OF_NODES, sorted(sites), sorted(names))
    found = (NodeSettings(NodeId(site, node), version, _settings(text)) for site, node, version, text in rows)
    wanted = None if nodes is None else set(nodes)
    ordered = sorted(found, key=lambda settings: settings.node)
    return {settings.node: settings for settings in ordered if wanted is None or settings.node in wanted}


def store_node_settings(session: Session, changed: Sequence[NodeSettings]) -> bool:
    """Store the next versions of nodes' settings; False = somebody else has changed one since they were loaded."""
    ordered = sorted(changed, key=lambda settings: settings.node)  # so that two never wait for each other in a circle
    new = [(each.node.site, each.node.node, 1, _json(each.settings)) for each in ordered if each.version == 1]
    old = [
        (each.version, _json(each.settings), each.node.site, each.node.node, each.version - 1)
        for each in ordered
        if each.version > 1
    ]
    return bulk.many(session, _INSERT, new) + bulk.many(session, _CHANGE, old) == len(changed)


def _json(settings: Iterable[Setting]) -> str:
    rows = ((each.name, each.expression, each.set_by, each.set.isoformat(), each.agent) for each in settings)
    return json.dumps(list(rows))


def _settings(text: str) -> tuple[Setting, ...]:
    # What was stored before agents were noted names none.
    rows = json.loads(text)
    return tuple(
        Setting(name, expression, by, datetime.fromisoformat(at), *agent) for name, expression, by, at, *agent in rows
    )
