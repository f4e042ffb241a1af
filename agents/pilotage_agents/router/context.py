"""The context that the parts of a job router share."""

from __future__ import annotations

from dataclasses import dataclass

from pilotage.clock import Clock
from pilotage_agents.router.core.routed_jobs import TrackedJobs
from pilotage_agents.router.hooks import RouteHooks
from pilotage_agents.router.ports import RouterLink
from pilotage_agents.router.target_pool import TargetPool
from pilotage_agents.router.tasks import BackgroundTasks


@dataclass(frozen=True, slots=True)
class RouterContext:
    """The router's name, its routed jobs, its ports, and its background tasks."""

    name: str
    jobs: TrackedJobs
    link: RouterLink
    targets: TargetPool
    hooks: RouteHooks
    clock: Clock
    background_tasks: BackgroundTasks
