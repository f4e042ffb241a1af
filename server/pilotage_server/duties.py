"""What a server does by itself, again and again: ended leases, retention, its own sign of life."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

import structlog

from pilotage.clock import boot_time_s
from pilotage.telemetry import cause_bound
from pilotage_server.health_duty import HealthDuty
from pilotage_server.operations.catch_up import catch_up
from pilotage_server.operations.expire_leases import expire_leases, note_alive
from pilotage_server.operations.following import follow
from pilotage_server.operations.load_world import count_uncounted, refresh_uses, refresh_world, share_doubts
from pilotage_server.operations.retention import PREFIXES, REMOVALS, sweep_files
from pilotage_server.operations.shares import refresh_pie, take_set_shares
from pilotage_server.operations.world import World
from pilotage_server.policy_duty import PolicyDuty
from pilotage_server.rpc.deadlines import within
from pilotage_server.rpc.transactions import Transactions
from pilotage_server.settings import Settings
from pilotage_server.storage.engine import Unit
from pilotage_server.storage.file_store import FileStore

log = structlog.get_logger()

FOLLOW_EVERY_S = 0.5
"""How often a server looks at what others on the same database did to jobs."""

CATCH_UP_EVERY_S = 3.0
"""How often it looks for trees, pools and bans of theirs."""

SHARES_EVERY_S = 8.0
"""How often it looks at what runs on all of them, for fair shares."""

RECOUNT_EVERY_S = 300.0
"""How often all is counted again: for what the feed of events does not tell."""

COUNT_WAITING_EVERY_S = 2.0
"""How soon it is tried again to count what waits in busy task queues."""

COUNT_CORES_EVERY_S = 30.0
"""How often the cores are counted that quotas are parts of."""

HEALTH_EVERY_S = 0.1
"""How often it is seen whether it is time to look for black holes."""

POLICIES_EVERY_S = 1.0
"""How soon the policies of a job that has changed are looked at."""


@dataclass(frozen=True, slots=True)
class Duty:
    """One thing to be done every so many seconds."""

    name: str
    every_s: float
    run_once: Callable[[], Awaitable[None]]


class LeaseDuties:
    """Gives back the jobs of leases that ended, and notes that a server lives."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions

    async def note_alive(self) -> None:
        """Note that the server lives."""
        _log_gap(await self._transactions.write(note_alive))

    async def expire(self) -> None:
        """Give back the jobs whose leases have ended."""
        more = True
        while more:
            expired = await self._transactions.write(expire_leases)
            _log_gap(expired.gap)
            if expired.jobs or expired.pilots:
                log.info("leases expired", jobs=len(expired.jobs), lost_pilots=len(expired.pilots))
            more = expired.more


def _log_gap(gap: timedelta) -> None:
    if gap:
        log.warning("leases extended", why="no server was there", gap_s=gap.total_seconds())


class NeighbourDuties:
    """Takes in what other servers on the same database do, and lets the calls that wait here hear of it."""

    def __init__(self, transactions: Transactions, nudge: Callable[[], None]) -> None:
        self._transactions = transactions
        self._nudge = nudge

    def all(self) -> tuple[Duty, ...]:
        """Return them, the most frequent first."""
        read = self._transactions.read
        return (
            Duty("jobs of neighbours", FOLLOW_EVERY_S, self.follow),
            Duty("trees and pools of neighbours", CATCH_UP_EVERY_S, self.catch_up),
            Duty("shares over all servers", SHARES_EVERY_S, partial(read, refresh_uses)),
            Duty("recount", RECOUNT_EVERY_S, self.recount),
        )

    async def follow(self) -> None:
        """Take in what happened to waiting jobs, and let those look again who wait for events."""
        if await self._transactions.read(follow):
            self._nudge()

    async def catch_up(self) -> None:
        """Take in trees, bans, pools, and the factors and quotas that have been set."""

        def catch_up_with_all(unit: Unit, world: World) -> None:
            catch_up(unit, world)
            take_set_shares(unit, world)

        await self._transactions.read(catch_up_with_all)

    async def recount(self) -> None:
        """Make the memory agree with the database in all."""
        world = self._transactions.world
        with world.lock:
            before = world.waiting.snapshot()
        await self._transactions.read(lambda unit, world: refresh_world(unit, world, before))


class CountingDuty:
    """Counts the waiting jobs of which it is not known how many there are."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions

    async def run_once(self) -> None:
        """Count those of the task queues that are quiet; the others are tried again next time."""
        world = self._transactions.world
        share_doubts(world)
        if not world.uncounted:
            return
        with world.lock:
            before = world.waiting.snapshot(world.uncounted)
        await self._transactions.read(lambda unit, world: count_uncounted(unit, world, before))


class RetentionDuty:
    """Removes what is past its time, in small batches, and sweeps the files portion by portion."""

    def __init__(self, transactions: Transactions, store: FileStore) -> None:
        self._transactions = transactions
        self._store = store
        self._portions: Iterator[str] = itertools.cycle(PREFIXES)

    async def run_once(self) -> None:
        """Remove all that is past its time, and sweep one portion of the files."""
        for remove in REMOVALS:
            while removed := await self._transactions.write(remove):
                log.info("old things removed", kind=remove.__name__, removed=removed)
        portion = next(self._portions)
        await self._transactions.read(lambda unit, world: sweep_files(unit, world, self._store, portion))


def duties_of(
    settings: Settings, transactions: Transactions, store: FileStore, nudge: Callable[[], None]
) -> tuple[Duty, ...]:
    """Return what a server with these settings does by itself; `nudge` wakes the calls that follow events."""
    leases, retention = LeaseDuties(transactions), RetentionDuty(transactions, store)
    neighbours = () if transactions.database.is_sqlite else NeighbourDuties(transactions, nudge).all()
    return (
        Duty("sign of life", settings.alive_every_s, leases.note_alive),
        Duty("lease expiry", settings.expire_every_s, leases.expire),
        Duty("cores for quotas", COUNT_CORES_EVERY_S, partial(transactions.read, refresh_pie)),
        Duty("counts of what waits", COUNT_WAITING_EVERY_S, CountingDuty(transactions).run_once),
        Duty("policies", POLICIES_EVERY_S, PolicyDuty(transactions).run_once),
        Duty("health of places", HEALTH_EVERY_S, HealthDuty(transactions, boot_time_s).run_once),
        Duty("retention", settings.retention_every_s, retention.run_once),
        *neighbours,
    )


async def keep_doing(duty: Duty, stopping: asyncio.Event) -> None:
    """Do a duty until the server stops; a round that fails is logged and counted, and the next one comes."""
    failures = 0
    while not stopping.is_set():
        failures = 0 if await _succeeds(duty, failures) else failures + 1
        await within(duty.every_s, stopping)


async def _succeeds(duty: Duty, failures_before: int) -> bool:
    with cause_bound(None):
        try:
            await duty.run_once()
        except Exception as error:  # the outermost round of a loop
            failures = failures_before + 1
            if failures & (failures - 1) == 0:  # the 1st, 2nd, 4th, 8th … tell enough of a lasting trouble
                log.error("duty failed", duty=duty.name, failures=failures, why=str(error), exc_info=error)
            return False
    if failures_before:
        log.info("duty works again", duty=duty.name, failures=failures_before)
    return True
