"""What is left at targets of copies that are over: it is forgotten there, also by a router that starts again."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from functools import partial

from pilotage_agents.core.copies.copy_life import HeldCopy
from pilotage_agents.core.copies.held_copies import HeldCopies
from pilotage_agents.router.route_edges import CopyState, CopyTarget
from pilotage_agents.router.route_places import Places
from pilotage_agents.router.router_folder import RouterFolder

_OVER = frozenset({CopyState.COMPLETED, CopyState.GONE})


class CopyLeavings:
    """Keeps the references of such copies by target until these have forgotten them; one that may live is stopped."""

    def __init__(self, places: Places, folder: RouterFolder) -> None:
        self._places = places
        self._folder = folder
        self._left: dict[str, dict[str, bool]] = {}

    async def announce(self, copies: Iterable[HeldCopy]) -> None:
        """Keep in the folder which copies are over as soon as the server hears of it; raises WorldError."""
        said = {target: dict(left) for target, left in self._left.items()}
        for copy in copies:
            if copy.reference:
                said.setdefault(copy.target, {})[copy.reference] = False
        await asyncio.to_thread(self._folder.keep_leavings, said)

    def leave(self, copy: HeldCopy) -> None:
        """Let a copy be forgotten that is no longer ours."""
        if copy.reference:
            self._left.setdefault(copy.target, {})[copy.reference] = copy.outcome is None

    async def recall(self, copies: HeldCopies) -> None:
        """Take up what an earlier router announced, but for the copies that the server has not heard the end of."""
        held = {(copy.target, copy.reference) for copy in copies}
        for target, references in (await asyncio.to_thread(self._folder.leavings)).items():
            for reference, may_live in references.items():
                if (target, reference) not in held:
                    self._left.setdefault(target, {})[reference] = may_live

    async def tidy(self) -> None:
        """Have the targets forget what is over, and first stop what is not; where one does not answer, later.

        What may live is kept in the folder before, for nobody else knows of it any more. Raises WorldError.
        """
        if any(any(left.values()) for left in self._left.values()):
            await self.announce(())
        async with asyncio.TaskGroup() as group:
            for target in self._left:
                group.create_task(self._tidy(target))

    async def _tidy(self, target: str) -> None:
        left = dict(self._left[target])
        living = await self._places.ask(target, partial(_forget, left))
        if living is None:
            return
        self._left[target] = {each: may_live for each, may_live in self._left[target].items() if each not in left}
        self._left[target] |= dict.fromkeys(living, True)
        if not self._left[target]:
            del self._left[target]


async def _forget(left: Mapping[str, bool], place: CopyTarget) -> frozenset[str]:
    """Have a place forget copies, after those that are True have ended; returns those that have not yet."""
    living = frozenset(reference for reference, may_live in left.items() if may_live)
    if living:
        await place.cancel(living)
        statuses = await place.poll(living)
        living = frozenset(each for each in living if statuses[each].state not in _OVER)
    await place.forget([reference for reference in left if reference not in living])
    return living
