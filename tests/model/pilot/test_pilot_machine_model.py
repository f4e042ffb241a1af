"""Random events in random order: the pilot's machine keeps its invariants."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pilotage.values.amounts import NOTHING, Amounts
from pilotage.values.attempts import Outcome, ReportResult
from pilotage.values.offers import VacateOrder
from pilotage_pilot.core import events as ev
from pilotage_pilot.core import instructions as ins
from pilotage_pilot.core.ads.attributes import NodeSample
from pilotage_pilot.core.events import BrokerChanged, BrokerEvent, ContactRequested, JobsAnnounced
from pilotage_pilot.core.lifetime import Phase
from pilotage_pilot.core.model import GrantedJob, ReportedState
from pilotage_pilot.core.policy import Policy
from pilotage_pilot.core.rules import PilotRules
from support.pilot_bench import ModelShell, PilotBench, built_in_slots, slots_with

KINDS = st.sampled_from(ev.FailureKind)
CHANCE, UNLIKELY = st.integers(0, 20), 13
"""An event happens when `UNLIKELY` is drawn; it is not an end of the range, as those are drawn more often."""

NOT_STARTED = Outcome.START_FAILED, Outcome.REFUSED_BY_JOB, Outcome.DECLINED

BUSY_POLICY = {
    "rank": "TARGET.Wanted",
    "want_suspend": "KeyboardIdle < 60",
    "suspend": "KeyboardIdle < 60",
    "continue": "KeyboardIdle >= 60",
    "preempt": "MyCurrentTime - EnteredCurrentActivity > 120",
    "kill": "Pitiless",
    "maxjobretirementtime": "20",
    "machinemaxvacatetime": "4",
    "claim_worklife": "30",
    "start": "OnlyWanted =!= True || TARGET.Wanted > 0",
    "enable_runtime_config": "True",
    "settable_attrs_administrator": "OnlyWanted Pitiless",
    "startd_slot_attrs": "State",
}
CROSS_SLOT_POLICY = {**BUSY_POLICY, "is_owner": 'SlotID == 1 && slot2_State == "Claimed"', "update_interval": "20"}
NODES = {
    "without a policy": built_in_slots,
    "divided": slots_with(**BUSY_POLICY),
    "three slots": slots_with(num_slots="3", num_cpus="6", memory="9000", **CROSS_SLOT_POLICY),
}
RULES = PilotRules(
    grace_s=5,
    max_idle_s=50,
    wait_s=10,
    heartbeat_s=8,
    store_timeout_s=30,
    unreachable_s=90,
    idle_ask_s=20,
    plug_s=15,
)


class PilotModel(ModelShell, RuleBasedStateMachine):
    """A shell, a server and a node that answer at random times and in random ways."""

    @initialize(cpus=st.integers(1, 4), ends=st.none() | st.integers(100, 6000), node=st.sampled_from(sorted(NODES)))
    def begin(self, cpus: int, ends: int | None, node: str) -> None:
        slots = NODES[node]
        self.attributes_version = 0
        self.serve(
            PilotBench(cpus, 4000, rules=RULES, ends_after_s=ends, opened=False, answers_heartbeats=False, slots=slots)
        )
        self.bench.feed(ev.NodeValidated())
        self.bench.feed(ev.PoolsRead(True))
        self._do()
        self._feed(ev.HeartbeatAnswered(self.beats.popitem()[0], next_s=8))
        self.everything_succeeds(3000.0)

    @rule(seconds=st.sampled_from([0.01, 0.2, 1.0, 5.0, 20.0]), chance=CHANCE)
    def time_passes(self, seconds: float, chance: int) -> None:
        self.bench.pass_time(100.0 if chance == UNLIKELY else seconds)
        self._do()

    @rule(lease=st.sampled_from([300.0, 3000.0]))
    def everything_succeeds(self, lease: float) -> None:
        """Answer all requests, grant small jobs to all free slots, and start all jobs."""
        for request_id in sorted(self.beats):
            self._renew(request_id, self.beats.pop(request_id))
        for request_id in sorted(self.calls):
            call = self.calls.pop(request_id)
            jobs = tuple(
                self._job(offer.name, Amounts(1, 100, 100), lease)
                for offer in call.slots
                if not offer.occupied
                for _ in range(1 + min(offer.ahead, 2))
            )
            results = tuple(ReportResult(*report.key) for report in call.reports)
            self._feed(ev.JobsGranted(request_id, jobs, results))
        for key in sorted(self.preparing):
            self._prepared(key)

    @precondition(lambda self: self.calls)
    @rule(data=st.data())
    def server_grants(self, data: st.DataObject) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.calls)))
        call = self.calls.pop(request_id)
        jobs = tuple(self._new_job(data, call) for _ in range(data.draw(st.integers(0, 3))))
        results = tuple(
            ReportResult(*report.key, data.draw(st.sampled_from(("", "refused")))) for report in call.reports
        )
        occupied = [offer.name for offer in call.slots if offer.occupied is not None]
        wanted = data.draw(st.sets(st.sampled_from(occupied))) if occupied else set()
        orders = tuple(VacateOrder(name, "better") for name in sorted(wanted))
        parts = [key for offer in call.slots for key in offer.ad_parts]
        unknown = (data.draw(st.sampled_from(parts)),) if parts and data.draw(CHANCE) == UNLIKELY else ()
        pools_changed = data.draw(st.booleans())
        attributes = self._attributes(data)
        if attributes is not None:
            jobs, orders = (), ()  # the server matches nothing before the pilot has the attributes
        self._feed(ev.JobsGranted(request_id, jobs, results, pools_changed, (), orders, unknown, attributes))

    def _new_job(self, data: st.DataObject, call: ins.RequestJobs) -> GrantedJob:
        amounts = Amounts(
            *(data.draw(size) for size in (st.integers(1, 3), st.integers(0, 3000), st.integers(0, 6000)))
        )
        job = self._job(
            data.draw(st.sampled_from([offer.name for offer in call.slots])),
            amounts,
            data.draw(st.sampled_from([300.0, 2.0, 30.0, 3000.0])),
            data.draw(st.none() | st.just(timedelta(seconds=10))),
        )
        wanted = data.draw(st.integers(0, 2))
        owner = data.draw(st.sampled_from(["alice", "bob"]))
        return self._keep(replace(job, owner=owner, job_ad=f"[JobUniverse = 5; Wanted = {wanted}]"))

    @precondition(lambda self: self.calls)
    @rule(data=st.data(), kind=KINDS, chance=CHANCE)
    def request_fails(self, data: st.DataObject, kind: ev.FailureKind, chance: int) -> None:
        kind = kind if chance == UNLIKELY else ev.FailureKind.TRANSIENT
        request_id = data.draw(st.sampled_from(sorted(self.calls)))
        if kind is not ev.FailureKind.TRANSIENT:
            del self.calls[request_id]
        self._feed(ev.RequestFailed(request_id, ev.Failure(kind, "no")))

    @precondition(lambda self: self.beats)
    @rule(data=st.data())
    def heartbeat_is_answered(self, data: st.DataObject) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.beats)))
        beat = self.beats.pop(request_id)
        lost = {key for key in beat.leases if data.draw(CHANCE) == UNLIKELY}
        results = tuple(
            ReportResult(*report.key, data.draw(st.sampled_from(("", "refused")))) for report in beat.reports
        )
        self._renew(request_id, beat, lost=lost, results=results, node_attributes=self._attributes(data))

    def _attributes(self, data: st.DataObject) -> ev.NodeAttributes | None:
        if data.draw(CHANCE) != UNLIKELY:
            return None
        self.attributes_version += 1
        names = data.draw(st.sets(st.sampled_from(["OnlyWanted", "Pitiless", "Unheard"])))
        return ev.NodeAttributes(self.attributes_version, dict.fromkeys(sorted(names), "true"))

    @precondition(lambda self: self.beats)
    @rule(data=st.data(), kind=KINDS, chance=CHANCE)
    def heartbeat_fails(self, data: st.DataObject, kind: ev.FailureKind, chance: int) -> None:
        kind = kind if chance == UNLIKELY else ev.FailureKind.TRANSIENT
        request_id = data.draw(st.sampled_from(sorted(self.beats)))
        del self.beats[request_id]
        self._feed(ev.HeartbeatFailed(request_id, ev.Failure(kind, "no")))

    @precondition(lambda self: self.preparing)
    @rule(data=st.data(), outcome=st.sampled_from([None, None, None, *NOT_STARTED]))
    def job_is_prepared(self, data: st.DataObject, outcome: Outcome | None) -> None:
        key = data.draw(st.sampled_from(sorted(self.preparing)))
        if outcome is not None:
            self.preparing.discard(key)
            self._feed(ev.StartFailed(key, outcome, "no"))
        else:
            self._prepared(key)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), code=st.integers(0, 3))
    def payload_exits(self, data: st.DataObject, code: int) -> None:
        key = data.draw(st.sampled_from(sorted(self.running)))
        self._exits(key, code, None)

    @precondition(lambda self: self.running & self.killed)
    @rule()
    def killed_payloads_exit(self) -> None:
        for key in sorted(self.running & self.killed):
            self._exits(key, None, 9)

    @precondition(lambda self: self.storing)
    @rule(data=st.data(), works=st.booleans())
    def output_is_stored(self, data: st.DataObject, works: bool) -> None:
        key = data.draw(st.sampled_from(sorted(self.storing)))
        self.storing.discard(key)
        failure = ev.Failure(ev.FailureKind.TRANSIENT, "no")
        self._feed(ev.OutputStored(key) if works else ev.OutputFailed(key, failure))

    @precondition(lambda self: self.jobs)
    @rule(data=st.data())
    def command_arrives(self, data: st.DataObject) -> None:
        if not self.beats:
            return
        key = data.draw(st.sampled_from(sorted(self.jobs)))
        request_id = next(iter(self.beats))
        beat = self.beats.pop(request_id)
        results = tuple(ReportResult(*report.key) for report in beat.reports)
        self._feed(ev.HeartbeatAnswered(request_id, results=results, commands=(ev.KillCommanded(key, "removed"),)))

    @rule(suspend=st.booleans())
    def batch_system_suspends(self, suspend: bool) -> None:
        self._feed(ev.SuspendRequested() if suspend else ev.ContinueRequested())

    @rule(idle_s=st.sampled_from([None, 0, 30, 600]))
    def keyboard_idle_time_changes(self, idle_s: int | None) -> None:
        self.bench.sample = NodeSample(self.bench.boot_s, load=1.0, keyboard_idle_s=idle_s)

    @rule(event=st.sampled_from((BrokerChanged(True), BrokerChanged(False), JobsAnnounced(), ContactRequested())))
    def broker_event_arrives(self, event: BrokerEvent) -> None:
        self._feed(event)

    @rule(
        knobs=st.sampled_from(
            [BUSY_POLICY, CROSS_SLOT_POLICY, {}, {"start": "False", "preempt": "True", "want_hold": "True"}]
        )
    )
    def policy_is_reloaded(self, knobs: dict[str, str]) -> None:
        self._feed(ev.PolicyReloaded(Policy(knobs)))

    @precondition(lambda self: self.beats)
    @rule(chance=CHANCE, evict=st.booleans())
    def operator_drains(self, chance: int, evict: bool) -> None:
        if chance == UNLIKELY:
            request_id = next(iter(self.beats))
            self.beats.pop(request_id)
            self._feed(ev.HeartbeatAnswered(request_id, commands=(ev.DrainCommanded("maintenance", evict),)))

    @rule(chance=CHANCE)
    def pilot_is_stopped(self, chance: int) -> None:
        if chance == UNLIKELY:
            self._feed(ev.StopRequested("SIGTERM"))

    @invariant()
    def payloads_are_killed_when_their_lease_ends(self) -> None:
        if not hasattr(self, "bench") or self.ended:
            return
        expired = {key for key in self.running if self.lease_ends[key] < self.bench.boot_s}
        assert expired <= self.killed, f"{expired - self.killed} run after the end of their leases"

    @invariant()
    def slots_in_use_never_exceed_the_share(self) -> None:
        if not hasattr(self, "bench"):
            return
        used = sum((self.jobs[key].amounts for key in self.running | self.preparing), NOTHING)
        assert used.fits_in(self.bench.machine.payloads.slots.total)

    @invariant()
    def each_attempt_has_one_outcome(self) -> None:
        if hasattr(self, "bench"):
            assert all(len(outcomes) == 1 for outcomes in self.outcomes.values()), self.outcomes

    def teardown(self) -> None:
        if not hasattr(self, "bench"):
            return
        self.bench.feed(ev.StopRequested("the test is over", at_once=True))
        self.bench.pass_time(200)
        assert self.bench.machine.phase is Phase.ENDED, "a stopped pilot always ends"
        done = [report for report in self.bench.reports() if report.state is ReportedState.DONE]
        assert all(report.outcome is not None for report in done)


TestPilotModel = PilotModel.TestCase
TestPilotModel.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)
