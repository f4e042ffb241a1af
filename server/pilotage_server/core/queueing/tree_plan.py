"""What a new version of the tree does to pools and waiting jobs, worked out before anything is changed.

Rules
-----
- A parameter that is declared with another type or unit may split the pools that ask for it. Their jobs are read again,
  each as its owner typed it, and move to the pool of their present meaning.
- A pool that asks for nothing redeclared keeps its id and gets a new mapping.
- A pool that does stays for the jobs that mean the same, gives the others to new pools, and stays without a mapping for
  jobs that mean nothing any more. Without live jobs it is removed when its meaning changes.
- Bans play no part: they are temporary.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from datetime import datetime

from pilotage.errors import InvalidRequirementsError
from pilotage.job_description import Value
from pilotage.pacing import Pace, at_once
from pilotage.resources.parameters import ParameterDeclaration, ParameterDeclarations
from pilotage.resources.pool_mapping import QueueOrder, QueueSet
from pilotage.resources.requirements import Requirements, pool_id, read_requirements
from pilotage.resources.tree import QueueId
from pilotage.text import folded_set
from pilotage_server.core.queueing.reach import QueueAccess
from pilotage_server.core.queueing.task_queue import TaskQueue, with_pool
from pilotage_server.core.resources.mappings import PoolMappings
from pilotage_server.core.resources.pools import Pool, mapping_of, new_pool
from pilotage_server.core.resources.tree import ActiveTree


@dataclass(frozen=True, slots=True)
class PoolChange:
    """What happens to the mapping of a pool; at least one of the two is not empty.

    `vo` and `section` are those of the pool, `waiting` = how many of its jobs wait.
    """

    pool_id: str
    gained: Set[QueueId]
    lost: Set[QueueId]
    vo: str = field(default="", compare=False)
    section: Mapping[str, Value] = field(default_factory=dict, compare=False)
    waiting: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class TreeEffect:
    """What a tree changes, or would: its version, warnings for its operator, and the effect on jobs.

    `jobs_runnable` are waiting jobs that no queue could take and now one can, `jobs_stuck` the reverse; `runnable` and
    `stuck` are the ids of their task queues. `pools_rekeyed` counts the pools of which some jobs move to another pool.
    """

    version: int
    warnings: tuple[str, ...] = ()
    changes: tuple[PoolChange, ...] = ()
    jobs_runnable: int = 0
    jobs_stuck: int = 0
    pools_rekeyed: int = 0
    runnable: tuple[int, ...] = ()
    stuck: tuple[int, ...] = ()


def redeclared(before: ParameterDeclarations, after: ParameterDeclarations) -> frozenset[str]:
    """Return the folded names of the parameters whose requirements may have changed their meaning."""
    names = folded_set(declaration.name for declarations in (before, after) for declaration in declarations)
    return frozenset(name for name in names if _meaning(before.get(name)) != _meaning(after.get(name)))


def _meaning(declaration: ParameterDeclaration | None) -> tuple[str, str | None] | None:
    return None if declaration is None else (declaration.type, declaration.unit)


def requires_any(section: Mapping[str, Value], names: Collection[str]) -> bool:
    """Return whether a section asks for one of the folded `names`."""
    return not folded_set(section).isdisjoint(names)


@dataclass(frozen=True, slots=True)
class JobGroup:
    """Live jobs that share a pool, a task queue and a template; `section` is as their owner typed it."""

    pool_id: str
    task_queue_id: int
    template_id: int
    vo: str
    section: Mapping[str, Value]
    waiting: int


@dataclass(frozen=True, slots=True)
class Rekeyed:
    """Jobs whose requirements were read again, and the pool that they now belong to."""

    group: JobGroup
    requirements: Requirements
    pool_id: str

    @property
    def changes_pool(self) -> bool:
        """Whether that is another pool than before."""
        return self.pool_id != self.group.pool_id


@dataclass(frozen=True, slots=True)
class Orphaned:
    """Jobs whose requirements no longer have a meaning, and the reason."""

    group: JobGroup
    why: str


def reread_requirements(group: JobGroup, declarations: ParameterDeclarations) -> Rekeyed | Orphaned:
    """Return where the jobs belong when their requirements are read under `declarations`."""
    try:
        requirements = read_requirements(group.section, group.vo, declarations)
    except InvalidRequirementsError as error:
        return Orphaned(group, str(error))
    return Rekeyed(group, requirements, pool_id(requirements))


@dataclass(frozen=True, slots=True)
class WaitingChange:
    """Waiting jobs, and their task queue before and after the change (None = they do not wait after it)."""

    count: int
    before: TaskQueue
    after: TaskQueue | None


def runnable_and_stuck(
    waits: Iterable[WaitingChange], before: QueueAccess, after: QueueAccess
) -> tuple[list[WaitingChange], list[WaitingChange]]:
    """Return the jobs that have become runnable on some queue, and those that no longer are on any."""
    runnable: list[WaitingChange] = []
    stuck: list[WaitingChange] = []
    for wait in waits:
        could = before.admits_anywhere(wait.before)
        can = wait.after is not None and after.admits_anywhere(wait.after)
        if can is not could:
            (runnable if can else stuck).append(wait)
    return runnable, stuck


@dataclass(frozen=True, slots=True)
class TreeState:
    """The state before the change: the tree, all pools with their mappings, and how many jobs wait where."""

    tree: ActiveTree
    pools: tuple[Pool, ...]
    mappings: PoolMappings
    waiting: tuple[tuple[TaskQueue, int], ...]


@dataclass(frozen=True, slots=True)
class TreePlan:
    """What is to be done: pools that stay, are removed, or are new, all mappings, and the jobs.

    `mappings` are all mappings that decide from then on. `unmapped` are the ids of pools that lose their mapping,
    `newly_mapped` of those that get their first one. `respelled` are those of `kept` whose section may
    have changed. `made` is the time of the new mappings.
    """

    tree: ActiveTree
    made: datetime
    kept: tuple[Pool, ...]
    respelled: tuple[Pool, ...]
    removed: tuple[Pool, ...]
    new: tuple[Pool, ...]
    mappings: PoolMappings
    unmapped: tuple[str, ...]
    newly_mapped: tuple[str, ...]
    rekeyed: tuple[Rekeyed, ...]
    unreadable: tuple[Orphaned, ...]
    effect: TreeEffect

    @property
    def touches_jobs(self) -> bool:
        """Whether jobs change their meaning, so that the plan depends on the jobs of that time."""
        return bool(self.respelled or self.removed or self.new or self.rekeyed or self.unreadable)


def touched_pools(pools: Iterable[Pool], before: ActiveTree, after: ActiveTree) -> frozenset[str]:
    """Return the ids of the pools that ask for something that `after` declares otherwise than `before`."""
    names = redeclared(before.declarations, after.declarations)
    return frozenset(pool.id for pool in pools if requires_any(pool.section, names))


def plan_tree(
    present: TreeState,
    groups: Sequence[JobGroup],
    after: ActiveTree,
    warnings: Sequence[str],
    now: datetime,
    pace: Pace = at_once,
) -> TreePlan:
    """Return what the tree `after` changes; `groups` are the live jobs of the pools that it touches."""
    read = [reread_requirements(group, after.declarations) for group in groups]
    rereads = tuple(outcome for outcome in read if isinstance(outcome, Rekeyed))
    unreadable = tuple(outcome for outcome in read if isinstance(outcome, Orphaned))
    touched = touched_pools(present.pools, present.tree, after)
    kept = _kept(present.pools, touched, (*_as_typed(present.pools, touched, after), *rereads), unreadable)
    new = _new(present.pools, rereads, now)
    mappings = PoolMappings(mapping_of(pool, after, now) for pool in pace((*kept, *new)))
    unmapped, newly_mapped = _mapping_changes(pace((*kept, *new)), mappings)
    remaining = {pool.id for pool in kept}
    rekeyed = tuple(outcome for outcome in rereads if outcome.changes_pool)
    return TreePlan(
        tree=after,
        made=now,
        kept=kept,
        respelled=tuple(pool for pool in kept if pool.id in touched),
        removed=tuple(pool for pool in present.pools if pool.id not in remaining),
        new=new,
        mappings=mappings,
        unmapped=unmapped,
        newly_mapped=newly_mapped,
        rekeyed=rekeyed,
        unreadable=unreadable,
        effect=_effect(present, mappings, after, (*rereads, *unreadable), warnings, pace),
    )


def with_new_pools(plan: TreePlan, ids: Set[str], added: Sequence[Pool]) -> TreePlan:
    """Return the plan for the pools of these `ids`; `added` are those made since. It touches no jobs."""
    stayed = (mapping for mapping in plan.mappings.all() if mapping.pool_id in ids)
    mappings = PoolMappings((*stayed, *(mapping_of(pool, plan.tree, plan.made) for pool in added)))
    kept = (*(pool for pool in plan.kept if pool.id in ids), *added)
    unmapped, newly_mapped = _mapping_changes(kept, mappings)
    return replace(plan, kept=kept, mappings=mappings, unmapped=unmapped, newly_mapped=newly_mapped)


def _mapping_changes(pools: Iterable[Pool], mappings: PoolMappings) -> tuple[tuple[str, ...], tuple[str, ...]]:
    unmapped: list[str] = []
    newly_mapped: list[str] = []
    for pool in pools:
        mapping = mappings.get(pool.id)
        is_mapped = mapping is not None and mapping.mapped is not None
        if is_mapped is (pool.mapped is None):
            (newly_mapped if is_mapped else unmapped).append(pool.id)
    return tuple(unmapped), tuple(newly_mapped)


def _as_typed(pools: Iterable[Pool], touched: Collection[str], after: ActiveTree) -> tuple[Rekeyed, ...]:
    """Return the present meaning of the pools themselves, without those whose meaning is gone or has changed."""
    own = (JobGroup(pool.id, 0, 0, pool.vo, pool.section, 0) for pool in pools if pool.id in touched)
    read = (reread_requirements(group, after.declarations) for group in own)
    return tuple(outcome for outcome in read if isinstance(outcome, Rekeyed) and not outcome.changes_pool)


def _kept(
    pools: Iterable[Pool], touched: Collection[str], rereads: Iterable[Rekeyed], unreadable: Iterable[Orphaned]
) -> tuple[Pool, ...]:
    # A pool is known by the section of jobs in it, preferably of jobs whose section still has a meaning.
    sections: dict[str, Mapping[str, Value]] = {}
    for respelled in rereads:
        sections.setdefault(respelled.pool_id, respelled.group.section)
    for orphaned in unreadable:
        sections.setdefault(orphaned.group.pool_id, orphaned.group.section)
    return tuple(
        replace(pool, section=sections[pool.id]) if pool.id in touched else pool
        for pool in pools
        if pool.id not in touched or pool.id in sections
    )


def _new(pools: Iterable[Pool], rereads: Iterable[Rekeyed], now: datetime) -> tuple[Pool, ...]:
    known = {pool.id for pool in pools}
    new = {respelled.pool_id: respelled.requirements for respelled in rereads if respelled.pool_id not in known}
    return tuple(new_pool(requirements, now) for requirements in new.values())


def _effect(
    present: TreeState,
    mappings: PoolMappings,
    after: ActiveTree,
    outcomes: Sequence[Rekeyed | Orphaned],
    warnings: Sequence[str],
    pace: Pace,
) -> TreeEffect:
    waits = pace(_waits(present.waiting, outcomes))
    runnable, stuck = runnable_and_stuck(
        waits, QueueAccess(present.tree, present.mappings), QueueAccess(after, mappings)
    )
    return TreeEffect(
        version=after.version,
        warnings=(*warnings, *_orphan_warnings(outcomes)),
        changes=_changes(present, mappings, after, outcomes, pace),
        jobs_runnable=sum(each.count for each in runnable),
        jobs_stuck=sum(each.count for each in stuck),
        pools_rekeyed=len({each.group.pool_id for each in outcomes if isinstance(each, Rekeyed) and each.changes_pool}),
        runnable=tuple(each.before.id for each in runnable),
        stuck=tuple(each.before.id for each in stuck),
    )


def _waits(waiting: Iterable[tuple[TaskQueue, int]], outcomes: Iterable[Rekeyed | Orphaned]) -> Iterator[WaitingChange]:
    read: dict[int, list[Rekeyed | Orphaned]] = {}
    for outcome in outcomes:
        read.setdefault(outcome.group.task_queue_id, []).append(outcome)
    for queue, count in waiting:
        outcomes_of_queue = read.get(queue.id)
        if outcomes_of_queue is None:
            yield WaitingChange(count, queue, queue)
        else:
            yield from (WaitingChange(each.group.waiting, queue, _moved(queue, each)) for each in outcomes_of_queue)


def _moved(queue: TaskQueue, outcome: Rekeyed | Orphaned) -> TaskQueue | None:
    if isinstance(outcome, Orphaned):
        return None
    return TaskQueue(queue.id, with_pool(queue.traits, outcome.pool_id))


def _changes(
    present: TreeState, mappings: PoolMappings, after: ActiveTree, outcomes: Iterable[Rekeyed | Orphaned], pace: Pace
) -> tuple[PoolChange, ...]:
    """Return what the pools gain and lose; one that is removed has the queues of the pools of its jobs."""
    successors: dict[str, set[str]] = {}
    for outcome in outcomes:
        if isinstance(outcome, Rekeyed):
            successors.setdefault(outcome.group.pool_id, set()).add(outcome.pool_id)
    same_numbers = after.order.extends(present.tree.order)
    waiting = Counter[str]()
    for queue, count in present.waiting:
        waiting[queue.pool_id] += count
    changes: list[PoolChange] = []
    for pool in pace(present.pools):
        before = present.mappings.queues(pool.id)
        if same_numbers and before.order is present.tree.order:
            before = before.in_order(after.order)
        own = mappings.get(pool.id)
        queues = own.queues if own else _united(after.order, map(mappings.queues, successors.get(pool.id, ())))
        gained, lost = queues - before, before - queues
        if gained or lost:
            changes.append(PoolChange(pool.id, gained, lost, pool.vo, pool.section, waiting[pool.id]))
    return tuple(changes)


def _united(order: QueueOrder, sets: Iterable[QueueSet]) -> QueueSet:
    bits = 0
    for queues in sets:
        bits |= queues.bits
    return QueueSet(order, bits)


def _orphan_warnings(outcomes: Iterable[Rekeyed | Orphaned]) -> tuple[str, ...]:
    counts: dict[str, int] = {}
    for outcome in outcomes:
        if isinstance(outcome, Orphaned):
            counts[outcome.why] = counts.get(outcome.why, 0) + outcome.group.waiting
    return tuple(f"waiting jobs that are held: {count}, since {why}" for why, count in counts.items())
