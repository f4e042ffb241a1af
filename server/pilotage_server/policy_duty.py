"""Looks after the jobs' policies, in the pauses of everything else."""

from __future__ import annotations

import asyncio

import structlog

from pilotage.clock import BootClock, boot_time_s, thread_cpu_s
from pilotage_server.core.job_record import PolicyWatch
from pilotage_server.core.policy_looks import pause_s
from pilotage_server.core.rules import PolicyRules
from pilotage_server.operations.job_policies import Seen, act_on, look_at_changed, look_on
from pilotage_server.operations.world import World
from pilotage_server.rpc.transactions import Operation, Transactions
from pilotage_server.storage.engine import Unit
from pilotage_server.storage.watched import Place, first_place

log = structlog.get_logger()

BATCH = 200
"""Jobs that are looked at in one go, between two pauses."""

SWEEP_EVERY_S = 3600.0
"""How often all jobs under policies are looked at: a change is lost with the server that should have looked at it."""


class PolicyDuty:
    """Looks at jobs that have changed, and in rounds at all whose policies depend on time.

    A round goes on job after job in the order of ids, so that each has its turn however many there are; the next
    one begins `interval` after the beginning of the one before. Pauses keep both to their share of a processor.
    """

    def __init__(self, transactions: Transactions, boot_clock: BootClock = boot_time_s) -> None:
        self._transactions = transactions
        self._boot_clock = boot_clock
        self._place: Place | None = None
        self._next_round_s = 0.0
        self._next_sweep_s = 0.0

    async def run_once(self) -> None:
        """Look until no job has changed since and the round is over."""
        self._begin_round()
        while True:
            took_s = await self._look()
            if took_s is None:
                return
            await asyncio.sleep(pause_s(took_s, self._rules.cpu_share))

    @property
    def _rules(self) -> PolicyRules:
        return self._transactions.world.rules.policies

    def _begin_round(self) -> None:
        now_s = self._boot_clock()
        is_due = self._place is None and now_s >= self._next_round_s
        if self._transactions.world.policy_looks.take_all() or (is_due and now_s >= self._next_sweep_s):
            self._place = first_place(PolicyWatch.ON_CHANGE)
            self._next_sweep_s = now_s + SWEEP_EVERY_S
        elif is_due:
            self._place = first_place(PolicyWatch.EACH_MINUTE)
        else:
            return
        self._next_round_s = now_s + self._rules.interval.total_seconds()

    async def _look(self) -> float | None:
        """Look at some that have changed and at some of the round.

        Returns the processor seconds that it took; None = there was nothing to look at now.
        """
        place, jobs, took_s = self._place, 0, 0.0
        if self._transactions.world.policy_looks.has_any:
            seen, took_s = await self._look_by(lambda unit, world: look_at_changed(unit, world, BATCH))
            jobs = seen.jobs
        if place is not None:
            seen, also_s = await self._look_by(lambda unit, world: look_on(unit, world, place, BATCH))
            self._place = seen.place
            jobs, took_s = jobs + seen.jobs, took_s + also_s
        return took_s if jobs else None

    async def _look_by(self, look: Operation[Seen]) -> tuple[Seen, float]:
        def timed(unit: Unit, world: World) -> tuple[Seen, float]:
            began_s = thread_cpu_s()
            return look(unit, world), thread_cpu_s() - began_s

        seen, took_s = await self._transactions.read(timed)
        if seen.wanting:
            moved = await self._transactions.write(lambda unit, world: act_on(unit, world, seen.wanting))
            log.info("jobs moved by policies", jobs=len(moved))
        return seen, took_s
