"""A node in virtual time: a real pilot machine with simulated payloads and a server in the same process."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Protocol, assert_never

from pilotage.values.attempts import AttemptKey
from pilotage_pilot.core import events as ev
from pilotage_pilot.core import instructions as ins
from pilotage_pilot.core.ads.attributes import NodeSample
from pilotage_pilot.core.instructions import Slot
from pilotage_pilot.core.machine import PilotMachine
from pilotage_pilot.core.model import GrantedJob, Now
from pilotage_pilot.core.node.node_slots import NodeSlots

NEVER = float("inf")
SIGTERM, SIGKILL = 15, 9


class NodeServer(Protocol):
    """The calls of a node's shell to the server."""

    def request_jobs(self, call: ins.RequestJobs) -> ev.JobsGranted:
        """Answer a request for jobs at once, without a long poll."""

    def beat(self, call: ins.SendHeartbeat) -> ev.HeartbeatAnswered:
        """Answer a heartbeat."""

    def pools(self) -> ev.PoolsRead:
        """Return the pools of the node's queue."""


@dataclass
class Payload:
    """A payload that needs `left_s` more of run time, and ends `term_s` after SIGTERM."""

    job: GrantedJob
    prepared: ins.PrepareJob
    left_s: float
    term_s: float = 0.0
    since: datetime | None = None
    """The time since which it runs; None = it has not started or is suspended."""
    ends: datetime | None = None
    """The time of its end after SIGTERM."""
    deadline: datetime | None = None
    """The time at which the watchdog kills it."""

    def due(self) -> datetime | None:
        """Return the time of its end without further signals; None = never."""
        natural_end = None if self.since is None else self.since + timedelta(seconds=self.left_s)
        return min((each for each in (natural_end, self.ends, self.deadline) if each is not None), default=None)

    def hold(self, now: datetime) -> None:
        """Suspend the payload."""
        if self.since is not None:
            self.left_s -= (now - self.since).total_seconds()
            self.since = None


@dataclass
class WaitingCall:
    """A long poll that ends at `end`; `first` = the answer to its reports."""

    call: ins.RequestJobs
    end: datetime
    first: ev.JobsGranted | None = None


@dataclass
class OwnerActivity:
    """The load and idle time that the owner of a node causes."""

    owner_load: float = 0.0
    keyboard_idle_s: int | None = None

    def sample(self, boot_s: float, busy: Mapping[str, float]) -> NodeSample:
        """Return a sample of the node; `busy` is the load of jobs by slot."""
        load = self.owner_load + sum(busy.values())
        idle = self.keyboard_idle_s
        return NodeSample(boot_s, load, dict(busy), keyboard_idle_s=idle, console_idle_s=idle)


@dataclass
class VirtualNode:
    """A pilot with its node; `clock` is that of the grid. The caller calls `start`, then `advance` when due."""

    name: str
    clock: Callable[[], datetime]
    server: NodeServer
    node_slots: NodeSlots
    machine: PilotMachine
    booted: datetime
    owner_activity: OwnerActivity = field(default_factory=OwnerActivity)
    payloads: dict[AttemptKey, Payload] = field(default_factory=dict)
    waiting: dict[str, WaitingCall] = field(default_factory=dict)
    events: deque[ev.Event] = field(default_factory=deque)
    history: list[ins.Instruction] = field(default_factory=list)
    claim_ends: Mapping[str, datetime] = field(default_factory=dict)
    """What a later pilot on the node knows of this one's claims."""
    ended: ins.EndPilot | None = None
    busy: bool = False

    @property
    def now(self) -> Now:
        """The current time of the node's clocks."""
        return node_time(self.clock, self.booted)

    def start(self) -> None:
        self._do_all(self.machine.begin(self.now))
        self._pump()

    # Time -------------------------------------------------------------------------------------------------------

    def due(self) -> datetime | None:
        """Return the time of the next event of this node; None = never."""
        if self.ended is not None:
            return None
        alarm = self.machine.alarm_boot_s(self.now)
        times = [self.booted + _not_before(alarm)] if alarm < NEVER else []
        times += [each.end for each in self.waiting.values()]
        times += [end for payload in self.payloads.values() if (end := payload.due()) is not None]
        return min(times, default=None)

    def advance(self) -> None:
        """Handle all events that are due."""
        now = self.clock()
        for payload in tuple(self.payloads.values()):
            end = payload.due()
            if end is None or end > now:
                continue
            if end in (payload.ends, payload.deadline):
                self._exit(payload, None, SIGTERM if end == payload.ends else SIGKILL)
            else:
                self._exit(payload, 0, None)
        for waiting in tuple(self.waiting.values()):
            if waiting.end <= now:
                self._look(waiting, last=True)
        if self.ended is None and self.machine.alarm_boot_s(self.now) <= self.now.boot_s:
            self.feed(ev.TimePassed())

    def look(self) -> None:
        """Answer the long polls that have an answer now."""
        for waiting in tuple(self.waiting.values()):
            self._look(waiting, last=False)

    def feed(self, event: ev.Event) -> None:
        """Queue an event for the machine, and handle all queued events."""
        self.events.append(event)
        self._pump()

    def _pump(self) -> None:
        if self.busy:
            return
        self.busy = True
        while self.events:
            while self.events:
                instructions = self.machine.handle(self.events.popleft(), self.now)
                self.machine.validate()
                self._do_all(instructions)
            self._do_all(self.machine.advance(self.now))
            self.machine.validate()
        self.busy = False

    # Instructions -----------------------------------------------------------------------------------------------

    def _do_all(self, instructions: Iterable[ins.Instruction]) -> None:
        for instruction in instructions:
            self.history.append(instruction)
            self._do(instruction)

    def _do(self, instruction: ins.Instruction) -> None:
        match instruction:
            case ins.RequestJobs() | ins.RecallRequest() | ins.SendHeartbeat() | ins.ReadPools():
                self._call_server(instruction)
            case ins.ValidateNode():
                self.feed(ev.NodeValidated())
            case ins.SampleNode():
                self.feed(ev.NodeSampled(self.owner_activity.sample(self.now.boot_s, self._busy())))
            case ins.StoreClaimEnds(ends):
                self.claim_ends = ends
            case ins.ReportRefusedAttributes() | ins.ReportPolicyFaults() | ins.SendTails():
                pass
            case ins.EndPilot():
                self.ended = instruction
            case ins.SuspendPayload() | ins.ContinuePayload() | ins.StopPayload() | ins.WarnPayload():
                self._signal(instruction)
            case _:
                self._work(instruction)

    def _call_server(self, instruction: ins.ServerInstruction) -> None:
        match instruction:
            case ins.RequestJobs():
                waiting = WaitingCall(instruction, self.clock() + timedelta(seconds=instruction.wait_s))
                self.waiting[instruction.request_id] = waiting
                self._look(waiting, last=instruction.wait_s <= 0)
            case ins.RecallRequest(request_id):
                if request_id in self.waiting:
                    self._look(self.waiting[request_id], last=True)
            case ins.SendHeartbeat():
                self.feed(self.server.beat(instruction))
            case ins.ReadPools():
                self.feed(self.server.pools())
            case _:
                assert_never(instruction)

    def _look(self, waiting: WaitingCall, *, last: bool) -> None:
        call = waiting.call
        if call.request_id not in self.waiting:
            return
        answer = self.server.request_jobs(call)
        if waiting.first is None:
            # Reports are handled once; their results go with the final answer.
            waiting.first, waiting.call = answer, replace(call, reports=())
        found = answer.jobs or answer.commands or answer.vacate or answer.ad_parts_wanted or answer.node_attributes
        if found or last:
            del self.waiting[call.request_id]
            self.feed(replace(answer, results=waiting.first.results))

    def _signal(self, instruction: ins.SignalInstruction) -> None:
        payload, now = self.payloads[instruction.key], self.clock()
        match instruction:
            case ins.StopPayload():
                payload.hold(now)
                payload.ends = now + timedelta(seconds=payload.term_s)
            case ins.SuspendPayload():
                payload.hold(now)
            case ins.ContinuePayload():
                payload.since = now
            case ins.WarnPayload():
                pass
            case _:
                assert_never(instruction)

    def _work(self, instruction: ins.Instruction) -> None:
        match instruction:
            case ins.PrepareJob(job):
                run_s, _, term_s = job.description.arguments.partition(" ")
                self.payloads[job.key] = Payload(job, instruction, float(run_s), float(term_s or 0))
                self.feed(ev.JobPrepared(job.key))
            case ins.SetDeadline(key, boot_s):
                if key in self.payloads:
                    self.payloads[key].deadline = self.booted + timedelta(seconds=boot_s)
            case ins.StartPayload(key):
                self.payloads[key].since = self.clock()
                self.feed(ev.PayloadStarted(key))
            case ins.KillPayload(key):
                if key in self.payloads:
                    self._exit(self.payloads[key], None, SIGKILL)
            case ins.StoreOutput(key):
                self.feed(ev.OutputStored(key))
            case ins.ForgetAttempt(key, reports_removal):
                self.payloads.pop(key, None)
                if reports_removal:
                    self.feed(ev.FolderRemoved(key))
            case _:
                raise AssertionError(f"unknown instruction {instruction}")

    def _exit(self, payload: Payload, exit_code: int | None, signal: int | None) -> None:
        self.payloads.pop(payload.job.key, None)
        self.feed(ev.PayloadExited(payload.job.key, exit_code, signal))

    # State -----------------------------------------------------------------------------------------------------

    def _busy(self) -> dict[str, float]:
        running = [payload for payload in self.payloads.values() if payload.since is not None]
        slots = {slot.key: slot.name for slot in self.slots().values() if slot.key is not None}
        return {slots[each.job.key]: float(each.job.amounts.cpus) for each in running if each.job.key in slots}

    def slots(self) -> dict[str, Slot]:
        """Return the slots by name."""
        return {slot.name: slot for slot in self.node_slots.slots()}

    def state_and_activity(self, *names: str) -> list[str]:
        """Return state and activity of these slots, or of all, such as "Claimed/Busy"."""
        slots = self.slots()
        return [f"{slots[name].state}/{slots[name].activity}" for name in names or slots]

    def running(self) -> dict[str, int]:
        """Return the job in each occupied slot."""
        return {slot.name: slot.key.job_id for slot in self.slots().values() if slot.key is not None}

    def nice_of(self, job_id: int) -> int | None:
        """Return the nice value of a job's last preparation."""
        prepared = [each for each in self.history if isinstance(each, ins.PrepareJob) and each.job.key.job_id == job_id]
        return prepared[-1].nice


def _not_before(boot_s: float) -> timedelta:
    """Return a time of the boot clock in microseconds, rounded up: before its time an alarm has no effect."""
    microseconds = round(boot_s * 1e6)
    return timedelta(microseconds=microseconds if microseconds / 1e6 >= boot_s else microseconds + 1)


def node_time(clock: Callable[[], datetime], booted: datetime) -> Now:
    """Return the current time of a node that was booted at `booted`."""
    return Now(clock(), (clock() - booted).total_seconds())
