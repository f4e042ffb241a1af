"""Ends of copies: brings home what they have left, runs the hooks of an end, and counts it for the route."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import structlog

from pilotage.classads import AdValue
from pilotage.errors import WorldError
from pilotage_agents.core.copies.copy_life import HeldCopy, Key, Weight
from pilotage_agents.core.copies.job_ends import ended_ad, weight_of
from pilotage_agents.router.route_edges import CopyOutcome, CopyTarget, LeftFile
from pilotage_agents.router.route_shared import Shared
from pilotage_agents.side_by_side import side_by_side

log = structlog.get_logger()

End = tuple[HeldCopy, CopyOutcome, Weight]
"""A copy, how it ended, and what that says of its route."""

_MOST_LOOKED_AT = 500


@dataclass(frozen=True, slots=True)
class _Home:
    """A copy whose payload has ended by itself, and what it has left; `reason` says what is missing."""

    copy: HeldCopy
    files: tuple[LeftFile, ...]
    reason: str = ""


class CopyEnds:
    """Brings copies to their ends; those of which something fails stay, and are asked again at the next look."""

    def __init__(self, shared: Shared) -> None:
        self._copies = shared.copies
        self._link = shared.link
        self._places = shared.places
        self._hooks = shared.hooks
        self._clock = shared.clock
        self._home: list[_Home] = []
        self._unclean: dict[Key, End] = {}

    async def inform(self, copies: Sequence[HeldCopy]) -> None:
        """Let hooks say what they know of running copies."""
        await side_by_side([self._hooks.update(copy) for copy in copies if self._hooks.are_for(copy)])

    async def collect(self, target: str, copies: Sequence[HeldCopy]) -> None:
        """Fetch what copies have left whose payloads have ended."""

        async def fetch(copy: HeldCopy) -> None:
            home = await self._places.ask(target, lambda place: _left_by(place, copy))
            if home is not None:
                self._home.append(home)
            elif (known := self._copies.get(copy.key)) is not None:
                self._copies.put(copy, owed=known.status.state is not copy.status.state)  # shown as completing

        await side_by_side([fetch(copy) for copy in copies])

    async def bring_home(self) -> None:
        """Let the copies end whose files were fetched, and those that were not clean before.

        Raises a PilotageError when the server cannot be asked.
        """
        unclean, self._unclean = self._unclean, {}
        await self.over_all([end for key, end in unclean.items() if self._copies.get(key) is not None])
        home, self._home = self._home, []
        for start in range(0, len(home), _MOST_LOOKED_AT):
            await self._end(home[start : start + _MOST_LOOKED_AT])

    def is_ending(self, copy: HeldCopy) -> bool:
        """Whether the copy is over but for what its hook has to clean up."""
        return copy.key in self._unclean

    async def over_all(self, ends: Sequence[End]) -> None:
        """Take note of the ends of copies."""
        await side_by_side([self.over(*end) for end in ends])

    async def over(self, copy: HeldCopy, outcome: CopyOutcome, weight: Weight) -> None:
        """Take note of the end of a copy, once what its hook cleans up is clean."""
        if not await self._hooks.cleaned_up(copy):
            self._unclean[copy.key] = (copy, outcome, weight)
            return
        self._copies.put(replace(copy, outcome=outcome), owed=True)
        self._copies.has_ended(copy.route, weight, self._clock())
        if outcome.outcome != "EXITED":
            log.info("copy ended", copy=copy.name, route=copy.route, outcome=outcome.outcome, reason=outcome.reason)

    async def _end(self, home: Sequence[_Home]) -> None:
        asked = [each.copy.key.job_id for each in home if self._needs_its_ad(each.copy)]
        ads = {job.job_id: job.ad for job in await self._link.look_at(asked)} if asked else {}
        await side_by_side([self._end_one(each, ads.get(each.copy.key.job_id, {})) for each in home])

    async def _end_one(self, home: _Home, ad: Mapping[str, AdValue]) -> None:
        copy = home.copy
        source = {**ended_ad(ad, copy.status), **self._hooks.said_of(copy)}
        if why := await self._hooks.finalise(copy, source):
            await self.over(copy, CopyOutcome("EVICTED", copy.status, why), Weight.FAILURE)
            return
        if home.reason:
            await self.over(copy, CopyOutcome("OUTPUT_LOST", copy.status, home.reason), Weight.FAILURE)
            return
        outcome = CopyOutcome("EXITED", copy.status, files=home.files)
        await self.over(copy, outcome, weight_of(self._copies.route(copy.route), source))

    def _needs_its_ad(self, copy: HeldCopy) -> bool:
        route = self._copies.route(copy.route)
        return self._hooks.are_for(copy) or (route is not None and route.failure_test is not None)


async def _left_by(place: CopyTarget, copy: HeldCopy) -> _Home | None:
    """Return what a copy has left, None = it cannot be had now; what is lost for good does not keep it from ending."""
    try:
        return _Home(copy, await place.collect(copy.reference))
    except WorldError as error:
        log.warning("what a copy left cannot be had", copy=copy.name, reason=str(error), for_good=not error.transient)
        return None if error.transient else _Home(copy, (), f"what it left is lost: {error}")
