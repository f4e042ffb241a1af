"""Places for jobs in one transaction: the pool and the task queue, each looked for once however many jobs share it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from pilotage.job_description import JobDescription, Value
from pilotage.requirements import read_requirements
from pilotage_server.core.accounting import Account
from pilotage_server.core.job_attributes import NO_PAST, Past
from pilotage_server.core.task_queues import traits_of
from pilotage_server.operations.pools import ensure_pool
from pilotage_server.operations.task_queueing import TaskQueues, key_names
from pilotage_server.operations.world import World
from pilotage_server.storage.engine import Unit


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a job waits; `pool_id` "" = it has no Requirements section."""

    task_queue_id: int
    pool_id: str


class Placer:
    """Finds pools and task queues, makes those that are new, and remembers them as long as its transaction lasts."""

    def __init__(self, unit: Unit, world: World) -> None:
        self.world = world
        self._unit = unit
        self._names: frozenset[str] | None = None
        self._pools: dict[tuple[str, str], str] = {}
        self._task_queues = TaskQueues(unit, world)

    def tells_apart(self, names: frozenset[str]) -> bool:
        """Whether jobs may wait in different task queues for differing in attributes of these folded names alone."""
        return not names.isdisjoint(self._telling())

    def place(self, account: Account, description: JobDescription, past: Past = NO_PAST) -> Placement:
        """Return where a job of this description, with `past` behind it, waits; raises as `pool_of`."""
        names = self._telling()
        pool_id = self.pool_of(account.vo, description)
        traits = traits_of(account, pool_id, description, names, past)
        return Placement(self._task_queues.id_of(traits), pool_id)

    def _telling(self) -> frozenset[str]:
        """Return the folded names of the attributes that tell task queues apart."""
        if self._names is None:
            self._names = key_names(self._unit, self.world)
        return self._names

    def pool_of(self, vo: str, description: JobDescription) -> str:
        """Return the id of the pool of such a job, "" for none.

        Raises
        ------
        InvalidRequirementsError
            The Requirements section has no meaning.
        """
        section = description.requirements
        key = (vo, _text(section))
        if key not in self._pools:
            requirements = read_requirements(section, vo, self.world.tree.declarations) if section else None
            self._pools[key] = ensure_pool(self._unit, self.world, requirements)
        return self._pools[key]


def _text(section: Mapping[str, Value] | None) -> str:
    return json.dumps(dict(section), sort_keys=True) if section else ""
