"""A job router as people run it, but for its targets: there a copy is done as soon as it is made.

Run as a program, with the server's address, the file of a token, a route table and a folder.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path

from pilotage.channel import Endpoint, open_async_channel
from pilotage.clock import boot_time_s, now
from pilotage.resource_tree import QueueId
from pilotage.telemetry import LogLevel, set_up_logging
from pilotage_agents.batch_systems.base import Submission, Submitted
from pilotage_agents.core.copies.copy_life import Patience
from pilotage_agents.core.copies.held_copies import HeldCopies
from pilotage_agents.core.routes.route_table import QueueTarget, Target, Targets, target_key
from pilotage_agents.job_router import JobRouter
from pilotage_agents.link import Turn
from pilotage_agents.loop import AgentLoop, RealPause
from pilotage_agents.router.errands import Errands
from pilotage_agents.router.route_edges import CopyRequest, CopyState, CopyStatus, InputFiles, LeftFile
from pilotage_agents.router.route_hooks import HookSettings, RouteHooks
from pilotage_agents.router.route_places import Places
from pilotage_agents.router.route_shared import Shared
from pilotage_agents.router.route_source import RouteSource, TableSettings
from pilotage_agents.router.router_folder import RouterFolder
from pilotage_agents.router.router_link import RouterServerLink
from pilotage_agents.server_link import ServerLink
from pilotage_agents.turns import Copy, InTurn

INTERVAL = timedelta(seconds=0.2)
ROUTES = tuple(f"Site{number}" for number in range(1, 13))
"""A dozen sites, as the paper's production had them."""


def queue_of(route: str) -> QueueId:
    """Return the queue of the tree that a route goes to."""
    return QueueId(route, "ce", "grid")


class AtOnce:
    """A place where each copy has run already."""

    def __init__(self) -> None:
        self._status = CopyStatus(CopyState.COMPLETED, exit_code=0, started=now(), ended=now())

    async def submit(self, copies: Sequence[CopyRequest], files: InputFiles) -> tuple[Submission, ...]:
        """Take copies."""
        del files
        return tuple(Submitted(copy.name) for copy in copies)

    async def find_again(self, names: Collection[str]) -> Mapping[str, str]:
        """Find all."""
        return {name: name for name in names}

    async def poll(self, references: Collection[str]) -> Mapping[str, CopyStatus]:
        """Say that all are done."""
        return dict.fromkeys(references, self._status)

    async def collect(self, reference: str) -> tuple[LeftFile, ...]:
        """Return nothing: that is what copies have left."""
        del reference
        return ()

    async def cancel(self, references: Collection[str]) -> None:
        """Return at once."""

    async def forget(self, names: Collection[str]) -> None:
        """Return at once."""

    async def strays(self, known: Collection[str], before: datetime) -> Mapping[str, str]:
        """Return nothing: nothing is kept here."""
        del known, before
        return {}


class OnePlace:
    """The place that all targets lead to."""

    def __init__(self) -> None:
        self._place = AtOnce()

    async def open(self, target: Target) -> AtOnce:
        """Return it."""
        del target
        return self._place


def targets() -> Targets:
    """Return where the routes go to."""
    return Targets({target_key(route): QueueTarget(queue_of(route)) for route in ROUTES}, {})


async def run(address: str, token: str, table: Path, folder: Path) -> None:
    """Run the router until it is told to stop."""
    async with open_async_channel(Endpoint((address,), token)) as channel:
        turn = Turn("job router of bench", "this one")
        kept = RouterFolder(folder, folder)
        kept.open()
        places = Places(OnePlace(), now, 60.0)
        hooks = RouteHooks(HookSettings({}, "", 1.0), folder / "hooks")
        shared = Shared("bench", HeldCopies(), RouterServerLink(channel, turn), places, hooks, now, Errands(1.0))
        source = RouteSource(TableSettings(table, (), None, targets), now)
        patience = Patience(timedelta(minutes=10), timedelta(minutes=1))
        router = JobRouter(shared, source, kept, INTERVAL, patience)
        loop = AgentLoop(InTurn(router, Copy(turn, 30, "here"), ServerLink(channel, turn), boot_time_s, RealPause()))
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, loop.stop)
        await loop.run()


if __name__ == "__main__":
    set_up_logging(json=True, level=LogLevel.WARNING)
    asyncio.run(run(sys.argv[1], Path(sys.argv[2]).read_text(), Path(sys.argv[3]), Path(sys.argv[4])))
