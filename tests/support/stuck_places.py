"""Places for copies that hang where a test lets them."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from pilotage_agents.router.core.model import CollectedFile, RoutedJobState, RoutedJobStatus
from pilotage_agents.router.ports import FindAnswer, InputFiles, RoutedJobAnswer, RoutedJobRequest
from pilotage_agents.router.tasks import report_progress
from support.loop_time import LoopTime
from support.router_scene import ROUND_WAITS_S, RouterScene, ScenePlace, target_of


@dataclass
class StuckPlace(ScenePlace):
    """A place that hangs in the methods that `hangs` names, after it has done what was asked if `after` is set.

    It goes on when it is `let_go`. Rounds do not wait for it: their patience is over as soon as it hangs. `hung` are
    the methods that did, `cut_off` those that were cancelled while they did. With `slow_s` what a copy has left comes
    in ten pieces, each after so many seconds.
    """

    time: LoopTime = field(default_factory=LoopTime)
    hangs: Collection[str] = ()
    after: bool = False
    slow_s: float = 0.0
    only: str = ""
    asked: list[str] = field(default_factory=list)
    hung: list[str] = field(default_factory=list)
    cut_off: list[str] = field(default_factory=list)
    let_go: asyncio.Event = field(default_factory=asyncio.Event)

    async def submit(self, copies: Sequence[RoutedJobRequest], files: InputFiles) -> tuple[RoutedJobAnswer, ...]:
        await self._may_hang("submit", is_done=False)
        answers = await super().submit(copies, files)
        await self._may_hang("submit", is_done=True)
        return answers

    async def find_again(self, names: Collection[str]) -> Mapping[str, FindAnswer]:
        self.asked += [f"find_again {name}" for name in names]
        await self._may_hang("find_again", is_done=False)
        return await super().find_again(names)

    async def poll(self, references: Collection[str]) -> Mapping[str, RoutedJobStatus]:
        self.asked += [f"poll {reference}" for reference in references]
        await self._may_hang("poll", is_done=False)
        return await super().poll(references)

    async def collect(self, reference: str) -> tuple[CollectedFile, ...]:
        self.asked.append(f"collect {reference}")
        if self.only in ("", reference):
            await self._may_hang("collect", is_done=False)
        for _ in range(10 if self.slow_s else 0):
            self.time.advance(self.slow_s)
            report_progress()
            await asyncio.sleep(0)
        return await super().collect(reference)

    async def cancel(self, references: Collection[str]) -> None:
        await self._may_hang("cancel", is_done=False)
        await super().cancel(references)
        await self._may_hang("cancel", is_done=True)

    async def forget(self, references: Collection[str]) -> None:
        await self._may_hang("forget", is_done=False)
        await super().forget(references)

    async def _may_hang(self, method: str, *, is_done: bool) -> None:
        if method not in self.hangs or is_done is not self.after or self.let_go.is_set():
            return
        self.hung.append(method)
        self.time.advance(ROUND_WAITS_S)
        try:
            await self.let_go.wait()
        except asyncio.CancelledError:
            self.cut_off.append(method)
            raise


def a_stuck_place(scene: RouterScene, route: str, *hangs: str, after: bool = False, slow_s: float = 0.0) -> StuckPlace:
    """Put such a place where a route goes to; returns it."""
    folder = scene.place(route).folder
    place = StuckPlace(folder, lambda _: RoutedJobStatus(RoutedJobState.IDLE), hangs=hangs, after=after, slow_s=slow_s)
    scene.places.places[str(target_of(route))] = place
    return place
