"""What a job router tells of its copies while more becomes known of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from pilotage_agents.core.copies.copy_life import HeldCopy, Key
from pilotage_agents.core.copies.held_copies import HeldCopies
from pilotage_agents.router.copy_leavings import CopyLeavings
from pilotage_agents.router.copy_reports import CopyReports
from pilotage_agents.router.errands import Errands
from pilotage_agents.router.route_edges import CopiesAnswer, CopyOutcome, CopyReport, CopyState, CopyStatus
from pilotage_agents.router.route_hooks import RouteHooks
from pilotage_agents.router.route_places import Places
from pilotage_agents.router.route_shared import Shared
from support.fake_router_link import FakeRouterLink
from support.router_scene import NO_HOOKS, RouterScene
from support.virtual_clock import START


class Amid(FakeRouterLink):
    """A server that takes its time to hear a report; meanwhile something happens."""

    meanwhile: Callable[[], object]
    heard: list[CopyReport]

    async def report(self, request: str, reports: Sequence[CopyReport]) -> CopiesAnswer:
        self.heard += reports
        if len(self.heard) == 1:
            self.meanwhile()
        return CopiesAnswer({}, ())


RUNS = HeldCopy(Key(1, 1), "A", "queue SITE/ce/A", START, "ref:1", status=CopyStatus(CopyState.RUNNING))


async def told(tmp_path: Path, copies: HeldCopies, meanwhile: Callable[[], object]) -> list[CopyReport]:
    """Return the reports of a running copy of which more becomes known while the first one is heard."""
    scene, link, errands = RouterScene(tmp_path), Amid(), Errands(10.0)
    link.heard, link.meanwhile = [], meanwhile
    places = Places(scene.places, scene.clock, 10.0)
    hooks = RouteHooks(NO_HOOKS, tmp_path / "hooks")
    shared = Shared("jobrouter", copies, link, places, hooks, scene.clock, errands)
    copies.put(RUNS, owed=True)
    await CopyReports(shared, CopyLeavings(places, scene.folder(), errands)).send()
    await errands.end()
    return link.heard


async def test_an_end_that_is_noted_while_an_earlier_word_of_the_copy_is_told_is_told_as_well(tmp_path: Path) -> None:
    copies = HeldCopies()
    ended = replace(RUNS, outcome=CopyOutcome("KILLED", RUNS.status))
    reports = await told(tmp_path, copies, lambda: copies.put(ended, owed=True))
    assert [report.state for report in reports] == ["RUNNING", "DONE"]
    assert len(copies) == 0


async def test_what_a_hook_says_while_an_earlier_word_of_the_copy_is_told_is_told_as_well(tmp_path: Path) -> None:
    copies = HeldCopies()
    reports = await told(tmp_path, copies, lambda: copies.says(RUNS.key, {"Progress": 70}))
    assert [dict(report.attributes) for report in reports] == [{}, {"Progress": 70}]
    assert copies.owed == {}
