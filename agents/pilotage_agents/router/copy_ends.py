"""Ends of copies: brings home what they have left, runs the hooks of an end, and counts it for the route."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from itertools import islice

import structlog

from pilotage.classads import AdValue
from pilotage.errors import PilotageError, WorldError
from pilotage.report_bounds import sound_attributes
from pilotage_agents.core.copies.copy_life import HeldCopy, Key, Weight, gone
from pilotage_agents.core.copies.job_ends import ended_ad, weight_of
from pilotage_agents.router.route_edges import CopyOutcome, CopyTarget, LeftFile
from pilotage_agents.router.route_shared import Shared

log = structlog.get_logger()


class _Stage(StrEnum):
    """What is done about a copy beside the rounds."""

    UPDATE = "update"
    COLLECT = "collect"
    FINALISE = "finalise"
    CLEAN = "clean"


_ENDING = (_Stage.COLLECT, _Stage.FINALISE, _Stage.CLEAN)

End = tuple[HeldCopy, CopyOutcome, Weight]
"""A copy, how it ended, and what that says of its route."""

_MOST_LOOKED_AT = 500

_MOST_FETCHED_AT_ONCE = 16
"""Of so many copies what they left is fetched from a target at a time."""


@dataclass(frozen=True, slots=True)
class _Home:
    """A copy whose payload has ended by itself, and what it has left; `reason` says what is missing."""

    copy: HeldCopy
    files: tuple[LeftFile, ...]
    reason: str = ""


class CopyEnds:
    """Brings copies to their ends, beside the rounds; those of which something fails are asked again at a later look.

    Each is brought to one end at a time: nobody else is to ask for one that is ending.
    """

    def __init__(self, shared: Shared) -> None:
        self._copies = shared.copies
        self._link = shared.link
        self._places = shared.places
        self._hooks = shared.hooks
        self._clock = shared.clock
        self._errands = shared.errands
        self._gates: defaultdict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(_MOST_FETCHED_AT_ONCE))
        self._home: dict[Key, _Home] = {}
        self._unclean: dict[Key, End] = {}

    def inform(self, copies: Iterable[HeldCopy]) -> None:
        """Let hooks say what they know of running copies; one that has not said it yet is not asked anew."""
        for copy in copies:
            if self._hooks.are_for(copy):
                self._errands.begin((_Stage.UPDATE, copy.key), partial(self._update, copy))

    def collect(self, copies: Iterable[HeldCopy]) -> None:
        """Begin to fetch what copies have left whose payloads have ended; until then they are shown as completing."""
        for copy in copies:
            before = self._copies.get(copy.key)
            self._copies.put(copy, owed=before is None or before.status.state is not copy.status.state)
            self._errands.begin((_Stage.COLLECT, copy.key), partial(self._fetch, copy))

    def is_ending(self, copy: HeldCopy) -> bool:
        """Whether what a copy has left is being fetched, or its hooks have still to run."""
        key = copy.key
        is_out = any(self._errands.is_out((stage, key)) for stage in _ENDING)
        return is_out or key in self._home or key in self._unclean

    def stop_fetching(self, copy: HeldCopy) -> None:
        """Fetch nothing more of a copy; at the next look it is asked after again."""
        self._errands.cancel((_Stage.COLLECT, copy.key))

    async def bring_home(self) -> None:
        """Let the copies end whose files were fetched; raises a PilotageError when the server cannot be asked."""
        while home := list(islice(self._home.values(), _MOST_LOOKED_AT)):
            asked = [each.copy.key.job_id for each in home if self._needs_its_ad(each.copy)]
            ads = {job.job_id: job.ad for job in await self._link.look_at(asked)} if asked else {}
            for each in home:
                self._finish(each, ads.get(each.copy.key.job_id, {}))
                del self._home[each.copy.key]

    def clean_up_again(self) -> None:
        """Let the copies end that were not clean before."""
        for key, end in list(self._unclean.items()):
            if self._copies.get(key) is None:
                del self._unclean[key]
            else:
                self._errands.begin((_Stage.CLEAN, key), partial(self._clean, *end))

    def end(self, copy: HeldCopy, outcome: CopyOutcome, weight: Weight) -> None:
        """Take note of the end of a copy, once what its hook cleans up is clean."""
        if not self._hooks.are_for(copy):
            self._note(copy, outcome, weight)
            return
        self._errands.cancel((_Stage.UPDATE, copy.key))
        self._unclean[copy.key] = end = (copy, outcome, weight)
        self._errands.begin((_Stage.CLEAN, copy.key), partial(self._clean, *end))

    async def _update(self, copy: HeldCopy) -> None:
        await self._hooks.update(copy)
        said = self._hooks.said_of(copy)
        if self._copies.says(copy.key, said) and (untold := said.keys() - sound_attributes(said).keys()):
            example = min(untold)
            log.warning("hook says more than can be shown", copy=copy.name, attributes=len(untold), example=example)

    async def _fetch(self, copy: HeldCopy) -> None:
        async with self._gates[copy.target]:
            home = await self._places.ask(copy.target, lambda place: _left_by(place, copy), about=copy.name)
            if home is None:
                return
            try:
                await self._link.bring(home.files)
            except PilotageError as error:
                log.warning("what a copy left cannot be brought to the server now", copy=copy.name, reason=str(error))
                return
        self._home[copy.key] = home

    def _finish(self, home: _Home, ad: Mapping[str, AdValue]) -> None:
        copy = home.copy
        source = {**ended_ad(ad, copy.status), **self._hooks.said_of(copy)}
        if self._hooks.are_for(copy):
            self._errands.begin((_Stage.FINALISE, copy.key), partial(self._finalise, home, source))
        else:
            self.end(copy, *self._end_of(home, source))

    async def _finalise(self, home: _Home, source: Mapping[str, AdValue]) -> None:
        if why := await self._hooks.finalise(home.copy, source):
            self.end(home.copy, CopyOutcome("EVICTED", home.copy.status, why), Weight.FAILURE)
        else:
            self.end(home.copy, *self._end_of(home, source))

    def _end_of(self, home: _Home, source: Mapping[str, AdValue]) -> tuple[CopyOutcome, Weight]:
        copy = home.copy
        if (known := self._copies.get(copy.key)) is not None and known.is_unwanted:
            return gone(known)
        if home.reason:
            return CopyOutcome("OUTPUT_LOST", copy.status, home.reason), Weight.FAILURE
        return CopyOutcome("EXITED", copy.status, files=home.files), weight_of(self._copies.route(copy.route), source)

    async def _clean(self, copy: HeldCopy, outcome: CopyOutcome, weight: Weight) -> None:
        if await self._hooks.cleaned_up(copy):
            self._note(copy, outcome, weight)
            del self._unclean[copy.key]

    def _note(self, copy: HeldCopy, outcome: CopyOutcome, weight: Weight) -> None:
        """Take note of the end of a copy, unless it is not the router's any more."""
        if self._copies.get(copy.key) is None:
            return
        self._copies.put(replace(copy, outcome=outcome), owed=True)
        self._copies.has_ended(copy.route, weight, self._clock())
        if outcome.outcome != "EXITED":
            log.info("copy ended", copy=copy.name, route=copy.route, outcome=outcome.outcome, reason=outcome.reason)

    def _needs_its_ad(self, copy: HeldCopy) -> bool:
        route = self._copies.route(copy.route)
        return self._hooks.are_for(copy) or (route is not None and route.failure_test is not None)


async def _left_by(place: CopyTarget, copy: HeldCopy) -> _Home:
    """Return what a copy has left; what is lost for good does not keep it from ending. Raises WorldError."""
    try:
        return _Home(copy, await place.collect(copy.reference))
    except WorldError as error:
        if error.transient:
            raise
        log.warning("what a copy left is lost", copy=copy.name, reason=str(error))
        return _Home(copy, (), f"what it left is lost: {error}")
