"""Which queues each pool may run on: replaced in one transaction, and only where something has changed."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime

from sqlalchemy import BindParameter, bindparam, delete, insert, select, update
from sqlmodel import Session

from pilotage.resource_tree import QueueId
from pilotage_server.core.pool_mappings import NOWHERE, PoolMapping, PoolMappings
from pilotage_server.core.pools import stored_mapping
from pilotage_server.storage.jobs import chunks
from pilotage_server.storage.pools import load_pools
from pilotage_server.storage.tables import metadata

_POOLS = metadata.tables["pools"]
_POOL_QUEUES = metadata.tables["pool_queues"]
_PLACES: dict[str, BindParameter[str]] = {
    "pool_id": bindparam("the_pool"),
    "site": bindparam("the_site"),
    "ce": bindparam("the_ce"),
    "queue": bindparam("the_queue"),
}
_ADD = insert(_POOL_QUEUES).values(_PLACES)
_REMOVE = delete(_POOL_QUEUES).where(*(_POOL_QUEUES.c[name] == value for name, value in _PLACES.items()))
_STAMP = (
    update(_POOLS)
    .where(_POOLS.c.id == bindparam("the_pool"))
    .values(mapped=bindparam("time"), tree_version=bindparam("version"))
)


def load_mappings(session: Session) -> PoolMappings:
    """Return the mappings of all pools."""
    queues = load_queues(session)
    return PoolMappings(stored_mapping(pool, queues.get(pool.id, NOWHERE)) for pool in load_pools(session))


def load_queues(session: Session, pool_ids: Collection[str] | None = None) -> dict[str, frozenset[QueueId]]:
    """Return the queues of the pools with these ids, or of all; a pool without queues is left out."""
    query = select(_POOL_QUEUES)
    batches = (
        [query] if pool_ids is None else [query.where(_POOL_QUEUES.c.pool_id.in_(batch)) for batch in chunks(pool_ids)]
    )
    found: dict[str, set[QueueId]] = {}
    same: dict[QueueId, QueueId] = {}
    for batch in batches:
        for pool_id, site, ce, queue in session.execute(batch):
            id_ = QueueId(site, ce, queue)
            found.setdefault(pool_id, set()).add(same.setdefault(id_, id_))
    return {pool_id: frozenset(queues) for pool_id, queues in found.items()}


def replace_mappings(
    session: Session, mappings: Iterable[PoolMapping], before: Mapping[str, frozenset[QueueId]]
) -> None:
    """Put `mappings` in force; `before` is what is stored now for those of their pools that have queues."""
    gained: list[dict[str, str]] = []
    lost: list[dict[str, str]] = []
    stamps: list[dict[str, str | int | datetime | None]] = []
    for mapping in mappings:
        stored = before.get(mapping.pool_id, NOWHERE)
        gained += (_row(mapping.pool_id, queue) for queue in sorted(mapping.queues - stored))
        lost += (_row(mapping.pool_id, queue) for queue in sorted(stored - mapping.queues))
        stamps.append({"the_pool": mapping.pool_id, "time": mapping.mapped, "version": mapping.tree_version})
    connection = session.connection()
    if lost:
        connection.execute(_REMOVE, lost)
    if gained:
        connection.execute(_ADD, gained)
    if stamps:
        connection.execute(_STAMP, stamps)


def delete_mappings(session: Session, pool_ids: Collection[str]) -> None:
    """Remove the queues of pools that are about to be removed."""
    for batch in chunks(pool_ids):
        session.execute(delete(_POOL_QUEUES).where(_POOL_QUEUES.c.pool_id.in_(batch)))


def _row(pool_id: str, queue: QueueId) -> dict[str, str]:
    return {"the_pool": pool_id, "the_site": queue.site, "the_ce": queue.ce, "the_queue": queue.queue}
