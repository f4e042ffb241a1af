"""Watches the copies that a router has made: adopts them after a restart, and asks their targets how they are."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby

import structlog

from pilotage_agents.batch_systems.base import Unanswered
from pilotage_agents.core.copies.copy_life import Deed, HeldCopy, Key, Patience, Weight, deed, gone, held, not_found
from pilotage_agents.router.copy_ends import CopyEnds, End
from pilotage_agents.router.copy_leavings import CopyLeavings
from pilotage_agents.router.route_edges import CopyStatus, Found
from pilotage_agents.router.route_shared import Shared

log = structlog.get_logger()


class CopyWatch:
    """Keeps `copies` as they are at their targets; a target that gives no answer changes none of them."""

    def __init__(self, shared: Shared, ends: CopyEnds, leavings: CopyLeavings, patience: Patience) -> None:
        self._copies = shared.copies
        self._link = shared.link
        self._places = shared.places
        self._ends = ends
        self._leavings = leavings
        self._clock = shared.clock
        self._patience = patience

    async def adopt(self) -> None:
        """Make `copies` those that the server says are this router's; raises a PilotageError."""
        known = {Key(each.job_id, each.attempt): each for each in await self._link.copies()}
        now = self._clock()
        for copy in self._copies:
            if copy.key not in known:
                log.warning("the server lists a copy no more", copy=copy.name, route=copy.route)
                self._copies.drop(copy.key)
                self._leavings.leave(copy)
        for key, each in known.items():
            if self._copies.get(key) is None:
                self._copies.put(HeldCopy.adopted(each, now))
                log.info("copy adopted", job_id=each.job_id, attempt=each.attempt, route=each.route)
            elif each.unwanted:
                self._copies.unwanted(key, each.unwanted)

    async def look(self) -> None:
        """Ask all targets at once of their copies, and do what follows; what is to be told is owed then."""
        copies = (copy for copy in self._copies if copy.outcome is None and not self._ends.is_ending(copy))
        living = sorted(copies, key=_target)
        async with asyncio.TaskGroup() as group:
            for target, its in groupby(living, key=_target):
                group.create_task(self._look_at(target, list(its)))
        await self._ends.bring_home()

    async def _look_at(self, target: str, copies: Sequence[HeldCopy]) -> None:
        if lost := [copy for copy in copies if not copy.reference]:
            found = await self._places.ask(target, lambda place: place.find_again([copy.name for copy in lost]))
            if found is not None:
                await self._found_again(lost, found)
        referred = [copy for each in copies if (copy := self._copies.get(each.key)) and copy.reference]
        if not referred:
            return
        references = [copy.reference for copy in referred]
        statuses = await self._places.ask(target, lambda place: place.poll(references))
        if statuses is not None:
            await self._follow(target, [(copy, statuses[copy.reference]) for copy in referred])

    async def _found_again(self, lost: Sequence[HeldCopy], found: Mapping[str, Found]) -> None:
        ends: list[End] = []
        unclear: dict[str, str] = {}
        for copy in lost:
            match found.get(copy.name):
                case str(reference):
                    self._copies.put(replace(copy, reference=reference), owed=True)
                case Unanswered(reason):
                    unclear[copy.name] = reason
                case None:
                    if (over := not_found(copy, self._patience, self._clock())) is not None:
                        ends.append((copy, *over))
        if unclear:
            example, why = next(iter(unclear.items()))
            log.warning("target cannot say whether it has copies", copies=len(unclear), example=example, reason=why)
        await self._ends.over_all(ends)

    async def _follow(self, target: str, said: Sequence[tuple[HeldCopy, CopyStatus]]) -> None:
        """Note what the target says, stop what is to be stopped, and end what is over."""
        found: dict[Deed, list[HeldCopy]] = {each: [] for each in Deed}
        for copy, status in said:
            what = deed(copy, status)
            seen = held(copy, status) if what is Deed.HOLD else copy.seen(status)
            found[what].append(seen)
            if what not in (Deed.COLLECT, Deed.END):
                changed = (seen.status.state, seen.status.node) != (copy.status.state, copy.status.node)
                self._copies.put(seen, owed=changed and what in (Deed.TELL, Deed.HOLD))
        for copy in found[Deed.HOLD]:
            self._copies.has_ended(copy.route, Weight.FAILURE, self._clock())
        if to_stop := [copy.reference for copy in found[Deed.CANCEL]]:
            await self._places.ask(target, lambda place: place.cancel(to_stop))
        await self._ends.over_all([(copy, *gone(copy)) for copy in found[Deed.END]])
        await self._ends.inform(found[Deed.TELL])
        await self._ends.collect(target, found[Deed.COLLECT])


def _target(copy: HeldCopy) -> str:
    return copy.target
