"""Tells the server what became of copies, and hears which are wanted no more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from uuid import uuid4

import structlog

from pilotage.classads import AdValue
from pilotage_agents.core.copies.copy_life import HeldCopy, Key
from pilotage_agents.core.copies.copy_report import NotTaken, report_of, told_again
from pilotage_agents.router.copy_leavings import CopyLeavings
from pilotage_agents.router.route_edges import CopiesAnswer, CopyReport
from pilotage_agents.router.route_shared import Shared

log = structlog.get_logger()

_MOST_IN_A_CALL = 1000
_MOST_ENDED_IN_A_CALL = 200
"""Reports of ends bring files."""


class CopyReports:
    """Sends what is owed; only what the server has heard is forgotten here and at the target.

    An end that the server cannot take is told anew with ever less, so that its job goes on.
    """

    def __init__(self, shared: Shared, leavings: CopyLeavings) -> None:
        self._copies = shared.copies
        self._link = shared.link
        self._leavings = leavings
        self._clock = shared.clock
        self._malformed: set[Key] = set()
        self._not_taken: dict[Key, NotTaken] = {}

    async def hear(self) -> None:
        """Ask which copies are wanted no more; raises a PilotageError when the server cannot be asked.

        What the server could not take is owed anew.
        """
        self._copies.owed |= dict.fromkeys(key for key in self._malformed if self._copies.get(key) is not None)
        self._malformed.clear()
        self._not_taken = {key: each for key, each in self._not_taken.items() if self._copies.get(key) is not None}
        if len(self._copies):
            self._heard((), await self._link.report(uuid4().hex, ()))

    async def send(self) -> None:
        """Tell all that is owed; raises a PilotageError when the server cannot be told."""
        while owed := self._next():
            if ended := [copy for copy in owed if copy.outcome is not None]:
                await self._leavings.announce(ended)
            told = [(copy, self._copies.news_of(copy.key)) for copy in owed]
            answer = await self._link.report(uuid4().hex, [self._report(copy, said) for copy, said in told])
            self._heard(told, answer)
        await self._leavings.tidy()

    def _report(self, copy: HeldCopy, said: Mapping[str, AdValue]) -> CopyReport:
        report, not_taken = report_of(copy, said), self._not_taken.get(copy.key)
        return report if not_taken is None else told_again(report, not_taken, self._clock())

    def _next(self) -> list[HeldCopy]:
        """Return the copies that the next call is about."""
        found = [self._copies.get(key) for key in islice(self._copies.owed, _MOST_IN_A_CALL)]
        copies = [copy for copy in found if copy is not None]
        ended = [copy for copy in copies if copy.outcome is not None]
        return ended[:_MOST_ENDED_IN_A_CALL] if len(ended) > _MOST_ENDED_IN_A_CALL else copies

    def _heard(self, told: Sequence[tuple[HeldCopy, Mapping[str, AdValue]]], answer: CopiesAnswer) -> None:
        for copy, said in told:
            known = self._copies.get(copy.key)
            is_malformed = copy.key in answer.malformed
            if not is_malformed:
                self._copies.heard(copy.key, said)
            if known is copy and (is_malformed or not self._copies.news_of(copy.key)):
                self._copies.owed.pop(copy.key, None)  # else there is more to tell of it by now
            if is_malformed:
                self._could_not_take(copy, answer.malformed[copy.key])
                continue
            if copy.key in answer.refused:
                log.warning("copy is not ours any more", copy=copy.name, reason=answer.refused[copy.key])
            if copy.outcome is not None or copy.key in answer.refused:
                self._copies.drop(copy.key)
                self._leavings.leave(known or copy)
        for each in answer.unwanted:
            self._copies.unwanted(Key(each.job_id, each.attempt), each.reason)

    def _could_not_take(self, copy: HeldCopy, fault: str) -> None:
        self._malformed.add(copy.key)
        if copy.outcome is not None:
            before = self._not_taken.get(copy.key)
            self._not_taken[copy.key] = before.again(fault) if before else NotTaken(self._clock(), fault)
        log.error("report is malformed, copy is kept", copy=copy.name, reason=fault)
