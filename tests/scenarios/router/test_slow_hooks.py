"""A job router and hooks that hang: the copies of other routes, with the same hooks, come home meanwhile."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from pilotage_agents.router.core.model import RoutedJobState
from pilotage_agents.router.hooks import HookKind, HookSettings
from support.router_scene import RouterScene, a_route

JOBS = 24
"""More on each route than hooks of a kind run at a time for it."""

PATIENCE_S = 60.0


def hangs_for_route_a(kind: HookKind, folder: Path) -> HookSettings:
    """Return hooks of which one hangs for copies along route A, and else says what it should."""
    given = f"{folder}/given.$$"
    script = f"cat > {given}; grep -q '\"A\"' {given} && exec sleep 1000; sed '1,/^------$/d' {given}"
    return HookSettings({"staging": {kind: ("/bin/sh", "-c", script)}}, "STAGING", 1000.0)


@pytest.mark.parametrize("kind", HookKind)
async def test_a_hook_that_hangs_keeps_no_other_route_from_its_work(tmp_path: Path, kind: HookKind) -> None:
    routes = (a_route("A"), a_route("B"))
    scene = RouterScene(tmp_path, *routes, hooks=hangs_for_route_a(kind, tmp_path), round_waits_s=0.2)
    scene.link.submit(JOBS, WantJobRouter=True)
    try:
        async with asyncio.timeout(PATIENCE_S):
            while done_along(scene, "B") < JOBS // 2:
                await scene.rounds()
                for place in (scene.place("A"), scene.place("B")):
                    place.move(RoutedJobState.COMPLETED, of=RoutedJobState.RUNNING, exit_code=0)
                    place.move(RoutedJobState.RUNNING)
    finally:
        await scene.router.stop()
    assert done_along(scene, "A") == (JOBS // 2 if kind is HookKind.UPDATE else 0), "no end waits for an update"


def done_along(scene: RouterScene, route: str) -> int:
    """Return how many jobs have come home along a route."""
    copies = [job.copy for job in scene.link.jobs.values() if job.state == "DONE"]
    return len([copy for copy in copies if copy is not None and copy.route == route])
