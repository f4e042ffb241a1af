"""The CPU time of a pilot with a slot for each core and one for all, under the whole-machine policy.

In the poll every slot has a job and evaluates its expressions. The end of a job is the exit of its process and the
storage of its output, with all instructions that follow. Prints JSON lines; exits 1 if a budget is exceeded.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from harness.empty_call import machine_speed
from harness.figures import Figure, at_most
from harness.setting import Setting, bench
from pilotage.classads.library import AdValue
from pilotage.classads.text import ad_text, new_job_ad
from pilotage.job_description import JobDescription
from pilotage.values.amounts import Amounts
from pilotage.values.attempts import AttemptKey, RenewedLease, ReportResult
from pilotage_pilot.core import events as ev
from pilotage_pilot.core.ads.attributes import NodeFacts, NodeSample
from pilotage_pilot.core.ads.policy_ads import SlotAds
from pilotage_pilot.core.instructions import Instruction, RequestJobs, SendHeartbeat
from pilotage_pilot.core.machine import PilotMachine
from pilotage_pilot.core.model import GrantedJob, Now
from pilotage_pilot.core.node.node_slots import NodeSlots
from pilotage_pilot.core.rules import Lifetime, PilotRules
from pilotage_pilot.core.slots.layout import Layout
from pilotage_pilot.node.node import identity
from pilotage_pilot.policy.loading import load_policy

SLOTS = 64
NODE = Amounts(cpus=SLOTS - 1, memory_mib=SLOTS * 2048, disk_mib=SLOTS * 20_480)
POLICY = Path(__file__).parents[1] / "deploy" / "policies" / "whole-machine.conf"
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
POLLS = 200
POLL_BUDGET_MS, END_BUDGET_MS = 10.0, 1.0


class Node:
    """A pilot machine whose shell and server answer at once."""

    def __init__(self) -> None:
        self.after_s = 1000.0
        loaded = load_policy(POLICY, NODE)
        ads = SlotAds(loaded.policy, NodeFacts.of("node", NODE, loaded.layout, identity()))
        self.slots = NodeSlots(loaded.layout, ads, self.now)
        self.machine = PilotMachine("pilot", self.slots, PilotRules(), Lifetime(None), self.now)
        self.layout: Layout = loaded.layout
        self._answer(self.machine.begin(self.now))
        self.feed(ev.NodeValidated())
        self.feed(ev.PoolsRead(True, ("0" * 64,)))
        self.feed(ev.NodeSampled(NodeSample(self.after_s)))

    @property
    def now(self) -> Now:
        """The current time."""
        return Now(BEGIN + timedelta(seconds=self.after_s), self.after_s)

    def feed(self, event: ev.Event) -> float:
        """Feed an event to the machine; returns the CPU time in ms."""
        began = time.process_time()
        instructions = (*self.machine.handle(event, self.now), *self.machine.advance(self.now))
        took_ms = (time.process_time() - began) * 1000
        self._answer(instructions)
        return took_ms

    def fill(self) -> list[AttemptKey]:
        """Start a job in every slot; returns the attempts in the order of the slots."""
        jobs = [self._job(number, slot.name, slot.amounts) for number, slot in enumerate(self.layout.slots, start=1)]
        self.feed(ev.JobsGranted(self._request.request_id, tuple(jobs), ()))
        for job in jobs:
            self.feed(ev.JobPrepared(job.key))
            self.feed(ev.PayloadStarted(job.key))
        return [job.key for job in jobs]

    def _job(self, job_id: int, slot: str, amounts: Amounts) -> GrantedJob:
        whole: dict[str, AdValue] = {"RequiresWholeMachine": True} if amounts.cpus > 1 else {}
        ad = new_job_ad(int(self.now.utc.timestamp())) | {"Owner": "ann", "RequestCpus": amounts.cpus} | whole
        description = JobDescription("/bin/true")
        return GrantedJob(AttemptKey(job_id, 1), slot, 1e6, description, amounts, owner="ann", job_ad=ad_text(ad))

    def _answer(self, instructions: Iterable[Instruction]) -> None:
        for instruction in instructions:
            if isinstance(instruction, RequestJobs):
                self._request = instruction
            if isinstance(instruction, SendHeartbeat):
                renewed = tuple(RenewedLease(*key, timedelta(seconds=1e6)) for key in instruction.leases)
                results = tuple(ReportResult(*report.key) for report in instruction.reports)
                self.feed(ev.HeartbeatAnswered(instruction.request_id, renewed, results=results, next_s=60.0))


def figures(setting: Setting) -> Iterator[Figure]:
    """Poll the slots, then end their jobs."""
    node = Node()
    attempts = node.fill()
    polls: list[float] = []
    for _ in range(setting.size(POLLS, 10)):
        node.after_s += 5.0
        node.feed(ev.NodeSampled(NodeSample(node.after_s, load=1.5)))
        polls.append(node.feed(ev.TimePassed()))
    busy = [slot for slot in node.slots.slots() if slot.key is not None]
    assert len(busy) == SLOTS, "a job has left its slot during the polls"
    ends: list[float] = []
    for key in attempts[:-1]:
        node.after_s += 1.0
        ends.append(node.feed(ev.PayloadExited(key, 0, None)) + node.feed(ev.OutputStored(key, ())))
    node.machine.validate()
    yield _figure("slots: one poll of 64 slots", polls, POLL_BUDGET_MS)
    yield _figure("slots: one job's end among 64 slots", ends, END_BUDGET_MS)


def _figure(name: str, times_ms: list[float], budget_ms: float) -> Figure:
    """Return the median of the times, with their 99th percentile."""
    p99_ms = round(sorted(times_ms)[int(len(times_ms) * 0.99)], 3)
    return at_most(name, statistics.median(times_ms), "ms", budget_ms / machine_speed(), p99_ms=p99_ms)


if __name__ == "__main__":
    sys.exit(bench(figures, __doc__))
