"""Pools as people and pilots see them: the list with counts, and the pools of a queue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from pilotage.errors import PermissionDeniedError
from pilotage.folding import fold
from pilotage.job_description import Value
from pilotage.resource_tree import QueueId
from pilotage_server.core.identity import Identity
from pilotage_server.core.pools import Pool
from pilotage_server.operations.world import World
from pilotage_server.storage.engine import Unit
from pilotage_server.storage.pools import load_pools
from pilotage_server.storage.running import running_by_pool


@dataclass(frozen=True, slots=True)
class PoolView:
    """A pool with its counts: jobs that wait, and jobs that hold a lease; `queues` are sorted.

    `requirements` are those of the job that the pool was made for, as typed. `mapped` None = the pool has no
    mapping and may run nowhere.
    """

    id: str
    vo: str
    requirements: Mapping[str, Value]
    waiting: int
    running: int
    queues: tuple[QueueId, ...]
    mapped: datetime | None
    tree_version: int
    created: datetime


@dataclass(frozen=True, slots=True)
class QueuePools:
    """The pools that may run on a queue, sorted by id; none for a queue that the tree does not know."""

    queue: QueueId
    known: bool
    pool_ids: tuple[str, ...]


def list_pools(unit: Unit, world: World, identity: Identity, vo: str = "") -> tuple[PoolView, ...]:
    """Return the pools of `vo`, or all that the caller may see, those with most waiting jobs first.

    Raises
    ------
    PermissionDeniedError
        When a user asks for the pools of another VO than his own.
    """
    shown = visible_vo(identity, vo)
    pools = [pool for pool in load_pools(unit.session) if shown is None or fold(pool.vo) == fold(shown)]
    running = running_by_pool(unit.session)
    views = [_view(pool, world, running.get(pool.id, 0)) for pool in pools]
    return tuple(sorted(views, key=lambda view: (-view.waiting, view.id)))


def visible_vo(identity: Identity, vo: str) -> str | None:
    """Return the VO whose part the caller sees when he asks for `vo` ("" = as much as he may); None = all.

    Raises
    ------
    PermissionDeniedError
        When he may not see that VO's part.
    """
    if identity.is_shown_everything:
        return vo or None
    if vo and fold(vo) != fold(identity.vo):
        raise PermissionDeniedError(f"only operators see what belongs to other VOs than their own, such as {vo}")
    return identity.vo


def _view(pool: Pool, world: World, running: int) -> PoolView:
    with world.lock:
        waiting = sum(max(0, wait.count) for wait in world.waiting.of_pool(pool.id))
        mapping = world.mappings.get(pool.id)
    return PoolView(
        id=pool.id,
        vo=pool.vo,
        requirements=pool.section,
        waiting=waiting,
        running=running,
        queues=tuple(sorted(mapping.queues)) if mapping else (),
        mapped=mapping.mapped if mapping else None,
        tree_version=mapping.tree_version if mapping else 0,
        created=pool.created,
    )


def get_submit_pools_for_queue(world: World, identity: Identity, queues: Sequence[QueueId]) -> tuple[QueuePools, ...]:
    """Return the pools of each of the queues, in the order asked, by the mappings in force.

    A queue that is not enabled is known and has no pools. A banned one keeps its pools, for the ban may be over
    when the pilot starts; until then the match gives it nothing. A pilot hears only of the queue that it is
    bound to, and of the pools of its own VOs.

    Raises
    ------
    PermissionDeniedError
        When a pilot asks for another queue than its own.
    """
    credential = identity.pilot
    if credential is not None:
        foreign = next((queue for queue in queues if queue != credential.queue), None)
        if foreign is not None:
            raise PermissionDeniedError(f"pilot {credential.stamp} is bound to {credential.queue}, not {foreign}")
    vos = credential.vos if credential else ()
    return tuple(QueuePools(queue, world.tree.knows(queue), _pools_of(world, queue, vos)) for queue in queues)


def _pools_of(world: World, queue: QueueId, vos: Sequence[str]) -> tuple[str, ...]:
    # A mapping that is older than the tree may still name a queue that is gone.
    return tuple(sorted(world.mappings.pools(queue, vos))) if world.tree.knows(queue) else ()
