"""The cost of a slot's policy in a match, over task queues with the shape of LHCb's on one day.

It measures the CPU time of a request with one slot, from its offer to the lease, without a policy and under that of
Bologna. Load and idle time in the slot's ad differ in each request, as on a real node. Prints JSON lines; exits 1 if
the budget is exceeded.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterable, Iterator
from itertools import count
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from harness.figures import Figure, at_most, measured
from harness.lhcb import DaysTaskQueue
from harness.nodes import BOLOGNA
from harness.setting import Setting, bench, scratch, the_day
from pilotage.values.amounts import Amounts as NodeAmounts
from pilotage.values.offers import AdPart
from pilotage_server.operations.matching.work import WorkRequest
from pilotage_server.storage.database.engine import Database, closing, upgrade
from support.grid import Grid, a_slot, request_jobs
from support.jobs import a_user
from support.live_slots import LiveSlots
from support.virtual_clock import VirtualClock

QUEUE = "LCG.CERN.cern/ce/queue"
JOBS = 100_000
MATCHES = 200
BUDGET = 1.5
FIELDS = ("sites", "banned_sites", "platforms", "cpu_time", "priority", "attributes", "count")


class Compared:
    """A server with the jobs of the day, and a node under the policy."""

    def __init__(self, database: Database, clock: VirtualClock, task_queues: Iterable[DaysTaskQueue]) -> None:
        self._grid = Grid(database, clock, QUEUE)
        self._node = LiveSlots.loaded(BOLOGNA, NodeAmounts(cpus=6, memory_mib=16_000, disk_mib=80_000))
        self._looks = count(1)
        for each in task_queues:
            fields = {name: getattr(each.jobs, name) for name in FIELDS}
            self._grid.submit(a_user(each.owner), **fields)
        self._pilot = self._grid.start_pilot(QUEUE)
        self.task_queues = len(self._grid.state.waiting.waiting())

    def match_ms(self, *, with_policy: bool) -> float:
        """Return the CPU time of a match, in ms; the match is rolled back."""
        work = self._request(with_policy=with_policy)
        pilot = self._pilot
        start = time.process_time()
        answer = self._grid.read(lambda transaction, state: request_jobs(transaction, state, pilot.identity, work))
        spent_s = time.process_time() - start
        assert len(answer.matches) == 1, answer
        return spent_s * 1000

    def match_one(self) -> None:
        """Match a job to a new pilot, so that the next match is for another owner."""
        self._pilot = self._grid.start_pilot(QUEUE)
        assert self._pilot.request(self._request(with_policy=True)).matches

    def _request(self, *, with_policy: bool) -> WorkRequest:
        if not with_policy:
            return WorkRequest((a_slot(),))
        look = next(self._looks)
        self._node.sample(load=0.1 + look % 19 / 100, keyboard_idle_s=86_400 + look)
        ad = self._node.ads.offer("slot1", self._node.now)
        new_parts = ad.part_keys if look == 1 else ()
        parts = tuple(AdPart(key, self._node.ads.part(key) or "") for key in new_parts)
        return WorkRequest((a_slot(ad_parts=ad.part_keys, ad_changes=ad.changes),), ad_parts=parts)


def figures(setting: Setting) -> Iterator[Figure]:
    """Measure matches with and without the policy in turns."""
    clock = VirtualClock()
    with scratch() as folder, closing(Database(f"sqlite:///{folder}/pilotage.db", clock)) as database:
        upgrade(database)
        compared = Compared(database, clock, the_day().task_queues(setting.size(JOBS)))
        times: dict[bool, list[float]] = {False: [], True: []}
        for round_ in range(setting.size(MATCHES, 10)):
            compared.match_one()
            for with_policy in (round_ % 2 == 0, round_ % 2 == 1):  # the second one may profit from warm caches
                times[with_policy].append(compared.match_ms(with_policy=with_policy))
    without_policy, under_policy = statistics.median(times[False]), statistics.median(times[True])
    yield measured("match-without-policy", without_policy, "ms", task_queues=compared.task_queues)
    yield measured("match-under-bologna", under_policy, "ms", task_queues=compared.task_queues)
    yield at_most("policies", under_policy / without_policy, "ratio", BUDGET, task_queues=compared.task_queues)


if __name__ == "__main__":
    sys.exit(bench(figures, __doc__))
