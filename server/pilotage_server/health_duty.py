"""Looks again and again which places are black holes, and which throttled ones have proved well."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import structlog

from pilotage.clock import BootClock
from pilotage_server.core.evidence import FAILURES
from pilotage_server.core.job_events import JobEvent
from pilotage_server.core.throttles import Change
from pilotage_server.operations.health import HealthWatch, store_changes
from pilotage_server.rpc.transactions import Transactions

log = structlog.get_logger()

TURNS_A_LOOK = 40
"""Every so many turns it looks, whatever has happened."""

TURNS_BETWEEN_LOOKS = 5
"""It looks at once when jobs fail, but leaves out so many turns, and twice as many after each look for nothing."""

REST_AFTER_A_LOOK = 20
"""It rests for so many times as long as a look has taken: where very much runs, looks take no more than their part."""


class HealthDuty:
    """Throttles places whose jobs fail fast, and opens those that prove well, unless another server was quicker.

    A black hole eats hundreds of jobs a second: as many failures as the least place may have are a reason to look.
    Where jobs fail all the time for their own sake, that soon costs no more than the looks that are made anyway.
    """

    def __init__(self, transactions: Transactions, boot_clock: BootClock) -> None:
        self._transactions = transactions
        self._boot_clock = boot_clock
        self._rested_s = 0.0
        self._watch = HealthWatch()
        self._many = transactions.world.rules.health.least_failures
        self._failures = 0
        self._turns = TURNS_A_LOOK
        self._rest = TURNS_BETWEEN_LOOKS
        transactions.world.event_listeners.append(self._hear)

    def _hear(self, events: Sequence[JobEvent]) -> None:
        """Count failures, in any thread; that two threads count at once is no harm."""
        self._failures += sum(event.cause in FAILURES for event in events)

    async def run_once(self) -> None:
        """Look at what has ended since the last look, if it is time to."""
        self._turns += 1
        are_many = self._failures >= self._many
        is_time = self._turns >= TURNS_A_LOOK or (are_many and self._turns > self._rest)
        if not is_time or self._boot_clock() < self._rested_s:
            return
        self._failures = self._turns = 0
        began_s = self._boot_clock()
        look = await self._transactions.read(self._watch.look)
        ended_s = self._boot_clock()
        self._rested_s = ended_s + REST_AFTER_A_LOOK * (ended_s - began_s)
        self._rest = 2 * self._rest if are_many and not look.changes else TURNS_BETWEEN_LOOKS
        if await self._are_made(look.changes):
            self._watch.keep(look)

    async def _are_made(self, changes: Sequence[Change]) -> bool:
        """Store the changes; False = another server was quicker with one, and what it did is to be looked at first."""
        if not changes:
            return True
        made = await self._transactions.write(partial(store_changes, changes=changes))
        for change in made:
            _log(change)
        return len(made) == len(changes)


def _log(change: Change) -> None:
    new = change.new
    if new is None:
        return
    if change.old is None:
        log.warning("place throttled", place=new.place.key, why=new.reason)
    elif new.is_closed:
        log.info("place tried", place=new.place.key, proofs=new.proofs, why=new.reason)
    else:
        log.info("place opened", place=new.place.key, why=new.reason)
