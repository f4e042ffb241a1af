"""Whether jobs may go to the places that routes lead to: what holds for matches there holds for copies too."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from functools import cached_property

from pilotage.bans import active_bans
from pilotage.eligibility import NoAccess, Refused
from pilotage.folding import fold, folded_set
from pilotage.job_fit import ban_refusal
from pilotage.job_needs import JobNeeds
from pilotage.resource_tree import QueueId
from pilotage_server.core.job_record import JobRecord
from pilotage_server.core.limits import LimitRound
from pilotage_server.core.routes import place_name
from pilotage_server.core.task_queues import TaskQueue
from pilotage_server.operations.queue_verdicts import mapping_obstacle, queue_verdict
from pilotage_server.operations.running_counts import limits_at_present, running_counts
from pilotage_server.operations.trials import claim_trials, closed_at
from pilotage_server.operations.world import World
from pilotage_server.storage.attempts import AttemptKey
from pilotage_server.storage.engine import Unit


def gates_of(unit: Unit, world: World, wanted: Sequence[QueueId]) -> dict[QueueId, Gate]:
    """Return the gates of the places that copies are to go to, each named as often as copies are to go there."""
    return _gates(unit, world, wanted, limits_at_present(unit, world, set(wanted), len(wanted)))


def gates_to_look_at(unit: Unit, world: World, places: Collection[QueueId]) -> dict[QueueId, Gate]:
    """Return the gates of places that nobody is to enter now; nothing is locked for them."""
    return _gates(unit, world, places, LimitRound(running_counts(unit, world, places)))


def _gates(unit: Unit, world: World, places: Iterable[QueueId], limits: LimitRound) -> dict[QueueId, Gate]:
    return {place: Gate(unit, world, place, limits.at(world.limits.at(place))) for place in dict.fromkeys(places)}


class Gate:
    """Decides which jobs may go to one place; what it has let in counts for those that come after.

    `trial` is the attempt by which a throttled place is tried, None = it is not tried.
    """

    def __init__(self, unit: Unit, world: World, place: QueueId, limits: LimitRound) -> None:
        self._unit = unit
        self._world = world
        self._place = place
        self._limits = limits
        self._throttles = closed_at(world, place)
        self._is_tried = False
        self.trial: AttemptKey | None = None
        self._unfit: dict[int, str] = {}

    def enter(self, job: JobRecord, task_queue: TaskQueue) -> str:
        """Let the job in and return "", or return why it may not go here."""
        why = self._shut_to(job, task_queue) or self._throttled(job)
        if not why:
            self._limits.given(task_queue.traits)
        return why

    def obstacle(self, job: JobRecord, task_queue: TaskQueue) -> str:
        """Return why the job could not go here; "" = it could. Nothing is claimed for it."""
        return self._shut_to(job, task_queue) or (str(self._throttles[0]) if self._throttles else "")

    def _shut_to(self, job: JobRecord, task_queue: TaskQueue) -> str:
        return self._closed or self._why_unfit(job, task_queue) or self._full(task_queue)

    @cached_property
    def _closed(self) -> str:
        """Why no job may go here."""
        if self._place.queue and not self._world.tree.knows(self._place):
            return f"the tree in force has no queue {self._place}"
        ban = next(iter(active_bans(self._world.bans, self._place, self._unit.now)), None)
        return ban_refusal(ban).why if ban is not None else ""

    def _why_unfit(self, job: JobRecord, task_queue: TaskQueue) -> str:
        """Return why no job of the task queue may go here."""
        if not self._place.queue:
            return self._why_not_there(task_queue.needs)
        if self._world.reach.can_go(task_queue, self._place):
            return ""
        if task_queue.id not in self._unfit:
            self._unfit[task_queue.id] = self._refusal(job, task_queue)
        return self._unfit[task_queue.id]

    def _why_not_there(self, needs: JobNeeds) -> str:
        """Return why no job with these needs may go to the other server; what that one admits is its own business.

        Sites that the tree in force has are those that are meant; of others the other server may know more.
        """
        server = fold(self._place.site)
        if server in needs.banned_sites:
            return f"the job wants to avoid {place_name(self._place)}"
        are_here = needs.sites and server not in needs.sites and self._own_sites.issuperset(needs.sites)
        return "the job wants sites that are here" if are_here else ""

    @cached_property
    def _own_sites(self) -> frozenset[str]:
        return folded_set(site.name for site in self._world.tree.tree.sites)

    def _refusal(self, job: JobRecord, task_queue: TaskQueue) -> str:
        description = self._world.descriptions.of(self._unit, [job.template_id])[job.template_id]
        verdict = queue_verdict(self._unit, self._world, description, task_queue, self._place)
        if isinstance(verdict, NoAccess):
            return f"VO {job.vo} may not use queue {self._place}"
        if isinstance(verdict, Refused):
            return f"queue {self._place} cannot run it: {verdict.refusals[0]}"
        return mapping_obstacle(self._world, task_queue, self._place) or "what may go where has just changed"

    def _full(self, task_queue: TaskQueue) -> str:
        reached = self._limits.reached(task_queue.traits)
        return f"the limit is reached: {reached}" if reached is not None else ""

    def _throttled(self, job: JobRecord) -> str:
        """Return why the place gets no job because of its health; its trial, if one is due, is the first that asks."""
        if not self._throttles:
            return ""
        if not self._is_tried:
            self._is_tried = True
            if claim_trials(self._unit, self._world, self._throttles):
                self.trial = (job.id, job.attempt + 1)
                return ""
        return str(self._throttles[0])
