"""Attributes of jobs that policies of slots refer to: from then on they tell task queues apart.

Several servers may meet the same policy at once: the database has the names, and one lock orders new names with
new jobs, so that every job is placed by all names that are there.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable
from functools import partial

from pilotage_server.core.job_ads import ALWAYS_TOLD
from pilotage_server.core.job_attributes import PAST, past_of
from pilotage_server.core.owned_attributes import FIELDS
from pilotage_server.core.task_queues import TaskQueue, Traits, redescribed, with_past
from pilotage_server.operations.recounting import recount
from pilotage_server.operations.task_queueing import TaskQueues
from pilotage_server.operations.world import World
from pilotage_server.storage import rekeying as stored
from pilotage_server.storage.engine import Unit
from pilotage_server.storage.jobs import chunks
from pilotage_server.storage.significant_attributes import insert_significant, lock_significant
from pilotage_server.storage.task_queues import load_task_queues
from pilotage_server.storage.templates import load_descriptions

MOST_REFERENCES = 2000
"""Attributes that may tell task queues apart; what policies look for beyond that, no job is asked."""

_NAME = re.compile(r"[a-z_]\w{0,254}", re.ASCII)
_TEMPLATES_AT_ONCE = 1000


def unknown_references(world: World, names: Iterable[str]) -> frozenset[str]:
    """Return those of the folded names, which an expression looks at, that do not tell task queues apart yet."""
    return frozenset(names) - world.significant - ALWAYS_TOLD


def is_room_for(world: World, names: Collection[str]) -> bool:
    """Whether so many unknown references may be referred to as well."""
    return len(world.significant) + len(names) <= MOST_REFERENCES


def refer_to(unit: Unit, world: World, names: Iterable[str]) -> None:
    """Let these attributes of jobs, by their folded names, tell task queues apart.

    Waiting jobs come to other task queues, as far as they have such an attribute; what this costs grows with the
    arrays that have one, not with their jobs. The memory knows after the commit.
    """
    wanted = frozenset(name for name in unknown_references(world, names) if _NAME.fullmatch(name))
    if not wanted:
        return
    known = lock_significant(unit.session)
    new = wanted - known
    if new:
        insert_significant(unit.session, new, unit.now)
        Rekeying(unit, world, known | new | world.rules.key_attributes()).rekey(new)
    unit.after_commit(partial(_take_in, world, known | new))


def _take_in(world: World, names: frozenset[str]) -> None:
    with world.lock:
        world.significant |= names
    world.reach_changed()


class Rekeying:
    """Moves waiting jobs to the task queues that `names`, all that anybody refers to, tell apart."""

    def __init__(self, unit: Unit, world: World, names: frozenset[str]) -> None:
        self._unit = unit
        self._world = world
        self._names = names
        self._task_queues = TaskQueues(unit, world)
        self._known: dict[int, TaskQueue] = {}
        self._touched: set[int] = set()

    def rekey(self, new: frozenset[str]) -> None:
        """Move the jobs that differ in one of the names `new`."""
        keys = {key for name in new - PAST for key in _json_keys(name)}
        if keys:
            self._rekey_described(keys)
        if new & PAST:
            self._rekey_pasts()
        if self._touched:
            recount(self._unit, self._world, self._touched)

    def _rekey_described(self, keys: set[str]) -> None:
        session = self._unit.session
        moves: dict[tuple[int, int], list[int]] = defaultdict(list)
        for pairs in chunks(stored.waiting_templates(session, keys), _TEMPLATES_AT_ONCE):
            self._learn(before for before, _ in pairs)
            descriptions = load_descriptions(session, (template for _, template in pairs))
            for before, template in pairs:
                traits = redescribed(self._known[before].traits, descriptions[template], self._names)
                moves[before, self._id_of(traits, before)].append(template)
        for (before, after), templates in moves.items():
            if before != after:
                stored.move_templates(session, templates, before, after)
                self._touched |= {before, after}

    def _rekey_pasts(self) -> None:
        session = self._unit.session
        for jobs in stored.waiting_with_past(session):
            self._learn(job.task_queue_id for job in jobs)
            moves: dict[int, list[int]] = defaultdict(list)
            for job in jobs:
                traits = with_past(self._known[job.task_queue_id].traits, past_of(job), self._names)
                after = self._id_of(traits, job.task_queue_id)
                if after != job.task_queue_id:
                    moves[after].append(job.id)
                    self._touched |= {job.task_queue_id, after}
            for after, job_ids in moves.items():
                stored.move_jobs(session, job_ids, after)

    def _learn(self, task_queue_ids: Iterable[int]) -> None:
        unknown = set(task_queue_ids) - self._known.keys()
        self._known |= {each.id: each for each in load_task_queues(self._unit.session, unknown)}

    def _id_of(self, traits: Traits, before: int) -> int:
        return before if traits == self._known[before].traits else self._task_queues.id_of(traits)


def _json_keys(name: str) -> set[str]:
    """Return the keys of a description's JSON, in lower case, of which one is there where a job has the attribute."""
    return {name, FIELDS.get(name, name)} | ({"universe"} if name == "jobuniverse" else set())
