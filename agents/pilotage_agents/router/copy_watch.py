"""Watches the copies that a router has made: adopts them after a restart, and asks their targets how they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby

import structlog

from pilotage_agents.batch_systems.base import Unanswered
from pilotage_agents.core.copies.copy_life import Deed, HeldCopy, Key, Patience, Weight, deed, gone, held, not_found
from pilotage_agents.router.copy_ends import CopyEnds
from pilotage_agents.router.copy_leavings import CopyLeavings
from pilotage_agents.router.copy_sender import CopySender
from pilotage_agents.router.route_edges import CopyStatus, Found
from pilotage_agents.router.route_shared import Shared

log = structlog.get_logger()


class CopyWatch:
    """Keeps `copies` as they are at their targets; a target that gives no answer changes none of them."""

    def __init__(
        self, shared: Shared, sender: CopySender, ends: CopyEnds, leavings: CopyLeavings, patience: Patience
    ) -> None:
        self._copies = shared.copies
        self._link = shared.link
        self._places = shared.places
        self._errands = shared.errands
        self._sender = sender
        self._ends = ends
        self._leavings = leavings
        self._clock = shared.clock
        self._patience = patience

    async def adopt(self) -> None:
        """Make `copies` those that the server says are this router's; raises a PilotageError."""
        known = {Key(each.job_id, each.attempt): each for each in await self._link.copies()}
        now = self._clock()
        for copy in self._copies:
            if copy.key not in known and not self._sender.is_sending(copy):
                log.warning("the server lists a copy no more", copy=copy.name, route=copy.route)
                self._copies.drop(copy.key)
                self._leavings.leave(copy)
        for key, each in known.items():
            if self._copies.get(key) is None:
                self._copies.put(HeldCopy.adopted(each, now))
                log.info("copy adopted", job_id=each.job_id, attempt=each.attempt, route=each.route)
            elif each.unwanted:
                self._copies.unwanted(key, each.unwanted)

    def look(self) -> None:
        """Begin to ask the targets of their copies, and to do what follows; what is to be told is owed then.

        One that has not answered before is not asked again, and copies are left out that are being sent or brought
        home: nothing is done about a copy twice at a time.
        """
        self._ends.clean_up_again()
        asked = []
        for copy in self._copies:
            if self._ends.is_ending(copy):
                if copy.is_unwanted:
                    self._ends.stop_fetching(copy)
            elif copy.outcome is None and not self._sender.is_sending(copy):
                asked.append(copy)
        for target, its in groupby(sorted(asked, key=_target), key=_target):
            self._errands.begin(("look", target), partial(self._look_at, target, list(its)))

    async def _look_at(self, target: str, copies: Sequence[HeldCopy]) -> None:
        if lost := [copy for copy in copies if not copy.reference]:
            found = await self._places.ask(target, lambda place: place.find_again([copy.name for copy in lost]))
            if found is not None:
                self._found_again(lost, found)
        referred = [copy for copy in self._as_they_are(copies) if copy.reference]
        if not referred:
            return
        references = [copy.reference for copy in referred]
        statuses = await self._places.ask(target, lambda place: place.poll(references))
        if statuses is not None:
            await self._follow(target, [(copy, statuses[copy.reference]) for copy in self._as_they_are(referred)])

    def _as_they_are(self, copies: Sequence[HeldCopy]) -> list[HeldCopy]:
        """Return what is known of the copies by now, without those that are over."""
        known = (self._copies.get(copy.key) for copy in copies)
        return [copy for copy in known if copy is not None and copy.outcome is None]

    def _found_again(self, lost: Sequence[HeldCopy], found: Mapping[str, Found]) -> None:
        unclear: dict[str, str] = {}
        for copy in self._as_they_are(lost):
            match found.get(copy.name):
                case str(reference):
                    self._copies.put(replace(copy, reference=reference), owed=True)
                case Unanswered(reason):
                    unclear[copy.name] = reason
                case None:
                    if (over := not_found(copy, self._patience, self._clock())) is not None:
                        self._ends.end(copy, *over)
        if unclear:
            example, why = next(iter(unclear.items()))
            log.warning("target cannot say whether it has copies", copies=len(unclear), example=example, reason=why)

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
        for copy in found[Deed.END]:
            self._ends.end(copy, *gone(copy))
        self._ends.inform(found[Deed.TELL])
        self._ends.collect(found[Deed.COLLECT])
        if to_stop := [copy.reference for copy in found[Deed.CANCEL]]:
            await self._places.ask(target, lambda place: place.cancel(to_stop))


def _target(copy: HeldCopy) -> str:
    return copy.target
