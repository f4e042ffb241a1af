"""A job router whose target completes every routed job at once.

Run as a program with the server's address, a token file, a route table and a folder.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path

from pilotage.clock import boot_time_s, now
from pilotage.resources.tree import QueueId
from pilotage.rpc.channel import Endpoint, open_async_channel
from pilotage.telemetry import LogLevel, set_up_logging
from pilotage.values.leadership import Leadership
from pilotage_agents.batch_systems.base import Submission, Submitted
from pilotage_agents.router.context import RouterContext
from pilotage_agents.router.core.model import CollectedFile, RoutedJobState, RoutedJobStatus
from pilotage_agents.router.core.routed_job import SearchTimeouts
from pilotage_agents.router.core.routed_jobs import TrackedJobs
from pilotage_agents.router.core.table import QueueTarget, Target, Targets, target_key
from pilotage_agents.router.folder import RouterFolder
from pilotage_agents.router.hooks import HookSettings, RouteHooks
from pilotage_agents.router.ports import InputFiles, RoutedJobRequest
from pilotage_agents.router.router import JobRouter
from pilotage_agents.router.server_link import RouterServerLink
from pilotage_agents.router.table_file import RouteSource, TableSettings
from pilotage_agents.router.target_pool import TargetPool
from pilotage_agents.router.tasks import BackgroundTasks
from pilotage_agents.runtime.leadership import LeaderAgent, Replica
from pilotage_agents.runtime.loop import AgentLoop, RealPause
from pilotage_agents.server_link import AgentServerLink

INTERVAL = timedelta(seconds=0.2)
ROUTES = tuple(f"Site{number}" for number in range(1, 13))
"""A dozen sites, as in the production of the CHEP 2009 paper."""


def queue_of(route: str) -> QueueId:
    """Return the target queue of a route."""
    return QueueId(route, "ce", "grid")


class CompletedTarget:
    """A target where every routed job has completed."""

    def __init__(self) -> None:
        self._status = RoutedJobStatus(RoutedJobState.COMPLETED, exit_code=0, started=now(), ended=now())

    async def submit(self, copies: Sequence[RoutedJobRequest], files: InputFiles) -> tuple[Submission, ...]:
        """Accept routed jobs."""
        del files
        return tuple(Submitted(copy.name) for copy in copies)

    async def find_again(self, names: Collection[str]) -> Mapping[str, str]:
        """Return all names as references."""
        return {name: name for name in names}

    async def poll(self, references: Collection[str]) -> Mapping[str, RoutedJobStatus]:
        """Return the status COMPLETED for all."""
        return dict.fromkeys(references, self._status)

    async def collect(self, reference: str) -> tuple[CollectedFile, ...]:
        """Return no files."""
        del reference
        return ()

    async def cancel(self, references: Collection[str]) -> None:
        """Do nothing."""

    async def forget(self, names: Collection[str]) -> None:
        """Do nothing."""

    async def leftovers(self, known: Collection[str], before: datetime) -> Mapping[str, str]:
        """Return no leftovers."""
        del known, before
        return {}


class SingleTargetOpener:
    """Opens the same target for all routes."""

    def __init__(self) -> None:
        self._target = CompletedTarget()

    async def open(self, target: Target) -> CompletedTarget:
        """Return the target."""
        del target
        return self._target


def targets() -> Targets:
    """Return the targets of the routes."""
    return Targets({target_key(route): QueueTarget(queue_of(route)) for route in ROUTES}, {})


async def run(address: str, token: str, table: Path, folder: Path) -> None:
    """Run the router until SIGTERM."""
    async with open_async_channel(Endpoint((address,), token)) as channel:
        leadership = Leadership("job router of bench", "this one")
        kept = RouterFolder(folder, folder)
        kept.open()
        pool = TargetPool(SingleTargetOpener(), now, 60.0)
        hooks = RouteHooks(HookSettings({}, "", 1.0), folder / "hooks")
        shared = RouterContext(
            "bench", TrackedJobs(), RouterServerLink(channel, leadership), pool, hooks, now, BackgroundTasks(1.0)
        )
        source = RouteSource(TableSettings(table, (), None, targets), now)
        timeouts = SearchTimeouts(timedelta(minutes=10), timedelta(minutes=1))
        router = JobRouter(shared, source, kept, INTERVAL, timeouts)
        loop = AgentLoop(
            LeaderAgent(
                router, Replica(leadership, 30, "here"), AgentServerLink(channel, leadership), boot_time_s, RealPause()
            )
        )
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, loop.stop)
        await loop.run()


if __name__ == "__main__":
    set_up_logging(json=True, level=LogLevel.WARNING)
    asyncio.run(run(sys.argv[1], Path(sys.argv[2]).read_text(), Path(sys.argv[3]), Path(sys.argv[4])))
