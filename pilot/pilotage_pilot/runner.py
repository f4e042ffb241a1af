"""The pilot's shell: executes the machine's instructions and feeds the results back as events.

Rules
-----
An unforeseen error of one attempt ends that attempt alone, as a failure of the node: other jobs run in this pilot, and
the job gets another chance elsewhere. Storing output is retried. The shell logs; the core does not.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, assert_never

import structlog

from pilotage.clock import BootClock, Clock
from pilotage.errors import PilotageError, WorldError
from pilotage.jobs.files import JobFaultError
from pilotage.telemetry import read_trace, trace_bound
from pilotage.values.attempts import AttemptKey, Outcome, TailStream
from pilotage_pilot.core import events as ev
from pilotage_pilot.core import instructions as ins
from pilotage_pilot.core.attempts.attempt import STARTED
from pilotage_pilot.core.events import PoolsRead
from pilotage_pilot.core.heartbeat import SentUsages
from pilotage_pilot.core.lifetime import NEVER
from pilotage_pilot.core.machine import PilotMachine
from pilotage_pilot.core.model import Now
from pilotage_pilot.link.base import MqttPublisher, NodeDescription, PilotServerLink, failure_of
from pilotage_pilot.node.resources import PilotNode
from pilotage_pilot.policy.loading import PolicyKeeper
from pilotage_pilot.supervise.base import (
    AccountFaultError,
    CollectedOutput,
    NodeFaultError,
    PayloadRunner,
    RegistryFaultError,
    start_failed,
)
from pilotage_pilot.supervise.tails import OutputTails
from pilotage_pilot.traces import AttemptTraces

log = structlog.get_logger()

REMOVE_AFTER_S = 0.02
"""Delay until the folder of an ended attempt is removed, so that its report and the next job come first."""

_LONGEST_REASON = 300

Start = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]
"""Starts a task that is cancelled at the end of the pilot."""


class PayloadTasks:
    """Executes the instructions for payloads and feeds the results back as events."""

    def __init__(
        self,
        payload_runner: PayloadRunner,
        start: Start,
        feed: Callable[[ev.Event], None],
        traces: AttemptTraces,
        now: Callable[[], Now],
    ) -> None:
        self._payload_runner = payload_runner
        self._traces = traces
        self._now = now
        self._start = start
        self._feed = feed
        self._tasks_by_attempt: dict[AttemptKey, asyncio.Task[None]] = {}

    def do(self, instruction: ins.PayloadInstruction) -> None:
        """Execute an instruction, or start a task for it."""
        match instruction:
            case ins.PrepareJob():
                self._prepare(instruction)
            case ins.SetDeadline(key, boot_s):
                self._payload_runner.set_deadline(key, boot_s)
            case ins.StartPayload(key):
                self._start_payload(key)
            case ins.KillPayload(key):
                self._kill(key)
            case ins.StoreOutput(key, is_partial):
                self._store(key, is_partial)
            case ins.ForgetAttempt(key, reports_removal):
                self._cancel(key)
                self._traces.end(key)
                removed = partial(self._feed, ev.FolderRemoved(key)) if reports_removal else None
                asyncio.get_running_loop().call_later(REMOVE_AFTER_S, self._payload_runner.remove, key, removed)
            case _:
                self._signal(instruction)

    def _signal(self, instruction: ins.SignalInstruction) -> None:
        match instruction:
            case ins.StopPayload(key):
                self._payload_runner.stop(key)
            case ins.SuspendPayload(key):
                self._payload_runner.suspend(key)
            case ins.ContinuePayload(key):
                self._payload_runner.resume(key)
            case ins.WarnPayload(key, left_s):
                self._payload_runner.warn(key, left_s)
            case _:
                assert_never(instruction)

    def _begin(self, key: AttemptKey, work: Coroutine[Any, Any, None]) -> None:
        task = self._start(work)
        self._tasks_by_attempt[key] = task
        task.add_done_callback(lambda done: self._forget_task(key, done))

    def _forget_task(self, key: AttemptKey, task: asyncio.Task[None]) -> None:
        if self._tasks_by_attempt.get(key) is task:
            del self._tasks_by_attempt[key]

    def _cancel(self, key: AttemptKey) -> bool:
        """Cancel the task of an attempt; False = there is none, or its work is done and it feeds the result now."""
        task = self._tasks_by_attempt.pop(key, None)
        return task is not None and task is not asyncio.current_task() and task.cancel()

    def _prepare(self, instruction: ins.PrepareJob) -> None:
        key = instruction.job.key
        self._traces.begin(instruction.job)
        try:
            self._payload_runner.prepare(instruction)
        except Exception as error:
            self._feed(_start_failed(key, error))
            return
        description = instruction.job.description
        if description.input_files or description.image is not None or self._payload_runner.has_accounts:
            self._begin(key, self._fetch(key))
        else:
            self._feed(ev.JobPrepared(key))

    async def _fetch(self, key: AttemptKey) -> None:
        try:
            with self._traces.bound(key):  # not longer: what the event begins belongs to no attempt
                await self._payload_runner.fetch(key)
        except Exception as error:
            self._feed(_start_failed(key, error))
        else:
            self._feed(ev.JobPrepared(key))

    def _start_payload(self, key: AttemptKey) -> None:
        try:
            self._payload_runner.start(key, self._now())
        except Exception as error:
            self._feed(_start_failed(key, error))

    def _kill(self, key: AttemptKey) -> None:
        if self._cancel(key):
            self._feed(ev.StartFailed(key, Outcome.START_FAILED, "it was stopped before its start"))
        else:
            self._payload_runner.kill(key)

    def _store(self, key: AttemptKey, is_partial: bool) -> None:
        """Store the output of an attempt at once, or in a task where that takes long."""
        try:
            with self._traces.bound(key):
                left = self._payload_runner.collect_now(key, is_partial=is_partial)
        except Exception as error:
            self._feed(_not_stored(key, error))
            return
        if left is None or left.large:
            self._begin(key, self._store_slowly(key, left, is_partial))
        else:
            self._feed(_stored(key, left))

    async def _store_slowly(self, key: AttemptKey, left: CollectedOutput | None, is_partial: bool) -> None:
        try:
            with self._traces.bound(key):
                if left is None:
                    left = await self._payload_runner.collect(key, is_partial=is_partial)
                if left.large:
                    left = await self._payload_runner.upload_large(key, left)
        except Exception as error:
            self._feed(_not_stored(key, error))
        else:
            self._feed(_stored(key, left))


def _stored(key: AttemptKey, left: CollectedOutput) -> ev.OutputStored:
    return ev.OutputStored(key, left.files, "; ".join(left.notes))


def _not_stored(key: AttemptKey, error: Exception) -> ev.OutputFailed:
    return ev.OutputFailed(key, failure_of(error if isinstance(error, PilotageError) else _unexpected(key, error)))


def _start_failed(key: AttemptKey, error: Exception) -> ev.StartFailed:
    if isinstance(error, JobFaultError | NodeFaultError | RegistryFaultError | AccountFaultError):
        return start_failed(key, error)
    return start_failed(key, _unexpected(key, error))


def _unexpected(key: AttemptKey, error: Exception) -> WorldError:
    """Log an unforeseen error with its traceback; return it as a transient failure."""
    log.error("internal error while handling an attempt", job=str(key), exc_info=error)
    return WorldError(f"internal error of the pilot: {error!r:.{_LONGEST_REASON}}", transient=True)


def log_event(event: ev.Event) -> None:
    """Log an event, if it is of interest to people."""
    match event:
        case ev.JobsGranted(_, jobs) if jobs:
            for job in jobs:
                trace = read_trace(job.traceparent)
                with trace_bound(trace) if trace is not None else nullcontext():
                    log.info("job granted", job=str(job.key), owner=job.owner, vo=job.vo, cpus=job.amounts.cpus)
                    if job.fault:
                        log.warning("job refused", job=str(job.key), reason=job.fault)
        case ev.StartFailed(key, outcome, reason):
            log.warning("payload not started", job=str(key), outcome=outcome.value, reason=reason)
        case ev.PayloadExited(key, exit_code, number, usage):
            log.info("payload ended", job=str(key), exit_code=exit_code, signal=number, cpu_s=round(usage.cpu_s, 3))
        case ev.LimitPassed(key, reason):
            log.warning("payload over its limit", job=str(key), reason=reason)
        case ev.StopRequested(reason, at_once):
            log.info("pilot ordered to stop", reason=reason, at_once=at_once)
        case ev.PolicyReloaded():
            log.info("policy read again")
        case _:
            _log_trouble(event)


def _log_trouble(event: ev.Event) -> None:
    match event:
        case ev.RequestFailed(_, failure) | ev.HeartbeatFailed(_, failure) | ev.PoolsFailed(failure):
            log.warning("call to the server failed", kind=failure.kind.value, reason=failure.why)
        case ev.OutputFailed(key, failure):
            log.warning("output not stored", job=str(key), kind=failure.kind.value, reason=failure.why)
        case ev.NodeRefused(faults):
            log.error("node not fit for work", faults=faults)
        case ev.PolicyRefused(reason):
            log.warning("policy not read again, the old one holds", reason=reason)
        case ev.HeartbeatAnswered() if event.lost or event.commands:
            log.info(
                "server orders",
                lost=[str(lost.key) for lost in event.lost],
                commands=[*map(str, event.commands)],
            )
        case _:
            return


def log_refused_attributes(refused: Mapping[str, str]) -> None:
    """Log the attributes that operators have set and the node refuses."""
    log.warning("attributes of the node not taken", refused=dict(refused))


def log_policy_faults(faults: Mapping[str, str]) -> None:
    """Log the slots that get no jobs, for their policies or their isolation, and those that get jobs again."""
    for slot, why in faults.items():
        if why:
            log.warning("slot gets no jobs", slot=slot, why=why)
        else:
            log.info("slot gets jobs again", slot=slot)


ReadPools = Callable[[bool], Awaitable[PoolsRead]]
"""Reads the pools; True = from the server, not from the settings or their file."""


@dataclass(frozen=True, slots=True)
class PilotPorts:
    """Everything outside the pilot's core. `policy` None = built-in; `mqtt_publisher` None = no broker."""

    link: PilotServerLink
    payload_runner: PayloadRunner
    node: PilotNode
    clock: Clock
    boot_clock: BootClock
    policy: PolicyKeeper | None = None
    mqtt_publisher: MqttPublisher | None = None


class PilotRunner:
    """Runs one pilot to its end."""

    def __init__(self, machine: PilotMachine, edges: PilotPorts, facts: NodeDescription, read_pools: ReadPools) -> None:
        self._machine = machine
        self._link = edges.link
        self._payload_runner = edges.payload_runner
        self._node = edges.node
        self._policy = edges.policy
        self._mqtt_publisher = edges.mqtt_publisher
        own = {"pilotage.queue": str(facts.attributes.get("Queue", "")), "pilotage.node": facts.name}
        self._traces = AttemptTraces(own, edges.clock)
        self._payload_tasks = PayloadTasks(edges.payload_runner, self._start, self.feed, self._traces, self._now)
        self._tails = OutputTails(edges.link, edges.payload_runner.stream_path, self._runs, self._start)
        self._facts = facts
        self._read_pools = read_pools
        self._clock = edges.clock
        self._boot_clock = edges.boot_clock
        self._events: deque[ev.Event] = deque()
        self._is_advancing = False
        self._is_stopped = False
        self._alarm: asyncio.TimerHandle | None = None
        self._requests: dict[str, tuple[ins.RequestJobs, asyncio.Task[None]]] = {}
        self._sent_usages = SentUsages()
        self._tasks: set[asyncio.Task[None]] = set()
        self._ended: asyncio.Future[ins.EndPilot] | None = None
        self._group: asyncio.TaskGroup | None = None

    async def run(self) -> ins.EndPilot:
        """Run the pilot and return how it ended; after cancellation nothing is left running."""
        self._ended = asyncio.get_running_loop().create_future()
        self._payload_runner.subscribe(self.feed)
        if self._policy is not None:
            self._payload_runner.wrap(self._policy.wrapper)
        try:
            async with nullcontext() if self._mqtt_publisher is None else self._mqtt_publisher.connected(self.feed):
                return await self._run_machine(self._ended)
        finally:
            await self._payload_runner.close()

    async def _run_machine(self, ended: asyncio.Future[ins.EndPilot]) -> ins.EndPilot:
        async with asyncio.TaskGroup() as self._group:
            try:
                self._do_all(self._machine.begin(self._now()))
                self._advance()
                return await ended
            finally:
                self._is_stopped = True
                if self._alarm is not None:
                    self._alarm.cancel()
                for task in tuple(self._tasks):
                    task.cancel()

    def feed(self, event: ev.Event) -> None:
        """Queue an event for the machine."""
        self._events.append(event)
        if not self._is_advancing and not self._is_stopped:
            self._advance()

    def reload_policy(self) -> None:
        """Reload the policy, if the pilot runs and has one."""
        if self._policy is not None and self._group is not None and not self._is_stopped:
            self._start(self._reload(self._policy))

    def _advance(self) -> None:
        self._is_advancing = True
        try:
            while self._events and not self._is_stopped:
                self._handle_events()
                self._do_all(self._machine.advance(self._now()))
            self._set_alarm()
        except Exception as error:
            assert self._ended is not None, "the runner runs"
            if not self._ended.done():
                self._ended.set_exception(error)
        finally:
            self._is_advancing = False

    def _handle_events(self) -> None:
        while self._events and not self._is_stopped:
            event = self._events.popleft()
            self._observe(event)
            self._do_all(self._machine.handle(event, self._now()))

    def _observe(self, event: ev.Event) -> None:
        if isinstance(event, ev.AttemptEvent):
            with self._traces.bound(event.key):
                log_event(event)
            self._traces.observe(event)
        else:
            log_event(event)

    def _now(self) -> Now:
        return Now(self._clock(), self._boot_clock())

    def _set_alarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        at = self._machine.alarm_boot_s(self._now())
        if at < NEVER:
            # The event loop's clock stops while the machine sleeps, so delays are kept short.
            delay = min(max(0.0, at - self._boot_clock()), 60.0)
            self._alarm = asyncio.get_running_loop().call_later(delay, self.feed, ev.TimePassed())

    # Instructions -----------------------------------------------------------------------------------------------

    def _do_all(self, instructions: Iterable[ins.Instruction]) -> None:
        for instruction in instructions:
            self._do(instruction)

    def _do(self, instruction: ins.Instruction) -> None:
        match instruction:
            case ins.RequestJobs():
                self._request(instruction)
            case ins.RecallRequest(request_id):
                self._recall(request_id)
            case ins.SendHeartbeat():
                if self._mqtt_publisher is not None and instruction.slots is not None:
                    self._mqtt_publisher.publish_slots(instruction.slots, draining=instruction.draining)
                self._start(self._send_heartbeat(instruction))
            case ins.ReadPools(fresh):
                self._start(self._load_pools(fresh))
            case (
                ins.ValidateNode()
                | ins.SampleNode()
                | ins.ReportRefusedAttributes()
                | ins.ReportPolicyFaults()
                | ins.StoreClaimEnds()
            ):
                self._do_for_node(instruction)
            case ins.SendTails(streams):
                self._tails.follow(streams)
            case ins.EndPilot():
                assert self._ended is not None, "the runner runs"
                if not self._ended.done():
                    self._ended.set_result(instruction)
            case _:
                self._payload_tasks.do(instruction)

    def _do_for_node(self, instruction: ins.NodeInstruction) -> None:
        match instruction:
            case ins.ValidateNode():
                self._start(self._validate())
            case ins.SampleNode():
                self.feed(ev.NodeSampled(self._node.sample(self._payload_runner.cpu_times())))
            case ins.StoreClaimEnds(ends):
                self._node.store_claim_ends(ends)
            case ins.ReportRefusedAttributes(refused):
                log_refused_attributes(refused)
            case ins.ReportPolicyFaults(faults):
                log_policy_faults(faults)
            case _:
                assert_never(instruction)

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        assert self._group is not None, "the runner runs"
        task = self._group.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _runs(self, stream: TailStream) -> bool:
        attempt = self._machine.payloads.get(stream.key)
        return attempt is not None and attempt.stage in STARTED

    # The server -------------------------------------------------------------------------------------------------

    def _request(self, call: ins.RequestJobs) -> None:
        self._requests[call.request_id] = (call, self._start(self._await_jobs(call)))

    def _recall(self, request_id: str) -> None:
        call, task = self._requests[request_id]
        if not task.done():
            task.cancel()
            self._request(ins.without_waiting(call))

    async def _await_jobs(self, call: ins.RequestJobs) -> None:
        try:
            granted = await self._link.request_jobs(call)
        except PilotageError as error:
            self._requests.pop(call.request_id, None)
            self.feed(ev.RequestFailed(call.request_id, failure_of(error)))
        else:
            self._requests.pop(call.request_id, None)
            self.feed(granted)

    async def _send_heartbeat(self, call: ins.SendHeartbeat) -> None:
        usages = self._sent_usages.due(self._payload_runner.usages())
        call = replace(call, usages=usages)
        try:
            answer = await self._link.beat(call, self._current_facts())
        except PilotageError as error:
            self.feed(ev.HeartbeatFailed(call.request_id, failure_of(error)))
        else:
            self._sent_usages.record(usages)
            self.feed(answer)

    async def _load_pools(self, fresh: bool) -> None:
        try:
            pools = await self._read_pools(fresh)
        except PilotageError as error:
            self.feed(ev.PoolsFailed(failure_of(error)))
        else:
            if self._mqtt_publisher is not None and pools.known:
                self._mqtt_publisher.subscribe_pools(pools.pool_ids)
            self.feed(pools)

    async def _validate(self) -> None:
        faults = await self._node.faults()
        self.feed(ev.NodeRefused(faults) if faults else ev.NodeValidated())

    async def _reload(self, policy: PolicyKeeper) -> None:
        event = await policy.reload()
        self._payload_runner.wrap(policy.wrapper)
        self.feed(event)

    def _current_facts(self) -> NodeDescription:
        if self._policy is None:
            return self._facts
        return replace(self._facts, attributes={**self._facts.attributes, **self._policy.attributes()})
