"""The drain controller: makes room for multicore jobs on nodes, so that they have as many cores as is wanted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta

import structlog

from pilotage.errors import InvalidInputError, NotFoundError, StateConflictError, TurnLostError
from pilotage_agents.core.draining import (
    ONLY_MULTICORE,
    Decision,
    Farm,
    Goal,
    Plan,
    drained_nodes,
    left_to_others,
    plan_drains,
)
from pilotage_agents.core.serving import is_named, naming_nothing, unused_lines
from pilotage_agents.link import DrainLink
from pilotage_agents.loop import Pause
from pilotage_agents.settings import EVERY_QUEUE, DrainControllerSettings

log = structlog.get_logger()

_MOST_NODES_IN_A_CALL = 500


class DrainController:
    """Tells nodes whether they may take single-core jobs; it never stops a job."""

    name = "drain controller"

    def __init__(self, settings: DrainControllerSettings, link: DrainLink, pause: Pause) -> None:
        self._settings = settings
        self._goal = Goal(settings.setpoint, settings.width)
        self._link = link
        self._pause = pause
        self._naming_nothing: tuple[str, ...] = ()
        self._others: frozenset[str] = frozenset()

    async def run_once(self) -> timedelta:
        """Put drained nodes back once jobs have had time to come, then drain as many as are missing."""
        farm = await self._farm()
        self._note_others(left_to_others(farm))
        drained = drained_nodes(farm, self._goal.width)
        if drained:
            await self._pause.wait(timedelta(seconds=self._settings.negotiation_delay_s))
            farm = await self._farm()
        plan = plan_drains(farm, self._goal, drained)
        if plan.decisions:
            log.info("drains planned", reason=plan.reason, nodes=len(plan.decisions))
            await self._carry_out(plan)
        return timedelta(seconds=self._settings.interval_s)

    async def dry_run(self) -> tuple[str, ...]:
        """Return what a round would tell which node and why, as if the wait for jobs were over; changes nothing."""
        farm = await self._farm()
        plan = plan_drains(farm, self._goal, drained_nodes(farm, self._goal.width))
        left = sorted(left_to_others(farm).items())
        return (
            *unused_lines(self._naming_nothing),
            *(f"{count} nodes drain for another, and are left to it: {other}" for other, count in left),
            plan.reason,
            *map(_line, plan.decisions),
        )

    async def stop(self) -> None:
        """Return at once: nodes stay as they were told, for the next copy to go on."""

    async def _farm(self) -> Farm:
        patterns = self._settings.queues
        if patterns == EVERY_QUEUE:
            return await self._link.farm(())
        tree = [queue.id for queue in await self._link.queues()]
        self._note_unused(naming_nothing(patterns, tree))
        queues = [queue for queue in tree if is_named(queue, patterns)]
        return await self._link.farm(queues) if queues else Farm((), ())

    def _note_unused(self, patterns: tuple[str, ...]) -> None:
        """Warn of patterns in the settings that name nothing, when they are others than before."""
        if patterns and patterns != self._naming_nothing:
            log.warning("no queue of the tree is called so", patterns=patterns)
        self._naming_nothing = patterns

    def _note_others(self, nodes: Mapping[str, int]) -> None:
        """Warn of other controllers that let nodes of these queues drain, when they are others than before."""
        if nodes and self._others != nodes.keys():
            log.warning("other controllers let nodes of these queues drain", nodes=dict(nodes))
        self._others = frozenset(nodes)

    async def _carry_out(self, plan: Plan) -> None:
        for value in (False, True):
            decisions = [each for each in plan.decisions if each.only_multicore is value]
            for start in range(0, len(decisions), _MOST_NODES_IN_A_CALL):
                await self._tell(decisions[start : start + _MOST_NODES_IN_A_CALL], value)

    async def _tell(self, decisions: Sequence[Decision], value: bool) -> None:
        """Tell these nodes; one that has gone meanwhile keeps no other from being told."""
        try:
            await self._link.set_only_multicore([each.node for each in decisions], value)
        except TurnLostError:
            raise
        except (InvalidInputError, NotFoundError, StateConflictError) as error:
            if len(decisions) == 1:
                log.warning("node not told", node=str(decisions[0].node), reason=str(error))
                return
            half = len(decisions) // 2
            await self._tell(decisions[:half], value)
            await self._tell(decisions[half:], value)
            return
        for each in decisions:
            log.info("node told", node=str(each.node), only_multicore=value, reason=each.reason)


def _line(decision: Decision) -> str:
    return f"{decision.node}: {ONLY_MULTICORE} = {decision.only_multicore} ({decision.reason})"
