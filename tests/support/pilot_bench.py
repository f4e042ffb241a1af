"""A pilot's state machine under test: the test is its shell, server and clock."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from pilotage.classads.library import AdValue
from pilotage.classads.text import ad_text, new_job_ad, overlaid
from pilotage.job_description import JobDescription
from pilotage.values.amounts import Amounts
from pilotage.values.attempts import AttemptKey, LostLease, Outcome, RenewedLease, ReportResult
from pilotage_pilot.core import events as ev
from pilotage_pilot.core import instructions as ins
from pilotage_pilot.core.ads.attributes import NodeFacts, NodeSample
from pilotage_pilot.core.ads.node_ads import BuiltInAds
from pilotage_pilot.core.ads.policy_ads import SlotAds
from pilotage_pilot.core.instructions import (
    Instruction,
    RecallRequest,
    RequestJobs,
    SampleNode,
    SendHeartbeat,
    Slot,
    StoreOutput,
)
from pilotage_pilot.core.lifetime import Phase
from pilotage_pilot.core.machine import PilotMachine
from pilotage_pilot.core.model import GrantedJob, Now, Report
from pilotage_pilot.core.node.node_slots import NodeSlots
from pilotage_pilot.core.policy import Policy
from pilotage_pilot.core.rules import Lifetime, PilotRules
from pilotage_pilot.core.slots.layout import Layout, lay_out
from pilotage_pilot.policy.loading import Loaded, load_policy

START = datetime(2026, 11, 20, 12, tzinfo=UTC)
BOOT_S = 5_000.0
Kind = TypeVar("Kind")


def a_job(
    job_id: int = 1,
    attempt: int = 1,
    *,
    cpus: int = 1,
    memory_mib: int = 0,
    disk_mib: int = 0,
    lease_s: float = 1200.0,
    slot: str = "slot1",
    owner: str = "alice",
    fault: str = "",
    **description: Any,
) -> GrantedJob:
    return GrantedJob(
        key=AttemptKey(job_id, attempt),
        slot=slot,
        lease_s=lease_s,
        description=JobDescription(**{"executable": "/bin/true", **description}),
        amounts=Amounts(cpus, memory_mib, disk_mib),
        owner=owner,
        fault=fault,
    )


def with_ad(job: GrantedJob, **attributes: AdValue) -> GrantedJob:
    """Return the job with an ad, as its first match has it; `attributes` override the ad."""
    ad = overlaid(new_job_ad(int(START.timestamp())), {"RequestCpus": job.amounts.cpus, **attributes})
    return replace(job, job_ad=ad_text(ad))


def built_in_slots(share: Amounts, now: Now, gpu_ids: tuple[str, ...] | None = None) -> NodeSlots:
    """Return the slots of a node without a policy: one partitionable slot."""
    layout = lay_out(Policy({}), share, gpu_ids)
    return NodeSlots(layout, BuiltInAds(NodeFacts.of("node", share, layout)), now)


@lru_cache(maxsize=32)
def _loaded(path: Path, share: Amounts) -> Loaded:
    return load_policy(path, share)


def slots_under(path: Path) -> Callable[[Amounts, Now], NodeSlots]:
    """Return a factory of the slots of a node under the policy in a file."""

    def make(share: Amounts, now: Now) -> NodeSlots:
        loaded = _loaded(path, share)
        return _slots(loaded.policy, loaded.layout, share, now)

    return make


def slots_with(**knobs: str) -> Callable[[Amounts, Now], NodeSlots]:
    """Return a factory of the slots of a node under a policy of these knobs, in lower case."""

    def make(share: Amounts, now: Now) -> NodeSlots:
        policy = Policy(knobs)
        return _slots(policy, lay_out(policy, share), share, now)

    return make


def _slots(policy: Policy, layout: Layout, share: Amounts, now: Now) -> NodeSlots:
    return NodeSlots(layout, SlotAds(policy, NodeFacts.of("node", share, layout)), now)


ONE = a_job(1)
TWO = a_job(2)


def transient(why: str = "no answer") -> ev.Failure:
    return ev.Failure(ev.FailureKind.TRANSIENT, why)


class PilotBench:
    """Feeds events to a pilot machine, records its instructions, and validates it after every step."""

    def __init__(
        self,
        cpus: int = 4,
        memory_mib: int = 8000,
        gpus: int = 0,
        rules: PilotRules | None = None,
        ends_after_s: float | None = None,
        *,
        opened: bool = True,
        answers_heartbeats: bool = True,
        slots: Callable[[Amounts, Now], NodeSlots] = built_in_slots,
        sample: NodeSample | None = None,
    ) -> None:
        self.boot_s = BOOT_S
        self.answers_heartbeats = answers_heartbeats
        """Whether every heartbeat is answered at once, with all leases renewed."""
        self.stores_parts = True
        """Whether partial output is stored at once."""
        share = Amounts(cpus, memory_mib, 10_000, gpus)
        ends = None if ends_after_s is None else BOOT_S + ends_after_s
        self.sample = sample or NodeSample(BOOT_S)
        """The result of every sample of the node."""
        self.machine = PilotMachine("pilot", slots(share, self.now), rules or PilotRules(), Lifetime(ends), self.now)
        self.instructions: list[Instruction] = []
        self.unread = list(self.machine.begin(self.now))
        self.instructions += self.unread
        self._answer_samples(self.instructions)
        if answers_heartbeats:
            self.answer_heartbeat()
        if opened:
            self.open()

    @property
    def now(self) -> Now:
        return Now(START + timedelta(seconds=self.after_s), self.boot_s)

    @property
    def after_s(self) -> float:
        return self.boot_s - BOOT_S

    def open(self) -> None:
        """Report the node as valid and its pools as known."""
        self.feed(ev.NodeValidated())
        self.feed(ev.PoolsRead(True, ("a" * 64,)))

    def feed(self, event: ev.Event) -> tuple[Instruction, ...]:
        direct = tuple(self.machine.handle(event, self.now))
        if self.stores_parts:
            for each in direct:
                if isinstance(each, StoreOutput) and each.is_partial:
                    direct += tuple(self.machine.handle(ev.OutputStored(each.key), self.now))
        self.machine.validate()
        instructions = (*direct, *self.machine.advance(self.now))
        self.machine.validate()
        self.instructions += instructions
        self.unread += instructions
        instructions += self._answer_samples(instructions)
        beats = [each for each in instructions if isinstance(each, SendHeartbeat)]
        if self.answers_heartbeats and beats:
            return instructions + self.answer_heartbeat()
        return instructions

    def _answer_samples(self, instructions: Iterable[Instruction]) -> tuple[Instruction, ...]:
        if not any(isinstance(each, SampleNode) for each in instructions):
            return ()
        return self.feed(ev.NodeSampled(self.sample))

    def pass_time(self, seconds: float) -> tuple[Instruction, ...]:
        """Let time pass, with an event at every alarm, as the shell does."""
        instructions: list[Instruction] = []
        end = self.boot_s + seconds
        idle_rounds = 0
        while (alarm := self.machine.alarm_boot_s(self.now)) <= end:
            idle_rounds = 0 if alarm > self.boot_s else idle_rounds + 1
            assert idle_rounds <= 3, "an alarm has no effect"
            self.boot_s = max(self.boot_s, alarm)
            instructions += self.feed(ev.TimePassed())
        self.boot_s = end
        instructions += self.feed(ev.TimePassed())
        return tuple(instructions)

    def take(self, kind: type[Kind]) -> list[Kind]:
        """Return the instructions of this kind since the last call for it."""
        found: list[Kind] = [instruction for instruction in self.unread if isinstance(instruction, kind)]
        self.unread = [instruction for instruction in self.unread if not isinstance(instruction, kind)]
        return found

    def one(self, kind: type[Kind]) -> Kind:
        found = self.take(kind)
        assert len(found) == 1, f"expected one {kind.__name__}: {found}"
        return found[0]

    def slot(self, name: str) -> Slot:
        return next(slot for slot in self.machine.payloads.slots.slots() if slot.name == name)

    def state_and_activity(self, *names: str) -> list[str]:
        """Return state and activity of these slots, or of all, such as "Claimed/Busy"."""
        slots = self.machine.payloads.slots.slots()
        return [f"{slot.state}/{slot.activity}" for slot in slots if not names or slot.name in names]

    def grant(self, *jobs: GrantedJob) -> tuple[Instruction, ...]:
        """Answer the pending request with these jobs."""
        call = self.one(RequestJobs)
        return self.feed(ev.JobsGranted(call.request_id, jobs, accepted(call.reports)))

    def answer_recalled(self) -> None:
        """Answer recalled requests without jobs, until none is recalled."""
        while recalled := self.take(RecallRequest):
            for recall in recalled:
                self.feed(ev.JobsGranted(recall.request_id))

    def run(self, *jobs: GrantedJob) -> None:
        """Grant these jobs and start them."""
        self.grant(*jobs)
        for job in jobs:
            self.feed(ev.JobPrepared(job.key))
            self.feed(ev.PayloadStarted(job.key))

    def exit(self, job: GrantedJob, exit_code: int = 0) -> tuple[Instruction, ...]:
        return self.feed(ev.PayloadExited(job.key, exit_code, None))

    def answer_heartbeat(self, **answer: Any) -> tuple[Instruction, ...]:
        """Answer the last heartbeat, with all its leases renewed unless `answer` overrides that."""
        beat = [each for each in self.instructions if isinstance(each, SendHeartbeat)][-1]
        self.take(SendHeartbeat)
        renewed = tuple(RenewedLease(*key, timedelta(seconds=1200.0)) for key in beat.leases)
        fields: dict[str, Any] = {"renewed": renewed, "results": accepted(beat.reports), "next_s": 30.0} | answer
        return self.feed(ev.HeartbeatAnswered(beat.request_id, **fields))

    def reports(self) -> list[Report]:
        """Return all reports so far, oldest first."""
        calls = [call for call in self.instructions if isinstance(call, RequestJobs | SendHeartbeat)]
        return [report for call in calls for report in call.reports]

    def outcome(self, job: GrantedJob) -> Outcome | None:
        """Return the last reported outcome of a job."""
        outcomes = [report.outcome for report in self.reports() if report.key == job.key]
        return outcomes[-1] if outcomes else None


def accepted(reports: Iterable[Report]) -> tuple[ReportResult, ...]:
    return tuple(ReportResult(*report.key) for report in reports)


class ModelShell:
    """A model of shell and server: payloads on the node, granted jobs, and calls that are not answered yet."""

    def serve(self, bench: PilotBench) -> None:
        """Execute the instructions of this machine from now on."""
        self.bench = bench
        self.calls: dict[str, ins.RequestJobs] = {}
        self.beats: dict[str, ins.SendHeartbeat] = {}
        self.lease_ends: dict[AttemptKey, float] = {}
        self.jobs: dict[AttemptKey, GrantedJob] = {}
        self.running: set[AttemptKey] = set()
        self.preparing: set[AttemptKey] = set()
        self.storing: set[AttemptKey] = set()
        self.killed: set[AttemptKey] = set()
        self.suspended: set[AttemptKey] = set()
        self.outcomes: dict[AttemptKey, set[Outcome]] = {}
        self._executed = 0
        self.next_job = 0
        self.ended = False
        self._do()

    def _do(self) -> None:
        """Execute the new instructions."""
        new, self._executed = self.bench.instructions[self._executed :], len(self.bench.instructions)
        for instruction in new:
            assert not self.ended, f"{instruction} after the pilot has ended"
            self._do_one(instruction)
        assert len(self.beats) <= 1 or self.bench.machine.phase in (Phase.LEAVING, Phase.ENDED)

    def _do_one(self, instruction: ins.Instruction) -> None:  # noqa: C901 - one case an instruction
        match instruction:
            case ins.RequestJobs(request_id):
                first = self.calls.setdefault(request_id, instruction)
                assert (first.slots, first.reports) == (instruction.slots, instruction.reports), (
                    "a repeated request differs"
                )
                self._note_outcomes()
            case ins.SendHeartbeat():
                self.beats[instruction.request_id] = instruction
                self._note_outcomes()
            case ins.PrepareJob(job):
                self.preparing.add(job.key)
            case ins.StartPayload(key):
                assert key in self.preparing
            case ins.KillPayload(key):
                self.killed.add(key)
            case ins.SuspendPayload(key):
                assert key in self.running - self.suspended
                self.suspended.add(key)
            case ins.ContinuePayload(key):
                assert key in self.suspended
                self.suspended.discard(key)
            case ins.StoreOutput(key):
                self.storing.add(key)
            case ins.ForgetAttempt(key):
                assert key not in self.running, "a running payload is forgotten"
                self.preparing.discard(key)
                self.storing.discard(key)
            case ins.EndPilot():
                self.ended = True
            case _:
                pass

    def _note_outcomes(self) -> None:
        for report in self.bench.reports():
            if report.outcome is not None:
                self.outcomes.setdefault(report.key, set()).add(report.outcome)

    def _feed(self, event: ev.Event) -> None:
        self.bench.feed(event)
        self._do()

    def _job(self, slot: str, amounts: Amounts, lease: float, wall: timedelta | None = None) -> GrantedJob:
        self.next_job += 1
        description = JobDescription("/bin/true", wall_time=wall)
        key, ad = AttemptKey(self.next_job, 1), "[JobUniverse = 5; Wanted = 1]"
        return self._keep(GrantedJob(key, slot, lease, description, amounts, owner="alice", job_ad=ad))

    def _keep(self, job: GrantedJob) -> GrantedJob:
        self.jobs[job.key] = job
        self.lease_ends[job.key] = self.bench.boot_s + job.lease_s
        return job

    def _renew(
        self, request_id: str, beat: ins.SendHeartbeat, lost: Set[AttemptKey] = frozenset(), **answer: Any
    ) -> None:
        renewed = tuple(RenewedLease(*key, timedelta(seconds=60.0)) for key in beat.leases if key not in lost)
        for renewal in renewed:
            self.lease_ends[renewal.key] = self.bench.boot_s + 60.0
        losses = tuple(LostLease(*key, "lost") for key in lost)
        answer.setdefault("results", tuple(ReportResult(*report.key) for report in beat.reports))
        self._feed(ev.HeartbeatAnswered(request_id, renewed, losses, next_s=8, **answer))

    def _prepared(self, key: AttemptKey) -> None:
        before = len(self.bench.instructions)
        self._feed(ev.JobPrepared(key))
        if ins.StartPayload(key) in self.bench.instructions[before:]:
            self.preparing.discard(key)
            self.running.add(key)
            self._feed(ev.PayloadStarted(key))

    def _exits(self, key: AttemptKey, code: int | None, signal: int | None) -> None:
        self.running.discard(key)
        self.suspended.discard(key)
        self._feed(ev.PayloadExited(key, code, signal))
