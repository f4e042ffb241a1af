"""Whatever happens, in whatever order, the pilot's machine keeps its word."""

from __future__ import annotations

from datetime import timedelta

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pilotage.job_description import JobDescription
from pilotage_pilot.core import events as ev
from pilotage_pilot.core import instructions as ins
from pilotage_pilot.core.amounts import NOTHING, Amounts
from pilotage_pilot.core.departure import Phase
from pilotage_pilot.core.jobs import AttemptKey, GrantedJob, Outcome, ReportedState, ReportResult
from pilotage_pilot.core.rules import Rules
from support.pilot_bench import PilotBench

KINDS = st.sampled_from(ev.FailureKind)
RULES = Rules(grace_s=5, max_idle_s=50, wait_s=10, heartbeat_s=8, store_patience_s=30, unreachable_s=90)


class PilotWorld(RuleBasedStateMachine):
    """A shell, a server and a node that answer when and how they like."""

    @initialize(cpus=st.integers(1, 4), ends=st.none() | st.integers(100, 600))
    def begin(self, cpus: int, ends: int | None) -> None:
        self.bench = PilotBench(cpus, 4000, rules=RULES, ends_after_s=ends, opened=False, hears=False)
        self.calls: dict[str, ins.RequestJobs] = {}
        self.beats: dict[str, ins.SendHeartbeat] = {}
        self.lease_ends: dict[AttemptKey, float] = {}
        self.jobs: dict[AttemptKey, GrantedJob] = {}
        self.running: set[AttemptKey] = set()
        self.preparing: set[AttemptKey] = set()
        self.storing: set[AttemptKey] = set()
        self.killed: set[AttemptKey] = set()
        self.outcomes: dict[AttemptKey, set[Outcome]] = {}
        self.heard = 0
        self.next_job = 0
        self.ended = False
        self._do()
        self.bench.feed(ev.NodeValidated())
        self.bench.feed(ev.PoolsRead(True))
        self._do()

    def _do(self) -> None:
        """Do as a shell does what the machine has said since."""
        new, self.heard = self.bench.said[self.heard :], len(self.bench.said)
        for said in new:
            assert not self.ended, f"the pilot has ended and says {said}"
            self._do_one(said)
        assert len(self.beats) <= 1 or self.bench.machine.phase in (Phase.LEAVING, Phase.ENDED)

    def _do_one(self, said: ins.Instruction) -> None:  # noqa: C901 - one case an instruction
        match said:
            case ins.RequestJobs(request_id):
                first = self.calls.setdefault(request_id, said)
                assert (first.slots, first.reports) == (said.slots, said.reports), "a repetition differs"
                self._told()
            case ins.SendHeartbeat():
                self.beats[said.request_id] = said
                self._told()
            case ins.PrepareJob(job):
                self.preparing.add(job.key)
            case ins.StartPayload(key):
                assert key in self.preparing
            case ins.KillPayload(key):
                self.killed.add(key)
            case ins.StoreOutput(key):
                self.storing.add(key)
            case ins.ForgetAttempt(key):
                assert key not in self.running, "a payload that runs is forgotten"
                self.preparing.discard(key)
                self.storing.discard(key)
            case ins.EndPilot():
                self.ended = True
            case _:
                pass

    def _told(self) -> None:
        for report in self.bench.reports():
            if report.outcome is not None:
                self.outcomes.setdefault(report.key, set()).add(report.outcome)

    def _feed(self, event: ev.Event) -> None:
        self.bench.feed(event)
        self._do()

    @rule(seconds=st.sampled_from([0.01, 0.2, 1.0, 5.0, 20.0, 100.0]))
    def time_passes(self, seconds: float) -> None:
        self.bench.pass_time(seconds)
        self._do()

    @precondition(lambda self: self.calls)
    @rule(data=st.data())
    def server_grants(self, data: st.DataObject) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.calls)))
        call = self.calls.pop(request_id)
        jobs = tuple(self._new_job(data, call) for _ in range(data.draw(st.integers(0, 3))))
        results = tuple(ReportResult(report.key, data.draw(st.booleans())) for report in call.reports)
        self._feed(ev.JobsGranted(request_id, jobs, results, pools_changed=data.draw(st.booleans())))

    def _new_job(self, data: st.DataObject, call: ins.RequestJobs) -> GrantedJob:
        self.next_job += 1
        amounts = Amounts(data.draw(st.integers(1, 3)), data.draw(st.integers(0, 3000)))
        wall = data.draw(st.none() | st.just(timedelta(seconds=10)))
        lease = data.draw(st.sampled_from([2.0, 30.0, 300.0]))
        job = GrantedJob(
            AttemptKey(self.next_job, 1), "slot1", lease, JobDescription("/bin/true", wall_time=wall), amounts
        )
        self.jobs[job.key] = job
        self.lease_ends[job.key] = self.bench.boot_s + lease
        return job

    @precondition(lambda self: self.calls)
    @rule(data=st.data(), kind=KINDS)
    def request_fails(self, data: st.DataObject, kind: ev.FailureKind) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.calls)))
        if kind is not ev.FailureKind.TRANSIENT:
            del self.calls[request_id]
        self._feed(ev.RequestFailed(request_id, ev.Failure(kind, "no")))

    @precondition(lambda self: self.beats)
    @rule(data=st.data())
    def server_hears(self, data: st.DataObject) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.beats)))
        beat = self.beats.pop(request_id)
        lost = {key for key in beat.leases if data.draw(st.integers(0, 9)) == 0}
        renewed = tuple(ev.RenewedLease(key, 60.0) for key in beat.leases if key not in lost)
        for renewal in renewed:
            self.lease_ends[renewal.key] = self.bench.boot_s + 60.0
        results = tuple(ReportResult(report.key, data.draw(st.booleans())) for report in beat.reports)
        losses = tuple(ev.LostLease(key, "lost") for key in lost)
        self._feed(ev.HeartbeatAnswered(request_id, renewed, losses, results, next_s=8))

    @precondition(lambda self: self.beats)
    @rule(data=st.data(), kind=KINDS)
    def heartbeat_fails(self, data: st.DataObject, kind: ev.FailureKind) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.beats)))
        del self.beats[request_id]
        self._feed(ev.HeartbeatFailed(request_id, ev.Failure(kind, "no")))

    @precondition(lambda self: self.preparing)
    @rule(data=st.data(), outcome=st.sampled_from([None, Outcome.START_FAILED, Outcome.REFUSED_BY_JOB]))
    def job_is_prepared(self, data: st.DataObject, outcome: Outcome | None) -> None:
        key = data.draw(st.sampled_from(sorted(self.preparing)))
        if outcome is not None:
            self.preparing.discard(key)
            self._feed(ev.StartFailed(key, outcome, "no"))
            return
        before = len(self.bench.said)
        self._feed(ev.JobPrepared(key))
        if ins.StartPayload(key) in self.bench.said[before:]:
            self.preparing.discard(key)
            self.running.add(key)
            self._feed(ev.PayloadStarted(key))

    @precondition(lambda self: self.running)
    @rule(data=st.data(), code=st.integers(0, 3))
    def payload_exits(self, data: st.DataObject, code: int) -> None:
        key = data.draw(st.sampled_from(sorted(self.running)))
        self.running.discard(key)
        self._feed(ev.PayloadExited(key, code, None))

    @precondition(lambda self: self.running & self.killed)
    @rule()
    def kills_work(self) -> None:
        for key in sorted(self.running & self.killed):
            self.running.discard(key)
            self._feed(ev.PayloadExited(key, None, 9))

    @precondition(lambda self: self.storing)
    @rule(data=st.data(), works=st.booleans())
    def output_is_stored(self, data: st.DataObject, works: bool) -> None:
        key = data.draw(st.sampled_from(sorted(self.storing)))
        self.storing.discard(key)
        failure = ev.Failure(ev.FailureKind.TRANSIENT, "no")
        self._feed(ev.OutputStored(key) if works else ev.OutputFailed(key, failure))

    @precondition(lambda self: self.jobs)
    @rule(data=st.data())
    def command_comes(self, data: st.DataObject) -> None:
        if not self.beats:
            return
        key = data.draw(st.sampled_from(sorted(self.jobs)))
        request_id = next(iter(self.beats))
        beat = self.beats.pop(request_id)
        results = tuple(ReportResult(report.key, True) for report in beat.reports)
        self._feed(ev.HeartbeatAnswered(request_id, results=results, commands=(ev.KillCommanded(key, "removed"),)))

    @rule(suspend=st.booleans())
    def batch_system_suspends(self, suspend: bool) -> None:
        self._feed(ev.SuspendRequested() if suspend else ev.ContinueRequested())

    @rule(lot=st.integers(0, 40))
    def pilot_is_stopped(self, lot: int) -> None:
        if lot == 0:
            self._feed(ev.StopRequested("SIGTERM"))

    @invariant()
    def no_payload_outlives_its_lease_unkilled(self) -> None:
        if not hasattr(self, "bench") or self.ended:
            return
        over = {key for key in self.running if self.lease_ends[key] < self.bench.boot_s}
        assert over <= self.killed, f"{over - self.killed} run though their leases have ended"

    @invariant()
    def slots_in_use_never_exceed_the_share(self) -> None:
        if not hasattr(self, "bench"):
            return
        used = sum((self.jobs[key].amounts for key in self.running | self.preparing), NOTHING)
        assert used.fits_in(self.bench.machine.payloads.partition.share)

    @invariant()
    def an_attempt_has_one_outcome(self) -> None:
        if hasattr(self, "bench"):
            assert all(len(outcomes) == 1 for outcomes in self.outcomes.values()), self.outcomes

    def teardown(self) -> None:
        if not hasattr(self, "bench"):
            return
        self.bench.feed(ev.StopRequested("the test is over", at_once=True))
        self.bench.pass_time(200)
        assert self.bench.machine.phase is Phase.ENDED, "a pilot that is told to stop ends, whatever is the matter"
        done = [report for report in self.bench.reports() if report.state is ReportedState.DONE]
        assert all(report.outcome is not None for report in done)


TestPilotWorld = PilotWorld.TestCase
TestPilotWorld.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)
