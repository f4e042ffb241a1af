"""A pilot's machine on the bench: the test is its shell, its server and its clock."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from pilotage.job_description import JobDescription
from pilotage_pilot.core import events as ev
from pilotage_pilot.core.amounts import Amounts
from pilotage_pilot.core.instructions import Instruction, RequestJobs, SendHeartbeat
from pilotage_pilot.core.jobs import AttemptKey, GrantedJob, Outcome, Report, ReportResult
from pilotage_pilot.core.machine import PilotMachine
from pilotage_pilot.core.moment import Moment
from pilotage_pilot.core.rules import Lifetime, Rules
from pilotage_pilot.core.slots import Partition

START = datetime(2026, 11, 20, 12, tzinfo=UTC)
BOOT_S = 5_000.0
Kind = TypeVar("Kind")


def a_job(
    job_id: int = 1,
    attempt: int = 1,
    *,
    cpus: int = 1,
    memory_mib: int = 0,
    lease_s: float = 1200.0,
    **description: Any,
) -> GrantedJob:
    return GrantedJob(
        key=AttemptKey(job_id, attempt),
        slot="slot1",
        lease_s=lease_s,
        description=JobDescription(**{"executable": "/bin/true", **description}),
        amounts=Amounts(cpus, memory_mib),
    )


ONE = a_job(1)
TWO = a_job(2)


def transient(why: str = "no answer") -> ev.Failure:
    return ev.Failure(ev.FailureKind.TRANSIENT, why)


class PilotBench:
    """Feeds events to a machine, keeps what it said, and validates it after every step."""

    def __init__(
        self,
        cpus: int = 4,
        memory_mib: int = 8000,
        gpus: int = 0,
        rules: Rules | None = None,
        ends_after_s: float | None = None,
        *,
        opened: bool = True,
        hears: bool = True,
    ) -> None:
        self.boot_s = BOOT_S
        self.hears = hears
        """Whether heartbeats are answered by themselves, all leases renewed."""
        share = Amounts(cpus, memory_mib, 10_000, gpus)
        ends = None if ends_after_s is None else BOOT_S + ends_after_s
        partition = Partition(share, tuple(str(gpu) for gpu in range(gpus)), self.now)
        self.machine = PilotMachine("pilot", partition, rules or Rules(), Lifetime(ends), self.now)
        self.said: list[Instruction] = []
        self.unread = list(self.machine.begin(self.now))
        self.said += self.unread
        if hears:
            self.answer_beat()
        if opened:
            self.open()

    @property
    def now(self) -> Moment:
        return Moment(START + timedelta(seconds=self.after_s), self.boot_s)

    @property
    def after_s(self) -> float:
        return self.boot_s - BOOT_S

    def open(self) -> None:
        """Let the node be valid, the pools be known, the first heartbeat be answered."""
        self.feed(ev.NodeValidated())
        self.feed(ev.PoolsRead(True, ("a" * 64,)))

    def feed(self, event: ev.Event) -> tuple[Instruction, ...]:
        instructions = self.machine.handle(event, self.now)
        self.machine.validate()
        self.said += instructions
        self.unread += instructions
        beats = [said for said in instructions if isinstance(said, SendHeartbeat)]
        if self.hears and beats:
            return instructions + self.answer_beat()
        return instructions

    def pass_time(self, seconds: float) -> tuple[Instruction, ...]:
        """Let time pass, as the shell does: an event at every alarm on the way."""
        heard: list[Instruction] = []
        end = self.boot_s + seconds
        while (alarm := self.machine.alarm_boot_s(self.now)) <= end:
            self.boot_s = max(self.boot_s, alarm)
            heard += self.feed(ev.TimePassed())
            assert self.machine.alarm_boot_s(self.now) > self.boot_s, "nothing was done about an alarm"
        self.boot_s = end
        heard += self.feed(ev.TimePassed())
        return tuple(heard)

    def take(self, kind: type[Kind]) -> list[Kind]:
        """Return what was said of this kind since it was last asked for."""
        found: list[Kind] = [instruction for instruction in self.unread if isinstance(instruction, kind)]
        self.unread = [instruction for instruction in self.unread if not isinstance(instruction, kind)]
        return found

    def one(self, kind: type[Kind]) -> Kind:
        found = self.take(kind)
        assert len(found) == 1, f"one {kind.__name__} was expected: {found}"
        return found[0]

    def grant(self, *jobs: GrantedJob) -> tuple[Instruction, ...]:
        """Answer the request that waits with these jobs."""
        call = self.one(RequestJobs)
        return self.feed(ev.JobsGranted(call.request_id, jobs, accepted(call.reports)))

    def run(self, *jobs: GrantedJob) -> None:
        """Grant these jobs and let them run."""
        self.grant(*jobs)
        for job in jobs:
            self.feed(ev.JobPrepared(job.key))
            self.feed(ev.PayloadStarted(job.key))

    def exit(self, job: GrantedJob, exit_code: int = 0) -> tuple[Instruction, ...]:
        return self.feed(ev.PayloadExited(job.key, exit_code, None))

    def answer_beat(self, **answer: Any) -> tuple[Instruction, ...]:
        """Answer the last heartbeat; all that it held is renewed unless `answer` says else."""
        beat = [said for said in self.said if isinstance(said, SendHeartbeat)][-1]
        self.take(SendHeartbeat)
        renewed = tuple(ev.RenewedLease(key, 1200.0) for key in beat.leases)
        fields: dict[str, Any] = {"renewed": renewed, "results": accepted(beat.reports), "next_s": 30.0} | answer
        return self.feed(ev.HeartbeatAnswered(beat.request_id, **fields))

    def reports(self) -> list[Report]:
        """Return every report in what was said so far, oldest first."""
        calls = [call for call in self.said if isinstance(call, RequestJobs | SendHeartbeat)]
        return [report for call in calls for report in call.reports]

    def outcome(self, job: GrantedJob) -> Outcome | None:
        """Return the outcome that was last reported of a job."""
        outcomes = [report.outcome for report in self.reports() if report.key == job.key]
        return outcomes[-1] if outcomes else None


def accepted(reports: Iterable[Report]) -> tuple[ReportResult, ...]:
    return tuple(ReportResult(report.key, True) for report in reports)
