"""A shell that does what a pilot's machine says, for tests of the machine: it asserts what must never be said."""

from __future__ import annotations

from collections.abc import Set
from datetime import timedelta
from typing import Any

from pilotage.job_description import JobDescription
from pilotage.values.amounts import Amounts
from pilotage.values.attempts import AttemptKey, LostLease, Outcome, RenewedLease, ReportResult
from pilotage_pilot.core import events as ev
from pilotage_pilot.core import instructions as ins
from pilotage_pilot.core.lifetime import Phase
from pilotage_pilot.core.model import GrantedJob
from support.pilot_bench import PilotBench


class ObedientShell:
    """Keeps what is under way on the node, and what the server has granted and not answered yet."""

    def serve(self, bench: PilotBench) -> None:
        """Do what this machine says from now on."""
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
        self.heard = 0
        self.next_job = 0
        self.ended = False
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
            case ins.SuspendPayload(key):
                assert key in self.running - self.suspended
                self.suspended.add(key)
            case ins.ContinuePayload(key):
                assert key in self.suspended
                self.suspended.discard(key)
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
        before = len(self.bench.said)
        self._feed(ev.JobPrepared(key))
        if ins.StartPayload(key) in self.bench.said[before:]:
            self.preparing.discard(key)
            self.running.add(key)
            self._feed(ev.PayloadStarted(key))

    def _exits(self, key: AttemptKey, code: int | None, signal: int | None) -> None:
        self.running.discard(key)
        self.suspended.discard(key)
        self._feed(ev.PayloadExited(key, code, signal))
