"""What is left at targets of copies that are over: it is forgotten there, also by a router that starts again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from datetime import datetime, timedelta
from functools import partial

import structlog

from pilotage_agents.batch_systems.base import Unanswered
from pilotage_agents.core.copies.copy_life import HeldCopy
from pilotage_agents.core.copies.held_copies import HeldCopies
from pilotage_agents.router.errands import Errands
from pilotage_agents.router.route_edges import CopyState, CopyTarget
from pilotage_agents.router.route_places import Places
from pilotage_agents.router.router_folder import Left, RouterFolder

log = structlog.get_logger()

_STRAY_AFTER = timedelta(days=1)
_OVER = frozenset({CopyState.COMPLETED, CopyState.GONE})
_NOT_MADE = frozenset({"DECLINED", "REFUSED_BY_JOB"})
"""Outcomes of copies that a target did not make, or was not asked for."""


class CopyLeavings:
    """Keeps such copies by target and name until they are forgotten there; one that may live is stopped."""

    def __init__(self, places: Places, folder: RouterFolder, errands: Errands) -> None:
        self._places = places
        self._folder = folder
        self._errands = errands
        self._left: dict[str, dict[str, Left]] = {}
        self._is_kept = True

    async def announce(self, copies: Iterable[HeldCopy]) -> None:
        """Keep in the folder which copies are over as soon as the server hears of it; raises WorldError."""
        said = {target: dict(left) for target, left in self._left.items()}
        for copy in copies:
            if _was_made(copy):
                said.setdefault(copy.target, {})[copy.name] = Left(copy.reference, may_live=False)
        await asyncio.to_thread(self._folder.keep_leavings, said)
        self._is_kept = True

    def leave(self, copy: HeldCopy) -> None:
        """Let a copy be forgotten that is no longer ours."""
        if _was_made(copy):
            left = Left(copy.reference, may_live=copy.outcome is None)
            self._left.setdefault(copy.target, {})[copy.name] = left
            self._is_kept = self._is_kept and not left.may_live

    def names(self) -> frozenset[str]:
        """Return what the copies are called that are to be forgotten."""
        return frozenset(name for left in self._left.values() for name in left)

    async def recall(self, copies: HeldCopies) -> None:
        """Take up what an earlier router announced, but for the copies that the server has not heard the end of."""
        held = {(copy.target, copy.name) for copy in copies}
        for target, left in (await asyncio.to_thread(self._folder.leavings)).items():
            for name, each in left.items():
                if (target, name) not in held:
                    self._left.setdefault(target, {})[name] = each

    def sweep(self, targets: Iterable[str], copies: HeldCopies, listed: datetime) -> None:
        """Begin to have targets forget what lies there of this router's copies that nobody knows any more.

        `copies` are all that the server listed at `listed`. What has come within the day before stays: another router
        whose turn it was may have made it meanwhile.
        """
        known = {copy.name for copy in copies} | self.names()
        question = partial(_sweep, known, listed - _STRAY_AFTER)
        for target in targets:
            self._errands.begin(("sweep", target), partial(self._swept, target, question))

    async def _swept(self, target: str, question: Callable[[CopyTarget], Awaitable[None]]) -> None:
        await self._places.ask(target, question, about="leavings")

    async def tidy(self, *, stops: bool = False) -> None:
        """Have the targets forget what is over, and with `stops` first stop what is not, beside the rounds.

        Where one does not answer, later. What may live is kept in the folder before, for nobody else knows of it any
        more. Raises WorldError.
        """
        if not self._is_kept:
            await self.announce(())
        for target, left in self._left.items():
            if stops or not all(each.may_live for each in left.values()):
                self._errands.begin(("tidy", target), partial(self._tidy, target, stops=stops))

    async def _tidy(self, target: str, *, stops: bool) -> None:
        left = {name: each for name, each in self._left[target].items() if stops or not each.may_live}
        living = await self._places.ask(target, partial(_forget, left), about="leavings")
        if living is None:
            return
        came = {name: each for name, each in self._left[target].items() if left.get(name) != each}
        self._left[target] = {**living, **came}
        if not self._left[target]:
            del self._left[target]


def _was_made(copy: HeldCopy) -> bool:
    """Return whether its target may keep something of a copy: nothing, where it did not make it."""
    return bool(copy.reference) or copy.outcome is None or copy.outcome.outcome not in _NOT_MADE


async def _sweep(known: Collection[str], before: datetime, place: CopyTarget) -> None:
    """Have a place forget copies that nobody knows; one that has not ended is found again by the next sweep."""
    if strays := await place.strays(known, before):
        left = {name: Left(reference, may_live=bool(reference)) for name, reference in strays.items()}
        living = await _forget(left, place)
        log.info("copies that nobody knows were forgotten", copies=len(left) - len(living), may_live=len(living))


async def _forget(left: Mapping[str, Left], place: CopyTarget) -> Mapping[str, Left]:
    """Have a place forget copies, after those that may live have ended; returns those that have not yet."""
    living = await _living({name: each for name, each in left.items() if each.may_live}, place)
    await place.forget([name for name in left if name not in living])
    return living


async def _living(left: Mapping[str, Left], place: CopyTarget) -> Mapping[str, Left]:
    """Stop copies; returns those that have not ended yet, or of which the place cannot say it."""
    lost = [name for name, each in left.items() if not each.reference]
    found = await place.find_again(lost) if lost else {}
    said = {name: each.reference or found.get(name, "") for name, each in left.items()}
    references = {name: each for name, each in said.items() if isinstance(each, str) and each}
    if references:
        await place.cancel(references.values())
    statuses = await place.poll(references.values()) if references else {}
    living = {name: each for name, each in references.items() if statuses[each].state not in _OVER}
    unclear = {name: left[name] for name, each in said.items() if isinstance(each, Unanswered)}
    return {**unclear, **{name: Left(reference, may_live=True) for name, reference in living.items()}}
