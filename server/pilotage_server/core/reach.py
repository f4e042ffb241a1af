"""Where a task queue can go: the one predicate that match, demand and explanation share.

Rules
-----
A task queue can go to a batch queue when the pool's mapping holds it (or there is no pool and the queue is open
to the VO), the keywords agree, and the sizes fit those that the queue states (DESIGN §7). The ground's evaluator
decides; here its verdicts are only remembered, as long as the tree is the same. Bans change by the minute and
are asked each time, once a batch queue.
"""

from __future__ import annotations

from collections.abc import Iterable

from pilotage.eligibility import Eligible, eligibility
from pilotage.folding import fold, folded_set
from pilotage.job_fit import job_fit
from pilotage.job_needs import JobNeeds
from pilotage.resource_tree import QueueId
from pilotage_server.core.pool_mappings import PoolMappings
from pilotage_server.core.task_queues import TaskQueue
from pilotage_server.core.tree_in_force import TreeInForce

_MOST_REMEMBERED = 200_000


class Reach:
    """The predicate, over one version of the tree and the mappings in force."""

    def __init__(self, tree: TreeInForce, mappings: PoolMappings) -> None:
        self.mappings = mappings
        self._tree = tree
        self._fits: dict[tuple[str, JobNeeds], dict[QueueId, bool]] = {}
        self._remembered = 0
        self._open: dict[tuple[str, QueueId], bool] = {}

    def is_over(self, tree: TreeInForce, mappings: PoolMappings) -> bool:
        """Whether these are the tree and the mappings that this decides by."""
        return self._tree is tree and self.mappings is mappings

    def can_go(self, task_queue: TaskQueue, queue: QueueId) -> bool:
        """Whether the jobs of the task queue can go to the batch queue, bans apart."""
        if task_queue.pool_id:
            if queue not in self.mappings.queues(task_queue.pool_id):
                return False
        elif not self._is_open(task_queue.account.vo, queue):
            return False
        return self._fit(task_queue, queue)

    def can_go_somewhere(self, task_queue: TaskQueue) -> bool:
        """Whether some batch queue can take the jobs of the task queue, bans apart."""
        if not task_queue.pool_id:
            return any(self.can_go(task_queue, queue) for queue in self._tree.queues)
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
            if self._remembered >= _MOST_REMEMBERED:
                self._fits = {key: fits}
                fits.clear()
                self._remembered = 0
            vo, needs = key
            effective = self._tree.effective(queue, vo)
            remembered = fits[queue] = effective is not None and isinstance(job_fit(needs, effective), Eligible)
            self._remembered += 1
        return remembered


class Door:
    """One pilot's door to the waiting jobs: its batch queue and the VOs that its credential names (none = all)."""

    def __init__(self, reach: Reach, queue: QueueId, vos: Iterable[str]) -> None:
        self._reach = reach
        self._queue = queue
        self._vos = folded_set(vos)

    def can_go(self, task_queue: TaskQueue) -> bool:
        """Whether the jobs of the task queue may go to this pilot, bans apart."""
        served = not self._vos or fold(task_queue.account.vo) in self._vos
        return served and self._reach.can_go(task_queue, self._queue)
