"""The lookout: looks at payloads every now and then, for what they use and write, and for processes that hide."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from pilotage_pilot.core.events import LimitPassed
from pilotage_pilot.core.jobs import AttemptKey
from pilotage_pilot.supervise.base import Happening
from pilotage_pilot.supervise.cgroups import Group
from pilotage_pilot.supervise.payload import Payload, proportional_memory_mib
from pilotage_pilot.supervise.processes import Process, all_processes
from pilotage_pilot.supervise.work import Handling, Work


class Lookout:
    """Looks at the payloads among `works` as long as there are any; `new_group` makes a group for one without."""

    def __init__(
        self,
        works: Mapping[AttemptKey, Work],
        handling: Handling,
        new_group: Callable[[Work], Group | None],
        hear: Callable[[Happening], None],
    ) -> None:
        self._works = works
        self._watch_s = handling.watch_s
        self._bounds = handling.bounds
        self._new_group = new_group
        self._hear = hear
        self._next: asyncio.TimerHandle | None = None

    def keep(self) -> None:
        """Be there from now on, until nothing runs any more."""
        if self._next is None:
            self._next = asyncio.get_running_loop().call_later(self._watch_s, self._look)

    def end(self) -> None:
        """Look no more."""
        if self._next is not None:
            self._next.cancel()

    def _look(self) -> None:
        self._next = None
        running = [(work, work.payload) for work in self._works.values() if work.payload is not None]
        if not running:
            return
        # Who began just now is left for the next time: most are over before, and a look is at all of the machine.
        begun_before_s = asyncio.get_running_loop().time() - self._watch_s / 2
        grown = [(work, payload) for work, payload in running if payload.begun_s <= begun_before_s]
        processes = all_processes() if grown else {}
        for work, payload in grown:
            self._look_at(work, payload, processes)
        self.keep()

    def _look_at(self, work: Work, payload: Payload, processes: dict[int, Process]) -> None:
        if payload.group is None:
            payload.group = self._new_group(work)
        memory_mib = payload.gather(processes)
        work.cut_streams(self._bounds)
        limit_mib = work.order.slot.amounts.memory_mib
        is_held = payload.group is not None and payload.group.limits_memory
        if limit_mib and not is_held and memory_mib > limit_mib:
            # Counted anew: what processes share is in each of their sizes.
            used_mib = proportional_memory_mib(payload.tree(processes))
            if used_mib > limit_mib:
                why = f"it used {used_mib:.0f} MiB of memory, it asked for {limit_mib} MiB"
                self._hear(LimitPassed(work.order.job.key, why))
