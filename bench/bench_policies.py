"""What a slot's policy costs the server in a match, over task queues shaped as LHCb's were on one day.

Measured is the CPU time of the whole request of a pilot with one slot, from its offer to the lease, without a policy
and under Bologna's; the loads and idle times in the slot's ad are others in each request, as on a real node. Prints
JSON lines; exits 1 when the budget is exceeded.
"""

from __future__ import annotations

import csv
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import timedelta
from itertools import count, cycle, islice
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from pilotage.job_description import JobDescription
from pilotage_pilot.core.amounts import Amounts as NodeAmounts
from pilotage_server.operations.request_jobs import request_jobs
from pilotage_server.operations.slot_offers import AdPartText
from pilotage_server.operations.work import WorkRequest
from pilotage_server.storage.engine import Database, closing
from pilotage_server.storage.schema import upgrade
from support.grid import Grid, a_slot
from support.live_slots import LiveSlots
from support.shared_data import ENVIRONMENT, shared_data_dir
from support.submissions import a_user
from support.virtual_clock import VirtualClock

DAY = "2026-03-28"
QUEUE = "LCG.CERN.cern/ce/queue"
POLICY = Path(__file__).parents[1] / "deploy" / "policies" / "bologna.conf"
MATCHES = 200
BUDGET = 1.5
SEED = 7


def task_queues(folder: Path) -> Iterator[tuple[str, JobDescription]]:
    """Yield the owner and the jobs of each task queue of the day; each with sites of its own, as popular as then."""
    rows, owners = _table(folder, "jobs_per_tq"), _table(folder, "owner_distribution")
    total = int(_table(folder, "scale_overview")[0]["active_tqs"])
    popular = {row["site"]: int(row["n_tqs"]) / total for row in _table(folder, "site_distribution")}
    owner_of = {row["OwnerGroup"]: row["Owner"] for row in reversed(owners)}
    draw = random.Random(SEED)
    for number, row in enumerate(islice(cycle(rows), total)):
        sites = [site for site, share in popular.items() if draw.random() < share]
        yield (
            owner_of[row["OwnerGroup"]],
            JobDescription(
                "run.sh",
                sites=(*sites, f"SITE-{number}"),
                cpu_time=timedelta(seconds=int(row["CPUTime"])),
                priority=round(float(row["Priority"])),
                attributes={"Group": row["OwnerGroup"]},
                count=MATCHES,
            ),
        )


def _table(folder: Path, name: str) -> list[dict[str, str]]:
    with (folder / f"{name}_{DAY}.csv").open(newline="") as rows:
        return list(csv.DictReader(rows))


class Bench:
    """A server with the jobs of the day, and a node under the policy."""

    def __init__(self, database: Database, clock: VirtualClock, folder: Path) -> None:
        self._grid = Grid(database, clock, QUEUE)
        self._node = LiveSlots.loaded(POLICY, NodeAmounts(cpus=6, memory_mib=16_000, disk_mib=80_000))
        self._looks = count(1)
        for owner, jobs in task_queues(folder):
            fields = {name: getattr(jobs, name) for name in ("sites", "cpu_time", "priority", "attributes")}
            self._grid.submit(a_user(owner), count=jobs.count, **fields)
        self._pilot = self._grid.start_pilot(QUEUE)
        self.task_queues = len(self._grid.world.waiting.waiting())

    def match_ms(self, *, with_policy: bool) -> float:
        """Return the CPU time of a match, after which all is as it was before."""
        work = self._request(with_policy=with_policy)
        pilot = self._pilot
        start = time.process_time()
        answer = self._grid.read(lambda unit, world: request_jobs(unit, world, pilot.identity, work))
        spent_s = time.process_time() - start
        assert len(answer.matches) == 1, answer
        return spent_s * 1000

    def go_on(self) -> None:
        """Let a new pilot take a job, so that another owner's turn comes."""
        self._pilot = self._grid.start_pilot(QUEUE)
        assert self._pilot.request(self._request(with_policy=True)).matches

    def _request(self, *, with_policy: bool) -> WorkRequest:
        if not with_policy:
            return WorkRequest((a_slot(),))
        look = next(self._looks)
        self._node.look(load=0.1 + look % 19 / 100, keyboard_idle_s=86_400 + look)
        ad = self._node.ads.offer("slot1", self._node.now)
        new_parts = ad.part_keys if look == 1 else ()
        parts = tuple(AdPartText(key, self._node.ads.part(key) or "") for key in new_parts)
        return WorkRequest((a_slot(ad_parts=ad.part_keys, ad_changes=ad.changes),), ad_parts=parts)


def main() -> int:
    shared = shared_data_dir()
    if shared is None:
        print(f"there is no real input: set {ENVIRONMENT}, or put it beside the checkout", file=sys.stderr)
        return 2
    clock = VirtualClock()
    with (
        tempfile.TemporaryDirectory() as folder,
        closing(Database(f"sqlite:///{folder}/pilotage.db", clock)) as database,
    ):
        upgrade(database)
        bench = Bench(database, clock, shared / f"data/lhcb-{DAY}")
        times: dict[bool, list[float]] = {False: [], True: []}
        for turn in range(MATCHES):
            bench.go_on()
            for with_policy in (turn % 2 == 0, turn % 2 == 1):  # who comes second may find something warm
                times[with_policy].append(bench.match_ms(with_policy=with_policy))
    plain, under_policy = statistics.median(times[False]), statistics.median(times[True])
    ratio = under_policy / plain
    common = {"unit": "ms", "budget": None, "ok": True, "task_queues": bench.task_queues}
    print(json.dumps({"name": "match-without-policy", "figure": round(plain, 3), **common}))
    print(json.dumps({"name": "match-under-bologna", "figure": round(under_policy, 3), **common}))
    verdict = {"name": "policies", "figure": round(ratio, 3), "unit": "ratio", "budget": BUDGET, "ok": ratio <= BUDGET}
    print(json.dumps(verdict))
    return 0 if verdict["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
