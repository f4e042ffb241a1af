"""The task-queue director: sends pilots to a system that chooses the queue of each pilot itself.

Such a system is the workload manager of a grid, a glidein factory or a cloud. Each pilot says at its enrolment which
queue of the set it landed on.

Rules
-----
- The demand is that of the whole set: a job counts once, however many queues of the set could take it.
- Idle slots count at their own queue, since a job may need another one. Pilots that have not landed yet could land
  anywhere, so each counts for every job of the set that fits in it.
- No pilots are sent for jobs that only closed queues could take.
- A running limit holds for the set if it holds for all its open queues.
- Only failed submissions pause the set. Pilots that end in error may all come from one broken queue; the server counts
  them as empty returns until a pilot of the set runs a job.

Source: DIRAC's RFC #7, which has pilots of task-queue directors ask for the submit pools of the queue that they happen
to run in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pilotage.resources.queue_patterns import matches_any
from pilotage.resources.tree import QueueId
from pilotage.values.demand import Demand, DemandAnswer, LimitRoom, QueueSupply
from pilotage_agents.batch_systems.shape import QueueFacts, Shape, queue_facts
from pilotage_agents.runtime.link import TreeQueue
from pilotage_agents.site_director.director import DirectorSnapshot, PilotDirector
from pilotage_agents.site_director.planning import QueueLimits, QueueState
from pilotage_agents.site_director.ports import DirectorContext
from pilotage_agents.site_director.queues import QueueFailures, ServedQueue, demands_of_served_vos
from pilotage_agents.site_director.sender import PilotSender
from pilotage_agents.site_director.settings import TaskQueueDirectorSettings
from pilotage_agents.site_director.watch import GlideinWatch

_NOT_CHOSEN = "the batch system chooses the queue"
"""Why a queue of the set gets no pilots itself."""


def set_demands(demands: Sequence[Demand], states: Sequence[QueueState]) -> tuple[Demand, ...]:
    """Return the demands with only the open ones of these queues, and the set itself, which follows them."""
    found = []
    for demand in demands:
        indexes = tuple(index for index in demand.queue_indexes if not states[index].closed)
        if indexes:
            found.append(replace(demand, queue_indexes=(*indexes, len(states))))
    return tuple(found)


def set_limits(limits: Sequence[LimitRoom], states: Sequence[QueueState]) -> tuple[LimitRoom, ...]:
    """Return the limits, of which those of all open queues hold for the set, too, which follows these queues."""
    open_queues = {index for index, state in enumerate(states) if not state.closed}
    return tuple(
        replace(each, queue_indexes=(*each.queue_indexes, len(states)))
        if open_queues.issubset(each.queue_indexes)
        else each
        for each in limits
    )


def set_state(
    name: QueueId, pilot: Shape, answer: DemandAnswer, states: Sequence[QueueState], max_pilots: int | None, paused: str
) -> QueueState:
    """Return the set as one queue of a plan; `states` are those of its queues."""
    reasons = [state.closed for state in states if state.closed]
    supply = QueueSupply(
        known=True,
        pilots_waiting=answer.set_supply.pilots_waiting,
        pilots_running=sum(state.supply.pilots_running for state in states),
        idle=tuple(slots for state in states for slots in state.supply.idle),
        empty_returns=answer.set_supply.empty_returns,
    )
    closed = ""
    if len(reasons) == len(states):
        closed = f"no queue of the set is open: {reasons[0]}" if reasons else "the tree has no queue of the set"
    return QueueState(name, pilot, supply, QueueLimits(max_pilots), closed, paused, idle_elsewhere=True)


class TaskQueueDirector(PilotDirector):
    """Sends pilots for a set of queues."""

    name = "task-queue director"

    def __init__(
        self,
        settings: TaskQueueDirectorSettings,
        context: DirectorContext,
        watch: GlideinWatch,
        sender: PilotSender,
    ) -> None:
        super().__init__(settings, context, watch, sender)
        self._settings = settings
        (batch_system,) = settings.batch_systems
        self._set = ServedQueue(
            QueueId.parse(settings.queues[0]),
            batch_system,
            QueueFacts(
                Shape(settings.cpus, settings.memory_mib, settings.disk_mib, settings.gpus),
                wall_time_s=settings.wall_time_s,
            ),
            max_pilots=settings.max_pilots,
            vos=settings.vos,
            pilot=settings.pilot,
            pilot_bundle=str(settings.pilot_bundle or ""),
            python=settings.python,
            queue_set=settings.queues,
            batch_queue=settings.batch_queue,
        )
        self._tree_version: int | None = None
        self._queues: tuple[ServedQueue, ...] = ()

    async def _refresh(self) -> None:
        await self._watch.refresh(QueueFailures())

    async def _snapshot(self) -> DirectorSnapshot:
        tree_version = (await self._link.pools_of(())).tree_version
        if tree_version != self._tree_version:
            self._queues = self._queues_of_set(await self._link.queues())
            self._tree_version = tree_version
        queues = self._queues
        answer = await self._link.demand([queue.id for queue in queues], self._settings.queues)
        now = self._clock()
        states = tuple(
            replace(queue.state(supply, QueueFailures(), now), paused=_NOT_CHOSEN)
            for queue, supply in zip(queues, answer.supplies, strict=True)
        )
        pause = self._failures.pause_reason(self._set.id, now)
        whole = set_state(self._set.id, self._set.facts.pilot, answer, states, self._settings.max_pilots, pause)
        demands = set_demands(demands_of_served_vos(answer.demands, queues), states)
        limits = set_limits(answer.limits, states)
        return DirectorSnapshot((*queues, self._set), (None,) * (len(queues) + 1), demands, (*states, whole), limits)

    def _queues_of_set(self, tree: Sequence[TreeQueue]) -> tuple[ServedQueue, ...]:
        self._note_unused(self._settings.queues, tree)
        return tuple(
            ServedQueue(queue.id, "", queue_facts(queue.parameters), queue.enabled, vos=self._settings.vos)
            for queue in tree
            if matches_any(queue.id, self._settings.queues)
        )
