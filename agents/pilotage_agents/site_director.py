"""The site director: sends pilots to the queues that waiting work could use, and watches over their glideins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import structlog

from pilotage.errors import PilotageError, TurnLostError
from pilotage.resource_tree import QueueId
from pilotage_agents.core.provisioning import Demand, QueuePlan, QueueState, Ramp, plan_pilots
from pilotage_agents.core.queue_failures import QueueFailures
from pilotage_agents.core.serving import ServedQueue, for_served_vos, naming_nothing, unused_lines
from pilotage_agents.glideins.bundle_store import UnfinishedBundleError
from pilotage_agents.glideins.director_edges import DirectorEdges
from pilotage_agents.glideins.glidein_watch import GlideinWatch
from pilotage_agents.glideins.pilot_sender import PilotSender
from pilotage_agents.glideins.served_queues import served_queues
from pilotage_agents.link import TreeQueue
from pilotage_agents.settings import EVERY_QUEUE, SiteDirectorSettings, WhenStopped

log = structlog.get_logger()

_MOST_PILOTS_IN_A_CALL = 1000


@dataclass(frozen=True, slots=True)
class Situation:
    """What one round decides on; queues, pools and states go together."""

    queues: tuple[ServedQueue, ...]
    pools: tuple[tuple[str, ...], ...]
    demands: tuple[Demand, ...]
    states: tuple[QueueState, ...]

    @property
    def is_urgent(self) -> bool:
        """Whether a new job could find no idle core at one of the open queues."""
        return any(not state.why_none and state.supply.idle_cpus == 0 for state in self.states)


class SiteDirector:
    """Fills the queues that it serves."""

    name = "site director"

    def __init__(
        self,
        settings: SiteDirectorSettings,
        edges: DirectorEdges,
        watch: GlideinWatch,
        sender: PilotSender,
    ) -> None:
        self._settings = settings
        self._link = edges.link
        self._batch_systems = edges.batch_systems
        self._watch = watch
        self._sender = sender
        self._clock = edges.clock
        self._tree_version: int | None = None
        self._queues: tuple[ServedQueue, ...] = ()
        self._naming_nothing: tuple[str, ...] = ()
        self._failures = QueueFailures()

    async def run_once(self) -> timedelta:
        """Look after the glideins, then send what the demand calls for; returns when to look again."""
        self._failures = await self._watch.look(self._failures)
        situation = await self._situation()
        plans = self._plans(situation)
        for queue, pools, plan in zip(situation.queues, situation.pools, plans, strict=True):
            if plan.pilots:
                await self._send(queue, pools, plan)
        urgent = situation.is_urgent
        return timedelta(seconds=self._settings.urgent_interval_s if urgent else self._settings.interval_s)

    async def dry_run(self) -> tuple[str, ...]:
        """Return what a round would send and why, one line a queue; changes nothing."""
        plans = self._plans(await self._situation())
        lines = (f"{plan.id}: {plan.pilots} pilots ({'; '.join(plan.reasons)})" for plan in plans)
        return (*unused_lines(self._naming_nothing), *lines)

    async def stop(self) -> None:
        """End the director's pilots where the settings say so; the server learns that they are gone."""
        if self._settings.when_stopped is WhenStopped.CANCEL:
            await self._watch.cancel_all()
            self._failures = await self._watch.look(self._failures)

    def _plans(self, situation: Situation) -> tuple[QueuePlan, ...]:
        ramp = Ramp(self._settings.ramp_start, self._settings.ramp_factor)
        return plan_pilots(situation.demands, situation.states, ramp)

    async def _situation(self) -> Situation:
        pools = await self._link.pools_of([queue.id for queue in self._queues])
        if pools.tree_version != self._tree_version:
            self._queues = self._served(await self._link.queues())
            self._tree_version = pools.tree_version
            pools = await self._link.pools_of([queue.id for queue in self._queues])
        demand = await self._link.demand([queue.id for queue in self._queues])
        now = self._clock()
        states = tuple(
            queue.state(each, self._failures, now) for queue, each in zip(self._queues, demand.supplies, strict=True)
        )
        demands = for_served_vos(demand.demands, self._queues)
        return Situation(self._queues, tuple(each or () for each in pools.pools), demands, states)

    def _served(self, tree: Sequence[TreeQueue]) -> tuple[ServedQueue, ...]:
        served = served_queues(self._settings, tree)
        log.info("tree read", queues=len(tree), served=len(served))
        said = (self._settings.queues, *(override.queues for override in self._settings.overrides))
        patterns = dict.fromkeys(pattern for patterns in said for pattern in patterns if pattern not in EVERY_QUEUE)
        self._naming_nothing = naming_nothing(patterns, (queue.id for queue in tree))
        if self._naming_nothing:
            log.warning("no queue of the tree is called so", patterns=self._naming_nothing)
        return served

    async def _send(self, queue: ServedQueue, pools: Sequence[str], plan: QueuePlan) -> None:
        count = min(plan.pilots, _MOST_PILOTS_IN_A_CALL)
        batch_system = self._batch_systems[queue.batch_system]
        try:
            sent = await self._sender.send(queue, count, pools, batch_system)
        except TurnLostError:
            raise
        except UnfinishedBundleError as error:  # which says nothing of the queue
            log.warning(
                "no pilots are sent before their bundle is whole", queue=str(queue.id), bundle=str(error.bundle)
            )
            return
        except PilotageError as error:
            self._note_failure(queue.id, str(error))
            return
        log.info("pilots sent", queue=str(queue.id), pilots=sent.submitted, reasons=plan.reasons)
        if sent.failures:
            self._note_failure(queue.id, sent.failures[0])

    def _note_failure(self, queue: QueueId, reason: str) -> None:
        log.warning("pilots could not be sent", queue=str(queue), reason=reason)
        self._failures = self._failures.failed(queue, reason, self._clock())
