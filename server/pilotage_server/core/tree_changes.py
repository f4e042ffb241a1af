"""What a new version of the tree does to pools and waiting jobs.

Rules
-----
A parameter whose type or unit is declared otherwise may split the pools that ask for it: their jobs are read
again, each as its owner typed it, and go to the pool of what they now mean. Bans play no part here: they are
for a while, a tree is until the next.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Set
from dataclasses import dataclass

from pilotage.errors import InvalidRequirementsError
from pilotage.folding import folded_set
from pilotage.job_description import Value
from pilotage.parameters import ParameterDeclaration, ParameterDeclarations
from pilotage.requirements import Requirements, pool_id, read_requirements
from pilotage.resource_tree import QueueId
from pilotage_server.core.reach import Reach
from pilotage_server.core.task_queues import TaskQueue


@dataclass(frozen=True, slots=True)
class PoolChange:
    """What happens to the mapping of a pool; at least one of the two is not empty."""

    pool_id: str
    gained: Set[QueueId]
    lost: Set[QueueId]


@dataclass(frozen=True, slots=True)
class TreeEffect:
    """What a tree changes, or would: its version, what its operator should know, and what becomes of jobs.

    `jobs_runnable` are waiting jobs that no queue could take and now one can, `jobs_stuck` the reverse.
    `pools_rekeyed` counts the pools whose jobs, or some of them, come to another pool.
    """

    version: int
    warnings: tuple[str, ...] = ()
    changes: tuple[PoolChange, ...] = ()
    jobs_runnable: int = 0
    jobs_stuck: int = 0
    pools_rekeyed: int = 0


def pool_change(pool: str, before: Set[QueueId], after: Set[QueueId]) -> PoolChange | None:
    """Return what `pool` gains and loses; None = nothing."""
    gained, lost = after - before, before - after
    return PoolChange(pool, gained, lost) if gained or lost else None


def redeclared(before: ParameterDeclarations, after: ParameterDeclarations) -> frozenset[str]:
    """Return the folded names of the parameters whose requirements may mean something else than before."""
    names = folded_set(declaration.name for declarations in (before, after) for declaration in declarations)
    return frozenset(name for name in names if _meaning(before.get(name)) != _meaning(after.get(name)))


def _meaning(declaration: ParameterDeclaration | None) -> tuple[str, str | None] | None:
    return None if declaration is None else (declaration.type, declaration.unit)


def asks_for(section: Mapping[str, Value], names: Collection[str]) -> bool:
    """Return whether a section asks for one of the folded `names`."""
    return not folded_set(section).isdisjoint(names)


@dataclass(frozen=True, slots=True)
class Holding:
    """Live jobs that share a pool, a task queue and a template; `section` is as their owner typed it."""

    pool_id: str
    task_queue_id: int
    template_id: int
    vo: str
    section: Mapping[str, Value]
    waiting: int


@dataclass(frozen=True, slots=True)
class Reread:
    """Jobs whose requirements were read again, and the pool that they now belong to."""

    holding: Holding
    requirements: Requirements
    pool_id: str

    @property
    def moves(self) -> bool:
        """Whether that is another pool than before."""
        return self.pool_id != self.holding.pool_id


@dataclass(frozen=True, slots=True)
class Stranded:
    """Jobs whose requirements no longer have a meaning, and why."""

    holding: Holding
    why: str


def read_again(holding: Holding, declarations: ParameterDeclarations) -> Reread | Stranded:
    """Return where the jobs belong when their requirements are read under `declarations`."""
    try:
        requirements = read_requirements(holding.section, holding.vo, declarations)
    except InvalidRequirementsError as error:
        return Stranded(holding, str(error))
    return Reread(holding, requirements, pool_id(requirements))


@dataclass(frozen=True, slots=True)
class Wait:
    """Jobs that wait, and their task queue before and after the change (None = they do not wait after it)."""

    count: int
    before: TaskQueue
    after: TaskQueue | None


def runnable_and_stuck(waits: Iterable[Wait], before: Reach, after: Reach) -> tuple[int, int]:
    """Return how many jobs a queue can now take that none could, and how many none can now that one could."""
    runnable = stuck = 0
    for wait in waits:
        could = before.can_go_somewhere(wait.before)
        can = wait.after is not None and after.can_go_somewhere(wait.after)
        runnable += wait.count if can and not could else 0
        stuck += wait.count if could and not can else 0
    return runnable, stuck
