"""What operators have set on nodes, in the database: one row a node."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import datetime

from sqlalchemy import ColumnElement, and_, or_, select, update
from sqlmodel import Session

from pilotage_server.core.node_settings import NodeId, NodeSettings, Setting
from pilotage_server.storage.inserting import insert_if_absent
from pilotage_server.storage.tables import metadata

_NODES = metadata.tables["node_settings"]


def load_node_settings(session: Session, nodes: Iterable[NodeId] | None = None) -> dict[NodeId, NodeSettings]:
    """Return what is or was set on these nodes (None = on all), by site and name."""
    query = select(_NODES).order_by(_NODES.c.site, _NODES.c.node)
    if nodes is not None:
        query = query.where(or_(*(_is(node) for node in nodes)))
    rows = session.execute(query).all()
    found = (NodeSettings(NodeId(row.site, row.node), row.version, _settings(row.settings_json)) for row in rows)
    return {settings.node: settings for settings in found}


def store_node_settings(session: Session, settings: NodeSettings) -> bool:
    """Store the next version of a node's settings; False = somebody else has changed them since they were loaded."""
    values = {"version": settings.version, "settings_json": _json(settings.settings)}
    if settings.version == 1:
        return insert_if_absent(session, _NODES, {"site": settings.node.site, "node": settings.node.node, **values})
    before = and_(_is(settings.node), _NODES.c.version == settings.version - 1)
    return session.connection().execute(update(_NODES).where(before).values(**values)).rowcount == 1


def _is(node: NodeId) -> ColumnElement[bool]:
    return and_(_NODES.c.site == node.site, _NODES.c.node == node.node)


def _json(settings: Iterable[Setting]) -> str:
    return json.dumps([[each.name, each.expression, each.set_by, each.set.isoformat()] for each in settings])


def _settings(text: str) -> tuple[Setting, ...]:
    rows = json.loads(text)
    return tuple(Setting(name, expression, by, datetime.fromisoformat(at)) for name, expression, by, at in rows)
