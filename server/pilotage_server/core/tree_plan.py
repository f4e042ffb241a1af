"""All that a new version of the tree changes, worked out before anything is changed.

Rules
-----
A pool that asks for nothing redeclared keeps its id and gets a new mapping. One that does is taken apart by what
its jobs mean now: it stays for those that mean the same, makes room for pools of those that do not, and stays
without a mapping for those that mean nothing any more. One without live jobs goes when it means something else.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from datetime import datetime

from pilotage.job_description import Value
from pilotage.pacing import Pace, at_once
from pilotage.queue_sets import QueueOrder, QueueSet
from pilotage_server.core.pool_mappings import PoolMappings
from pilotage_server.core.pools import Pool, mapping_of, new_pool
from pilotage_server.core.reach import Reach
from pilotage_server.core.task_queues import TaskQueue, with_pool
from pilotage_server.core.tree_changes import (
    Holding,
    PoolChange,
    Reread,
    Stranded,
    TreeEffect,
    Wait,
    asks_for,
    pool_change,
    read_again,
    redeclared,
    runnable_and_stuck,
)
from pilotage_server.core.tree_in_force import TreeInForce


@dataclass(frozen=True, slots=True)
class Present:
    """What there is before the change: the tree, all pools with their mappings, and how many jobs wait where."""

    tree: TreeInForce
    pools: tuple[Pool, ...]
    mappings: PoolMappings
    waiting: tuple[tuple[TaskQueue, int], ...]


@dataclass(frozen=True, slots=True)
class TreePlan:
    """What is to be done: pools that stay, go, or are new, the mappings of those there are then, and the jobs.

    The mappings are those that decide from then on, whole; nobody changes them before.
    `came_off` are the ids of pools that had a mapping and have none, `came_on` of those that had none and have one.
    `reread` are those of `kept` that may be known by another section now. `made` is the time of the new mappings.
    """

    tree: TreeInForce
    made: datetime
    kept: tuple[Pool, ...]
    reread: tuple[Pool, ...]
    gone: tuple[Pool, ...]
    new: tuple[Pool, ...]
    mappings: PoolMappings
    came_off: tuple[str, ...]
    came_on: tuple[str, ...]
    moves: tuple[Reread, ...]
    stranded: tuple[Stranded, ...]
    effect: TreeEffect

    @property
    def touches_jobs(self) -> bool:
        """Whether jobs mean something else under the new tree, so that it depends on what they are just then."""
        return bool(self.reread or self.gone or self.new or self.moves or self.stranded)


def touched_pools(pools: Iterable[Pool], before: TreeInForce, after: TreeInForce) -> frozenset[str]:
    """Return the ids of the pools that ask for something that `after` declares otherwise than `before`."""
    names = redeclared(before.declarations, after.declarations)
    return frozenset(pool.id for pool in pools if asks_for(pool.section, names))


def plan_tree(
    present: Present,
    holdings: Sequence[Holding],
    after: TreeInForce,
    warnings: Sequence[str],
    now: datetime,
    pace: Pace = at_once,
) -> TreePlan:
    """Return what the tree `after` changes; `holdings` are the live jobs of the pools that it touches."""
    read = [read_again(holding, after.declarations) for holding in holdings]
    rereads = tuple(outcome for outcome in read if isinstance(outcome, Reread))
    stranded = tuple(outcome for outcome in read if isinstance(outcome, Stranded))
    touched = touched_pools(present.pools, present.tree, after)
    kept = _kept(present.pools, touched, (*_as_typed(present.pools, touched, after), *rereads), stranded)
    new = _new(present.pools, rereads, now)
    mappings = PoolMappings(mapping_of(pool, after, now) for pool in pace((*kept, *new)))
    came_off, came_on = _came_off_and_on(pace((*kept, *new)), mappings)
    remaining = {pool.id for pool in kept}
    moves = tuple(reread for reread in rereads if reread.moves)
    return TreePlan(
        tree=after,
        made=now,
        kept=kept,
        reread=tuple(pool for pool in kept if pool.id in touched),
        gone=tuple(pool for pool in present.pools if pool.id not in remaining),
        new=new,
        mappings=mappings,
        came_off=came_off,
        came_on=came_on,
        moves=moves,
        stranded=stranded,
        effect=_effect(present, mappings, after, (*rereads, *stranded), warnings, pace),
    )


def with_newcomers(plan: TreePlan, ids: Set[str], came: Sequence[Pool]) -> TreePlan:
    """Return the plan for the pools of these `ids`, of which some `came` since it was made, and touch no jobs."""
    stayed = (mapping for mapping in plan.mappings.all() if mapping.pool_id in ids)
    mappings = PoolMappings((*stayed, *(mapping_of(pool, plan.tree, plan.made) for pool in came)))
    kept = (*(pool for pool in plan.kept if pool.id in ids), *came)
    came_off, came_on = _came_off_and_on(kept, mappings)
    return replace(plan, kept=kept, mappings=mappings, came_off=came_off, came_on=came_on)


def _came_off_and_on(pools: Iterable[Pool], mappings: PoolMappings) -> tuple[tuple[str, ...], tuple[str, ...]]:
    came_off: list[str] = []
    came_on: list[str] = []
    for pool in pools:
        mapping = mappings.get(pool.id)
        is_mapped = mapping is not None and mapping.mapped is not None
        if is_mapped is (pool.mapped is None):
            (came_on if is_mapped else came_off).append(pool.id)
    return tuple(came_off), tuple(came_on)


def _as_typed(pools: Iterable[Pool], touched: Collection[str], after: TreeInForce) -> tuple[Reread, ...]:
    """Return what the pools themselves mean now, those left out that mean nothing or something else."""
    own = (Holding(pool.id, 0, 0, pool.vo, pool.section, 0) for pool in pools if pool.id in touched)
    read = (read_again(holding, after.declarations) for holding in own)
    return tuple(outcome for outcome in read if isinstance(outcome, Reread) and not outcome.moves)


def _kept(
    pools: Iterable[Pool], touched: Collection[str], rereads: Iterable[Reread], stranded: Iterable[Stranded]
) -> tuple[Pool, ...]:
    # A pool is known by the section of jobs that are in it: first by that of those that have a meaning.
    sections: dict[str, Mapping[str, Value]] = {}
    for reread in rereads:
        sections.setdefault(reread.pool_id, reread.holding.section)
    for lost in stranded:
        sections.setdefault(lost.holding.pool_id, lost.holding.section)
    return tuple(
        replace(pool, section=sections[pool.id]) if pool.id in touched else pool
        for pool in pools
        if pool.id not in touched or pool.id in sections
    )


def _new(pools: Iterable[Pool], rereads: Iterable[Reread], now: datetime) -> tuple[Pool, ...]:
    known = {pool.id for pool in pools}
    new = {reread.pool_id: reread.requirements for reread in rereads if reread.pool_id not in known}
    return tuple(new_pool(requirements, now) for requirements in new.values())


def _effect(
    present: Present,
    mappings: PoolMappings,
    after: TreeInForce,
    outcomes: Sequence[Reread | Stranded],
    warnings: Sequence[str],
    pace: Pace,
) -> TreeEffect:
    waits = pace(_waits(present.waiting, outcomes))
    runnable, stuck = runnable_and_stuck(waits, Reach(present.tree, present.mappings), Reach(after, mappings))
    return TreeEffect(
        version=after.version,
        warnings=(*warnings, *_strandings(outcomes)),
        changes=_changes(present, mappings, after, outcomes, pace),
        jobs_runnable=runnable,
        jobs_stuck=stuck,
        pools_rekeyed=len({each.holding.pool_id for each in outcomes if isinstance(each, Reread) and each.moves}),
    )


def _waits(waiting: Iterable[tuple[TaskQueue, int]], outcomes: Iterable[Reread | Stranded]) -> Iterator[Wait]:
    read: dict[int, list[Reread | Stranded]] = {}
    for outcome in outcomes:
        read.setdefault(outcome.holding.task_queue_id, []).append(outcome)
    for queue, count in waiting:
        parts = read.get(queue.id)
        if parts is None:
            yield Wait(count, queue, queue)
        else:
            yield from (Wait(part.holding.waiting, queue, _moved(queue, part)) for part in parts)


def _moved(queue: TaskQueue, outcome: Reread | Stranded) -> TaskQueue | None:
    if isinstance(outcome, Stranded):
        return None
    return TaskQueue(queue.id, with_pool(queue.traits, outcome.pool_id))


def _changes(
    present: Present, mappings: PoolMappings, after: TreeInForce, outcomes: Iterable[Reread | Stranded], pace: Pace
) -> tuple[PoolChange, ...]:
    """Return what the pools gain and lose; one that goes has what the pools of its jobs have."""
    heirs: dict[str, set[str]] = {}
    for outcome in outcomes:
        if isinstance(outcome, Reread):
            heirs.setdefault(outcome.holding.pool_id, set()).add(outcome.pool_id)
    same_numbers = after.order.begins_with(present.tree.order)
    changes: list[PoolChange | None] = []
    for pool in pace(present.pools):
        before = present.mappings.queues(pool.id)
        if same_numbers and before.order is present.tree.order:
            before = before.on(after.order)
        own = mappings.get(pool.id)
        queues = own.queues if own else _united(after.order, map(mappings.queues, heirs.get(pool.id, ())))
        changes.append(pool_change(pool.id, before, queues))
    return tuple(change for change in changes if change is not None)


def _united(order: QueueOrder, sets: Iterable[QueueSet]) -> QueueSet:
    bits = 0
    for queues in sets:
        bits |= queues.bits
    return QueueSet(order, bits)


def _strandings(outcomes: Iterable[Reread | Stranded]) -> tuple[str, ...]:
    counts: dict[str, int] = {}
    for outcome in outcomes:
        if isinstance(outcome, Stranded):
            counts[outcome.why] = counts.get(outcome.why, 0) + outcome.holding.waiting
    return tuple(f"waiting jobs that are held: {count}, since {why}" for why, count in counts.items())
