"""The ports of a pilot in memory (clock, server link, payload runner, node), and a real payload runner."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pilotage.errors import NotFoundError, PilotageError
from pilotage.job_description import InputFile
from pilotage.jobs.files import JobFaultError
from pilotage.values.amounts import NOTHING, Amounts
from pilotage.values.attempts import AttemptKey, Outcome, RenewedLease, ReportedOutput, ReportResult, TailStream
from pilotage.values.isolation import Isolation
from pilotage_pilot.core.ads.attributes import NodeSample
from pilotage_pilot.core.events import (
    Command,
    HeartbeatAnswered,
    JobsGranted,
    LimitPassed,
    PayloadExited,
    PayloadStarted,
    PoolsRead,
    StartFailed,
)
from pilotage_pilot.core.instructions import PrepareJob, RequestJobs, SendHeartbeat, Slot
from pilotage_pilot.core.model import GrantedJob, Now, Report, Usage
from pilotage_pilot.core.slots.states import Activity, SlotState
from pilotage_pilot.link.base import NodeDescription
from pilotage_pilot.node.resources import NodeShare
from pilotage_pilot.supervise.base import CollectedOutput, NodeFaultError, PayloadEvent, PayloadRunner, PayloadTime
from pilotage_pilot.supervise.cgroups import CgroupMaker
from pilotage_pilot.supervise.folders import PilotFolder
from pilotage_pilot.supervise.isolation import AccountRules, Confinement, IsolationRules, PayloadPaths, confine
from pilotage_pilot.supervise.monitor import PayloadRules
from pilotage_pilot.supervise.payload_runner import LocalPayloadRunner
from pilotage_pilot.supervise.runtimes import Containers
from pilotage_pilot.supervise.spawn import Launcher, PayloadSite
from support.payload_paths import SOFTWARE

EPOCH = datetime(2026, 11, 20, 12, tzinfo=UTC)


SITE = PayloadSite(
    f"pilot-of-test-{os.getpid()}", queue="S/C/Q", node="node1"
)  # other test runs must not kill these payloads


class FakeClocks:
    """A wall clock and a boot clock that the test advances together."""

    def __init__(self) -> None:
        self.passed_s = 0.0

    def now(self) -> datetime:
        return EPOCH + timedelta(seconds=self.passed_s)

    def boot_time_s(self) -> float:
        return 1000.0 + self.passed_s

    def advance(self, seconds: float) -> None:
        self.passed_s += seconds


@dataclass
class FakeServerLink:
    """A server in memory: waiting jobs are granted in order, as long as the first one fits a slot of the request."""

    files: dict[str, bytes] = field(default_factory=dict)
    waiting: deque[GrantedJob] = field(default_factory=deque)
    reports: list[Report] = field(default_factory=list)
    requests: list[RequestJobs] = field(default_factory=list)
    beats: list[SendHeartbeat] = field(default_factory=list)
    nodes: list[NodeDescription] = field(default_factory=list)
    commands: list[Command] = field(default_factory=list)
    failures: deque[PilotageError] = field(default_factory=deque)
    known: bool = True
    answers: dict[str, JobsGranted] = field(default_factory=dict)
    news: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def put(self, *jobs: GrantedJob) -> None:
        """Add waiting jobs."""
        async with self.news:
            self.waiting += jobs
            self.news.notify_all()

    async def command(self, command: Command) -> None:
        """Send a command with the next answer."""
        async with self.news:
            self.commands.append(command)
            self.news.notify_all()

    async def request_jobs(self, call: RequestJobs) -> JobsGranted:
        self.requests.append(call)
        if self.failures:
            raise self.failures.popleft()
        if call.request_id in self.answers:
            return self.answers[call.request_id]
        self._record(call.reports)
        async with self.news:
            try:
                async with asyncio.timeout(call.wait_s):
                    await self.news.wait_for(lambda: bool(self.waiting or self.commands))
            except TimeoutError:
                pass
            results = tuple(ReportResult(*report.key) for report in call.reports)
            granted = JobsGranted(call.request_id, self._fitting(call), results, commands=self._take_commands())
        if granted.jobs:
            self.answers[call.request_id] = granted
        return granted

    def _fitting(self, call: RequestJobs) -> tuple[GrantedJob, ...]:
        jobs = []
        for slot in call.slots:
            free, ahead = slot.free, slot.ahead
            while self.waiting and self.waiting[0].amounts.fits_in(free):
                jobs.append(replace(self.waiting.popleft(), slot=slot.name))
                if slot.partitionable:
                    free = free - jobs[-1].amounts
                elif ahead:
                    ahead -= 1
                else:
                    free = NOTHING
        return tuple(jobs)

    async def beat(self, call: SendHeartbeat, node: NodeDescription) -> HeartbeatAnswered:
        self.beats.append(call)
        if call.slots is not None:
            self.nodes.append(node)
        if self.failures:
            raise self.failures.popleft()
        self._record(call.reports)
        return HeartbeatAnswered(
            call.request_id,
            tuple(RenewedLease(*key, timedelta(seconds=1200.0)) for key in call.leases),
            results=tuple(ReportResult(*report.key) for report in call.reports),
            commands=self._take_commands(),
            next_s=30.0,
        )

    def _record(self, reports: tuple[Report, ...]) -> None:
        self.reports += reports

    def _take_commands(self) -> tuple[Command, ...]:
        taken, self.commands = tuple(self.commands), []
        return taken

    async def read_pools(self) -> PoolsRead:
        return PoolsRead(self.known)

    async def download(self, job_id: int, checksum: str) -> AsyncIterator[bytes]:
        if checksum not in self.files:
            raise NotFoundError("content", checksum)
        yield self.files[checksum]

    async def post_tail(self, stream: TailStream, offset: int, content: bytes) -> bool:
        raise AssertionError(f"{stream} is not followed")

    async def upload(self, path: Path, checksum: str, size: int) -> None:
        content = _read(path)[:size]
        assert hashlib.sha256(content).hexdigest() == checksum
        self.files[checksum] = content

    async def close(self) -> None:
        return


def _read(path: Path) -> bytes:
    return path.read_bytes()


class FakeNode:
    """A node with the faults and the sample that the test sets."""

    def __init__(self, amounts: Amounts, *faults: str) -> None:
        self._amounts = amounts
        self._faults = faults
        self._claim_ends: dict[str, datetime] = {}
        self.now = NodeSample(1000.0)

    def share(self) -> NodeShare:
        return NodeShare(self._amounts, (), None, "node1", ())

    def sample(self, times: Iterable[PayloadTime]) -> NodeSample:
        return replace(self.now, condor_loads={time.slot: 1.0 for time in times})

    def claim_ends(self) -> Mapping[str, datetime]:
        return self._claim_ends

    def store_claim_ends(self, ends: Mapping[str, datetime]) -> None:
        self._claim_ends = dict(ends)

    async def faults(self) -> tuple[str, ...]:
        return self._faults


class FakePayloadRunner:
    """Runs no processes. `true` ends at once, `sleep` when it is stopped; other programs do not exist."""

    isolation = Isolation.NAMESPACE

    def __init__(self) -> None:
        self.running: dict[AttemptKey, GrantedJob] = {}
        self.prepared: dict[AttemptKey, PrepareJob] = {}
        self.suspended: set[AttemptKey] = set()
        self.warned: dict[AttemptKey, float] = {}
        self.deadlines: dict[AttemptKey, float] = {}
        self.closed = False
        self.wrapper: Path | None = None
        self._publish: Callable[[PayloadEvent], None] | None = None

    @property
    def has_accounts(self) -> bool:
        return False

    def subscribe(self, publish: Callable[[PayloadEvent], None]) -> None:
        self._publish = publish

    def wrap(self, wrapper: Path | None) -> None:
        self.wrapper = wrapper

    def prepare(self, order: PrepareJob) -> None:
        self.prepared[order.job.key] = order

    async def fetch(self, key: AttemptKey) -> None:
        assert key in self.prepared

    def set_deadline(self, key: AttemptKey, boot_s: float) -> None:
        self.deadlines[key] = boot_s

    def start(self, key: AttemptKey, now: Now) -> None:
        job = self.prepared[key].job
        program = job.description.executable.rpartition("/")[2]
        if program not in ("true", "sleep"):
            raise JobFaultError(f"there is no program {program}")
        self.running[key] = job
        if self._publish is not None:
            self._publish(PayloadStarted(key, now))
        if program == "true":
            asyncio.get_running_loop().call_soon(self._end, key, 0, None)

    def _end(self, key: AttemptKey, exit_code: int | None, number: int | None) -> None:
        if self.running.pop(key, None) is not None and self._publish is not None:
            self._publish(PayloadExited(key, exit_code, number, Usage(0.1, 1)))

    def stop(self, key: AttemptKey) -> None:
        asyncio.get_running_loop().call_soon(self._end, key, None, 15)

    def kill(self, key: AttemptKey) -> None:
        asyncio.get_running_loop().call_soon(self._end, key, None, 9)

    def suspend(self, key: AttemptKey) -> None:
        self.suspended.add(key)

    def resume(self, key: AttemptKey) -> None:
        self.suspended.discard(key)

    def warn(self, key: AttemptKey, left_s: float) -> None:
        self.warned[key] = left_s

    def cpu_times(self) -> tuple[PayloadTime, ...]:
        return tuple(PayloadTime(key, self.prepared[key].slot.name, 0.1) for key in self.running)

    def usages(self) -> dict[AttemptKey, Usage]:
        return {}

    def stream_path(self, stream: TailStream) -> Path | None:
        return None

    def collect_now(self, key: AttemptKey, *, is_partial: bool = False) -> CollectedOutput | None:
        content = b""
        checksum = hashlib.sha256(content).hexdigest()
        return CollectedOutput(tuple(ReportedOutput(name, checksum, 0, content) for name in ("stdout", "stderr")))

    async def collect(self, key: AttemptKey, *, is_partial: bool = False) -> CollectedOutput:
        raise AssertionError(f"unexpected long search for the output of {key}")

    async def upload_large(self, key: AttemptKey, left: CollectedOutput) -> CollectedOutput:
        raise AssertionError(f"unexpected large output of {key}: {left}")

    def remove(self, key: AttemptKey, removed: Callable[[], None] | None = None) -> None:
        self.prepared.pop(key, None)
        if removed is not None:
            removed()

    async def close(self) -> None:
        for key in tuple(self.running):
            self._end(key, None, 9)
        self.closed = True


class BrokenPayloadRunner(FakePayloadRunner):
    """Raises an unexpected error in the step `breaks` of job 1; "bring" is the upload of large output.

    "search" is the search for output in a thread.
    """

    def __init__(self, breaks: str) -> None:
        super().__init__()
        self._breaks = breaks

    def _may_break(self, step: str, key: AttemptKey) -> None:
        if step == self._breaks and key.job_id == 1:
            raise RecursionError("a path without end")

    def prepare(self, order: PrepareJob) -> None:
        self._may_break("prepare", order.job.key)
        super().prepare(order)

    async def fetch(self, key: AttemptKey) -> None:
        self._may_break("fetch", key)

    def start(self, key: AttemptKey, now: Now) -> None:
        self._may_break("start", key)
        super().start(key, now)

    def collect_now(self, key: AttemptKey, *, is_partial: bool = False) -> CollectedOutput | None:
        self._may_break("collect", key)
        left = super().collect_now(key, is_partial=is_partial)
        if left is None or self._breaks == "search":
            return None
        return replace(left, large={"core": Path("core")}) if self._breaks == "bring" else left

    async def collect(self, key: AttemptKey, *, is_partial: bool = False) -> CollectedOutput:
        self._may_break("search", key)
        return CollectedOutput()

    async def upload_large(self, key: AttemptKey, left: CollectedOutput) -> CollectedOutput:
        self._may_break("bring", key)
        return replace(left, large={})


def a_slot(job: GrantedJob) -> Slot:
    now = Now(EPOCH, 1000.0)
    return Slot("slot1_1", SlotState.CLAIMED, Activity.IDLE, job.amounts, Amounts(), now, now, job.key)


def a_prepare_job(job: GrantedJob, **more: Any) -> PrepareJob:
    return PrepareJob(job, a_slot(job), **more)


class PayloadBench:
    """A payload runner and the events that it has published."""

    def __init__(self, payload_runner: PayloadRunner, link: FakeServerLink, folder: Path) -> None:
        self.payload_runner = payload_runner
        self.link = link
        self.folder = folder
        self.events: asyncio.Queue[PayloadEvent] = asyncio.Queue()
        self._begun: dict[AttemptKey, asyncio.Future[None]] = {}
        payload_runner.subscribe(self._publish)

    def _publish(self, event: PayloadEvent) -> None:
        match event:
            case PayloadStarted(key):
                self._begun[key].set_result(None)
            case StartFailed(key, outcome, reason):
                refused = outcome is Outcome.REFUSED_BY_JOB
                self._begun[key].set_exception(JobFaultError(reason) if refused else NodeFaultError(reason))
            case PayloadExited(key, began=began) if began is not None:
                self._begun[key].set_result(None)
                self.events.put_nowait(event)
            case _:
                self.events.put_nowait(event)

    def an_input(self, name: str, content: bytes, *, executable: bool = False) -> InputFile:
        """Return an input file that the server stores."""
        checksum = hashlib.sha256(content).hexdigest()
        self.link.files[checksum] = content
        return InputFile(name, None, checksum, len(content), executable)

    async def prepare(self, job: GrantedJob, **order: Any) -> None:
        """Prepare a job with its files; `order` are other fields of the instruction."""
        self.payload_runner.prepare(a_prepare_job(job, **order))
        await self.payload_runner.fetch(job.key)

    async def start(self, job: GrantedJob, **order: Any) -> AttemptKey:
        """Prepare and start a job; `order` as in `prepare`."""
        await self.prepare(job, **order)
        await self.launch(job.key)
        return job.key

    async def launch(self, key: AttemptKey) -> None:
        """Start a prepared attempt; raises JobFaultError or NodeFaultError."""
        self._begun[key] = asyncio.get_running_loop().create_future()
        self.payload_runner.start(key, Now(EPOCH, 1000.0))
        async with asyncio.timeout(20):
            await self._begun[key]

    async def next_event(self) -> PayloadEvent:
        async with asyncio.timeout(20):
            return await self.events.get()

    async def next_exit(self) -> PayloadExited:
        """Wait for the end of a payload, which must be the next event."""
        event = await self.next_event()
        assert isinstance(event, PayloadExited), event
        return event

    async def limit_passed(self) -> LimitPassed:
        event = await self.next_event()
        assert isinstance(event, LimitPassed), event
        return event

    async def run(self, job: GrantedJob, **order: Any) -> tuple[PayloadExited, dict[str, ReportedOutput], str]:
        """Run a job to its end; returns the exit, the output by name, and the notes for its owner."""
        await self.start(job, **order)
        end = await self.next_exit()
        files, notes = await self.store(job.key)
        return end, files, notes

    async def store(self, key: AttemptKey) -> tuple[dict[str, ReportedOutput], str]:
        """Store the output of an attempt; returns it by name, and the notes for the owner."""
        left = self.payload_runner.collect_now(key) or await self.payload_runner.collect(key)
        stored = await self.payload_runner.upload_large(key, left) if left.large else left
        return {file.name: file for file in stored.files}, "; ".join(stored.notes)

    @property
    def cache(self) -> Path:
        """The folder of cached input files."""
        return next(self.folder.glob("*/cache"))

    def work_folder(self, key: AttemptKey) -> Path:
        return next(self.folder.glob(f"*/jobs/{key}/work"))


def a_confinement(
    folder: PilotFolder,
    level: Isolation = Isolation.NAMESPACE,
    *visible: Path,
    hidden: tuple[Path, ...] = (),
    accounts: AccountRules = AccountRules(),  # noqa: B008 - it is frozen
) -> Confinement:
    """Return a confinement of this level for the pilot with this folder, and paths that payloads see or do not see."""
    paths = PayloadPaths.of((folder.path.parent, Path("~"), *hidden), (*SOFTWARE, *visible), ())
    confinement, _ = confine(IsolationRules(level, paths, accounts=accounts), Launcher(), folder.jobs)
    return confinement


def a_local_payload_runner(
    folder: PilotFolder,
    link: FakeServerLink,
    handling: PayloadRules | None = None,
    groups: CgroupMaker | None = None,
    confinement: Confinement | None = None,
    containers: Containers | None = None,
) -> LocalPayloadRunner:
    rules = handling or PayloadRules(watch_s=0.05)
    confinement = confinement or a_confinement(folder)
    return LocalPayloadRunner(folder, link, SITE, rules, groups, confinement, containers=containers)


@asynccontextmanager
async def a_payload_runner(
    folder: Path,
    handling: PayloadRules | None = None,
    groups: CgroupMaker | None = None,
    *,
    level: Isolation = Isolation.NAMESPACE,
    accounts: AccountRules = AccountRules(),  # noqa: B008 - it is frozen
) -> AsyncIterator[PayloadBench]:
    link = FakeServerLink()
    pilot_folder = PilotFolder(folder)
    confinement = a_confinement(pilot_folder, level, accounts=accounts)
    payload_runner = a_local_payload_runner(pilot_folder, link, handling, groups, confinement)
    try:
        yield PayloadBench(payload_runner, link, folder)
    finally:
        await payload_runner.close()
