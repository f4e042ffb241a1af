"""The site director: sends pilots to the queues that waiting jobs could use, and watches their glideins.

`PilotDirector` is what it shares with the task-queue director.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import structlog

from pilotage.errors import LeadershipLostError, PilotageError
from pilotage.metrics.table import PILOTS_FAILED, PILOTS_SUBMITTED
from pilotage.metrics.values import Sample
from pilotage.resources.queue_patterns import EVERY_QUEUE, matches_any, unused_pattern_lines, unused_patterns
from pilotage.resources.tree import QueueId
from pilotage.text import fold
from pilotage.values.demand import Demand, LimitRoom
from pilotage_agents.batch_systems.settings import BatchSystemSettings
from pilotage_agents.batch_systems.shape import QueueFacts, queue_facts
from pilotage_agents.runtime.link import TreeQueue
from pilotage_agents.site_director.glideins import UnfinishedBundleError
from pilotage_agents.site_director.planning import QueuePlan, QueueState, Ramp, plan_pilots
from pilotage_agents.site_director.ports import DirectorContext
from pilotage_agents.site_director.queues import QueueFailures, ServedQueue, demands_of_served_vos
from pilotage_agents.site_director.sender import PilotSender
from pilotage_agents.site_director.settings import DirectorSettings, SiteDirectorSettings, WhenStopped
from pilotage_agents.site_director.watch import GlideinWatch

_FOR_ALL = {"min_idle_pilots", "pilot_bundle", "python"}
"""The director's settings that overrides may change for single queues."""


def served_queues(settings: SiteDirectorSettings, tree: Iterable[TreeQueue]) -> tuple[ServedQueue, ...]:
    """Return the queues of the tree that the director serves, in its order."""
    by_ce_type = names_by_ce_type(settings.batch_systems)
    served = []
    for queue in tree:
        facts = queue_facts(queue.parameters)
        batch_system = by_ce_type.get(facts.ce_type)
        if batch_system is not None and matches_any(queue.id, settings.queues):
            served.append(_served(settings, queue, batch_system, facts))
    return tuple(served)


def names_by_ce_type(batch_systems: Mapping[str, BatchSystemSettings]) -> dict[str, str]:
    """Return the names of batch systems by the folded CETypes that they serve; the later of two wins."""
    return {fold(ce_type): name for name, each in batch_systems.items() for ce_type in each.ce_types}


def _served(settings: SiteDirectorSettings, queue: TreeQueue, batch_system: str, facts: QueueFacts) -> ServedQueue:
    values: dict[str, Any] = settings.model_dump(include=_FOR_ALL, exclude_none=True)
    pilot = dict(settings.pilot)
    for override in settings.overrides:
        if matches_any(queue.id, override.queues):
            values |= override.model_dump(exclude={"queues", "pilot"}, exclude_none=True)
            pilot |= override.pilot
    bundle = str(values.pop("pilot_bundle", ""))
    return ServedQueue(queue.id, batch_system, facts, queue.enabled, pilot=pilot, pilot_bundle=bundle, **values)


log = structlog.get_logger()

_MAX_PILOTS_PER_CALL = 1000


@dataclass(frozen=True, slots=True)
class DirectorSnapshot:
    """The input of one cycle; queues, pools and states have the same order. Pools None = its pilots ask for them."""

    queues: tuple[ServedQueue, ...]
    pools: tuple[tuple[str, ...] | None, ...]
    demands: tuple[Demand, ...]
    states: tuple[QueueState, ...]
    limits: tuple[LimitRoom, ...] = ()

    @property
    def is_urgent(self) -> bool:
        """Whether a new job could find no idle core at one of the open queues."""
        return any(not state.blocked_reason and state.supply.idle_cpus == 0 for state in self.states)


class PilotDirector(ABC):
    """Sends pilots as the demand requires, and watches their glideins."""

    def __init__(
        self,
        settings: DirectorSettings,
        context: DirectorContext,
        watch: GlideinWatch,
        sender: PilotSender,
    ) -> None:
        self._common = settings
        self._link = context.link
        self._batch_systems = context.batch_systems
        self._watch = watch
        self._sender = sender
        self._clock = context.clock
        self._unused_patterns: tuple[str, ...] = ()
        self._failures = QueueFailures()
        self._submitted: Counter[QueueId] = Counter()
        self._failed: Counter[QueueId] = Counter()

    def samples(self) -> Iterable[Sample]:
        """Return the numbers of pilots that were sent and that could not be sent."""
        for metric, counts in ((PILOTS_SUBMITTED, self._submitted), (PILOTS_FAILED, self._failed)):
            for queue, count in counts.copy().items():
                yield Sample(metric, (queue.site, queue.ce, queue.queue), count)

    @abstractmethod
    async def _snapshot(self) -> DirectorSnapshot:
        """Return the present queues, demand and supply."""

    async def run_once(self) -> timedelta:
        """Refresh the glideins, then send pilots as the demand requires; returns the time to the next cycle."""
        await self._refresh()
        snapshot = await self._snapshot()
        plans = self._plans(snapshot)
        for queue, pools, plan in zip(snapshot.queues, snapshot.pools, plans, strict=True):
            if plan.pilots:
                await self._send(queue, pools, plan)
        urgent = snapshot.is_urgent
        return timedelta(seconds=self._common.urgent_interval_s if urgent else self._common.interval_s)

    async def dry_run(self) -> tuple[str, ...]:
        """Return what a cycle would send and why, one line per queue; changes nothing."""
        plans = self._plans(await self._snapshot())
        lines = (f"{plan.id}: {plan.pilots} pilots ({'; '.join(plan.reasons)})" for plan in plans)
        return (*unused_pattern_lines(self._unused_patterns), *lines)

    async def stop(self) -> None:
        """Cancel the director's pilots if the settings say so, and report their ends."""
        if self._common.when_stopped is WhenStopped.CANCEL:
            await self._watch.cancel_all()
            await self._refresh()

    async def _refresh(self) -> None:
        """Refresh the glideins; pilots that ended in error pause their queues."""
        self._failures = await self._watch.refresh(self._failures)

    def _plans(self, snapshot: DirectorSnapshot) -> tuple[QueuePlan, ...]:
        ramp = Ramp(self._common.ramp_start, self._common.ramp_factor)
        return plan_pilots(snapshot.demands, snapshot.states, ramp, snapshot.limits)

    def _note_unused(self, patterns: Iterable[str], tree: Iterable[TreeQueue]) -> None:
        """Remember and log the patterns that match no queue of the tree."""
        wanted = dict.fromkeys(pattern for pattern in patterns if pattern not in EVERY_QUEUE)
        self._unused_patterns = unused_patterns(wanted, (queue.id for queue in tree))
        if self._unused_patterns:
            log.warning("no queue of the tree is called so", patterns=self._unused_patterns)

    async def _send(self, queue: ServedQueue, pools: Sequence[str] | None, plan: QueuePlan) -> None:
        count = min(plan.pilots, _MAX_PILOTS_PER_CALL)
        batch_system = self._batch_systems[queue.batch_system]
        try:
            sent = await self._sender.send(queue, count, pools, batch_system)
        except LeadershipLostError:
            raise
        except UnfinishedBundleError as error:  # no failure of the queue
            log.warning(
                "no pilots are sent until their bundle is complete", queue=str(queue.id), bundle=str(error.bundle)
            )
            return
        except PilotageError as error:
            self._failed[queue.id] += count
            self._record_failure(queue.id, str(error))
            return
        self._submitted[queue.id] += sent.submitted
        self._failed[queue.id] += len(sent.failures)
        log.info("pilots sent", queue=str(queue.id), pilots=sent.submitted, reasons=plan.reasons)
        if sent.failures:
            self._record_failure(queue.id, sent.failures[0])
        elif queue.queue_set:
            self._failures = self._failures.with_success(queue.id)

    def _record_failure(self, queue: QueueId, reason: str) -> None:
        log.warning("pilots could not be sent", queue=str(queue), reason=reason)
        self._failures = self._failures.with_failure(queue, reason, self._clock())


class SiteDirector(PilotDirector):
    """Sends pilots to its queues."""

    name = "site director"

    def __init__(
        self,
        settings: SiteDirectorSettings,
        context: DirectorContext,
        watch: GlideinWatch,
        sender: PilotSender,
    ) -> None:
        super().__init__(settings, context, watch, sender)
        self._settings = settings
        self._tree_version: int | None = None
        self._queues: tuple[ServedQueue, ...] = ()

    async def _snapshot(self) -> DirectorSnapshot:
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
        demands = demands_of_served_vos(demand.demands, self._queues)
        of_queues = tuple(each or () for each in pools.pools)
        return DirectorSnapshot(self._queues, of_queues, demands, states, demand.limits)

    def _served(self, tree: Sequence[TreeQueue]) -> tuple[ServedQueue, ...]:
        served = served_queues(self._settings, tree)
        log.info("tree read", queues=len(tree), served=len(served))
        pattern_lists = (self._settings.queues, *(override.queues for override in self._settings.overrides))
        self._note_unused((pattern for patterns in pattern_lists for pattern in patterns), tree)
        return served
