"""Which queues a task queue may run on: the one predicate for match, demand and explanation.

A queue admits a task queue when the pool's mapping contains it (without a pool: when the queue is open to the VO), the
keywords agree, and the sizes fit those that the queue states. `pilotage.resources.eligibility` decides; the
results are cached as long as the tree is the same. Bans change by the minute, so callers check them once a request.

A pilot also has to isolate payloads as well as the queue's `Isolation` promises to the VO, and as well as the server
requires for the VO.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType

from pilotage.resources.eligibility import Eligible, eligibility, job_fit
from pilotage.resources.parameters import ISOLATION
from pilotage.resources.requirements import JobNeeds
from pilotage.resources.tree import QueueId
from pilotage.text import fold, folded_set
from pilotage.values.isolation import Isolation
from pilotage_server.core.queueing.task_queue import TaskQueue
from pilotage_server.core.resources.mappings import PoolMappings
from pilotage_server.core.resources.tree import ActiveTree

_MAX_REMEMBERED = 200_000
_ANY_VO = ""
"""Stands for the VOs without overlays."""

_UNRESTRICTED: Mapping[str, Isolation] = MappingProxyType({})


class QueueAccess:
    """The predicate, over one version of the tree and its mappings.

    `required` is the least isolation of pilots that the server requires for VOs, by folded name.
    """

    def __init__(
        self, tree: ActiveTree, mappings: PoolMappings, required: Mapping[str, Isolation] = _UNRESTRICTED
    ) -> None:
        self.mappings = mappings
        self._tree = tree
        self._required = required
        self._weak: dict[tuple[Isolation, QueueId, str], str] = {}
        self._fits: dict[tuple[str, JobNeeds], dict[QueueId, bool]] = {}
        self._remembered = 0
        self._open: dict[tuple[str, QueueId], bool] = {}

    def is_based_on(self, tree: ActiveTree, mappings: PoolMappings) -> bool:
        """Whether this predicate uses just this tree and these mappings."""
        return self._tree is tree and self.mappings is mappings

    def admits(self, task_queue: TaskQueue, queue: QueueId) -> bool:
        """Whether the queue admits the jobs of the task queue, bans left out."""
        if task_queue.pool_id:
            if queue not in self.mappings.queues(task_queue.pool_id):
                return False
        elif not self._is_open(task_queue.account.vo, queue):
            return False
        return self._fit(task_queue, queue)

    def admits_pilot(self, task_queue: TaskQueue, queue: QueueId, isolation: Isolation) -> bool:
        """Whether pilots of the queue that isolate so may take the jobs of the task queue, bans left out."""
        return not self.too_weak(isolation, queue, task_queue.account.vo) and self.admits(task_queue, queue)

    def too_weak(self, isolation: Isolation, queue: QueueId, vo: str) -> str:
        """Return why pilots of the queue that isolate so get no jobs of the VO, for people; "" = they may."""
        if isolation is Isolation.NAMESPACE:
            return ""
        key = (isolation, queue, vo)
        why = self._weak.get(key)
        if why is None:
            why = self._weak[key] = next(self._shortfalls(isolation, queue, vo), "")
        return why

    def _shortfalls(self, isolation: Isolation, queue: QueueId, vo: str) -> Iterator[str]:
        effective = self._tree.effective(queue, vo)
        promised = None if effective is None else effective.get(ISOLATION)
        if promised is not None and not isolation.is_at_least(Isolation(fold(str(promised.value)))):
            stated = " and ".join(map(str, promised.origins))
            yield f"isolation: the pilot offers {isolation}, {queue} requires {promised.value} (stated by {stated})"
        required = self._required.get(fold(vo), Isolation.NONE)
        if not isolation.is_at_least(required):
            yield f"isolation: the pilot offers {isolation}, VO {vo} requires {required}"

    def too_weak_for_all(self, isolation: Isolation, queue: QueueId, vos: Iterable[str]) -> str:
        """Return why a pilot of the queue that isolates so gets no jobs at all; "" = it may get some.

        `vos` are the VOs that it serves, none = all.
        """
        if isolation is Isolation.NAMESPACE:
            return ""
        first = ""
        for vo in tuple(vos) or (_ANY_VO, *self._tree.vos_with_overlays):
            why = self.too_weak(isolation, queue, vo)
            if not why:
                return ""
            first = first or why
        return first

    def admits_anywhere(self, task_queue: TaskQueue) -> bool:
        """Whether some queue admits the jobs of the task queue, bans left out."""
        if not task_queue.pool_id:
            return any(self.admits(task_queue, queue) for queue in self._tree.queues)
        return any(self._fit(task_queue, queue) for queue in self.mappings.queues(task_queue.pool_id))

    def _is_open(self, vo: str, queue: QueueId) -> bool:
        key = (vo, queue)
        if key not in self._open:
            effective = self._tree.effective(queue, vo)
            self._open[key] = effective is not None and isinstance(eligibility(None, effective), Eligible)
        return self._open[key]

    def _fit(self, task_queue: TaskQueue, queue: QueueId) -> bool:
        key = (task_queue.traits.account.vo, task_queue.traits.needs)
        fits = self._fits.get(key)
        if fits is None:
            fits = self._fits[key] = {}
        remembered = fits.get(queue)
        if remembered is None:
            if self._remembered >= _MAX_REMEMBERED:
                self._fits = {key: fits}
                fits.clear()
                self._remembered = 0
            vo, needs = key
            effective = self._tree.effective(queue, vo)
            remembered = fits[queue] = effective is not None and isinstance(job_fit(needs, effective), Eligible)
            self._remembered += 1
        return remembered


class PilotAccess:
    """What one pilot may take: by its credential, its queue and its VOs (none = all); by its isolation."""

    def __init__(self, reach: QueueAccess, queue: QueueId, vos: Iterable[str], isolation: Isolation) -> None:
        self._reach = reach
        self._queue = queue
        self._isolation = isolation
        self._vos = folded_set(vos)

    def admits(self, task_queue: TaskQueue) -> bool:
        """Whether the pilot may take the jobs of the task queue, bans left out."""
        served = not self._vos or fold(task_queue.account.vo) in self._vos
        return served and self._reach.admits_pilot(task_queue, self._queue, self._isolation)
