"""The drain controller: drains nodes so that multicore jobs get their share of the cores."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Protocol

import structlog

from pilotage.errors import InvalidInputError, LeadershipLostError, NotFoundError, StateConflictError
from pilotage.resources.queue_patterns import EVERY_QUEUE, matches_any, unused_pattern_lines, unused_patterns
from pilotage.resources.tree import QueueId
from pilotage_agents.drain_controller.planning import (
    ONLY_MULTICORE,
    Decision,
    Farm,
    Goal,
    NodeName,
    drained_nodes,
    draining_for_others,
    plan_drains,
)
from pilotage_agents.drain_controller.settings import DrainControllerSettings
from pilotage_agents.runtime.link import TreeQueue
from pilotage_agents.runtime.loop import Pause


class DrainLink(Protocol):
    """The calls of the drain controller; every method raises a PilotageError when its call fails."""

    async def queues(self) -> tuple[TreeQueue, ...]:
        """Return all queues of the tree, in its order."""

    async def farm(self, queues: Sequence[QueueId]) -> Farm:
        """Return the nodes of these queues (empty = of all) and the jobs that wait for them."""

    async def set_only_multicore(self, nodes: Sequence[NodeName], value: bool) -> None:
        """Set OnlyMulticore on all these nodes, or on none if the call fails."""


log = structlog.get_logger()

_MAX_NODES_PER_CALL = 500


class DrainController:
    """Sets OnlyMulticore on nodes; it never stops a job."""

    name = "drain controller"

    def __init__(self, settings: DrainControllerSettings, link: DrainLink, pause: Pause) -> None:
        self._settings = settings
        self._goal = Goal(settings.setpoint, settings.width)
        self._link = link
        self._pause = pause
        self._unused_patterns: tuple[str, ...] = ()
        self._others: frozenset[str] = frozenset()

    async def run_once(self) -> timedelta:
        """Reopen drained nodes once jobs have had time to arrive, then drain as many as are missing."""
        farm = await self._farm()
        nodes = draining_for_others(farm)
        if nodes and self._others != nodes.keys():
            log.warning("other controllers let nodes of these queues drain", nodes=dict(nodes))
        self._others = frozenset(nodes)
        drained = drained_nodes(farm, self._goal.width)
        if drained:
            await self._pause.wait(timedelta(seconds=self._settings.negotiation_delay_s))
            farm = await self._farm()
        plan = plan_drains(farm, self._goal, drained)
        if plan.decisions:
            log.info("drains planned", reason=plan.reason, nodes=len(plan.decisions))
            for value in (False, True):
                decisions = [each for each in plan.decisions if each.only_multicore is value]
                for start in range(0, len(decisions), _MAX_NODES_PER_CALL):
                    await self._set_only_multicore(decisions[start : start + _MAX_NODES_PER_CALL], value)
        return timedelta(seconds=self._settings.interval_s)

    async def dry_run(self) -> tuple[str, ...]:
        """Return what a cycle would set on which node and why, as if the wait for jobs were over; changes nothing."""
        farm = await self._farm()
        plan = plan_drains(farm, self._goal, drained_nodes(farm, self._goal.width))
        left = sorted(draining_for_others(farm).items())
        return (
            *unused_pattern_lines(self._unused_patterns),
            *(f"{count} nodes drain for another controller and are left to it: {other}" for other, count in left),
            plan.reason,
            *map(_decision_line, plan.decisions),
        )

    async def stop(self) -> None:
        """Return at once: nodes keep their attributes, and the next leader continues."""

    async def _farm(self) -> Farm:
        patterns = self._settings.queues
        if patterns == EVERY_QUEUE:
            return await self._link.farm(())
        tree = [queue.id for queue in await self._link.queues()]
        unused = unused_patterns(patterns, tree)
        if unused and unused != self._unused_patterns:
            log.warning("no queue of the tree is called so", patterns=unused)
        self._unused_patterns = unused
        queues = [queue for queue in tree if matches_any(queue, patterns)]
        return await self._link.farm(queues) if queues else Farm((), ())

    async def _set_only_multicore(self, decisions: Sequence[Decision], value: bool) -> None:
        """Set the attribute on these nodes. On an error halve the batch, so that one missing node blocks no other."""
        try:
            await self._link.set_only_multicore([each.node for each in decisions], value)
        except LeadershipLostError:
            raise
        except (InvalidInputError, NotFoundError, StateConflictError) as error:
            if len(decisions) == 1:
                log.warning("node attribute not set", node=str(decisions[0].node), reason=str(error))
                return
            half = len(decisions) // 2
            await self._set_only_multicore(decisions[:half], value)
            await self._set_only_multicore(decisions[half:], value)
            return
        for each in decisions:
            log.info("node attribute set", node=str(each.node), only_multicore=value, reason=each.reason)


def _decision_line(decision: Decision) -> str:
    return f"{decision.node}: {ONLY_MULTICORE} = {decision.only_multicore} ({decision.reason})"
