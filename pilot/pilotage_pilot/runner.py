"""The pilot's shell: turns the machine's instructions into I/O and what comes of it into events."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, assert_never

from pilotage.clock import BootClock, Clock
from pilotage.errors import PilotageError
from pilotage_pilot.core import events as ev
from pilotage_pilot.core import instructions as ins
from pilotage_pilot.core.jobs import AttemptKey, Outcome
from pilotage_pilot.core.machine import NEVER, PilotMachine
from pilotage_pilot.core.moment import Moment
from pilotage_pilot.event_log import log_event
from pilotage_pilot.link.base import NodeFacts, ServerLink
from pilotage_pilot.link.failures import failure_of
from pilotage_pilot.node.base import Node
from pilotage_pilot.supervise.base import JobAtFaultError, NodeAtFaultError, Workshop

ReadPools = Callable[[bool], Awaitable[ev.PoolsRead]]
"""Finds out the pools; True = from the server, not from the file that the pilot was given."""


TIDY_AFTER_S = 0.02
"""So long after its end the folder of an attempt is removed: first the server hears of it and the next job starts."""


@dataclass(frozen=True, slots=True)
class Edges:
    """The world as the runner meets it; in tests each of them has a twin."""

    link: ServerLink
    workshop: Workshop
    node: Node
    clock: Clock
    boot_clock: BootClock


class Runner:
    """Runs one pilot to its end."""

    def __init__(
        self,
        machine: PilotMachine,
        edges: Edges,
        facts: NodeFacts,
        read_pools: ReadPools,
    ) -> None:
        self._machine = machine
        self._link = edges.link
        self._workshop = edges.workshop
        self._node = edges.node
        self._facts = facts
        self._read_pools = read_pools
        self._clock = edges.clock
        self._boot_clock = edges.boot_clock
        self._events: deque[ev.Event] = deque()
        self._busy = False
        self._over = False
        self._alarm: asyncio.TimerHandle | None = None
        self._requests: dict[str, tuple[ins.RequestJobs, asyncio.Task[None]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._work: dict[AttemptKey, asyncio.Task[None]] = {}
        self._ended: asyncio.Future[ins.EndPilot] | None = None
        self._group: asyncio.TaskGroup | None = None

    async def run(self) -> ins.EndPilot:
        """Run the pilot and return how it ended; cancelled, it leaves nothing running."""
        self._ended = asyncio.get_running_loop().create_future()
        self._workshop.listen(self.feed)
        try:
            async with asyncio.TaskGroup() as self._group:
                self._do_all(self._machine.begin(self._now()))
                self._go_on()
                end = await self._ended
                self._cancel_all()
        finally:
            self._over = True
            if self._alarm is not None:
                self._alarm.cancel()
            await self._workshop.close()
        return end

    def feed(self, event: ev.Event) -> None:
        """Let the machine hear of an event, after those that it has not heard yet."""
        self._events.append(event)
        if not self._busy and not self._over:
            self._go_on()

    def _go_on(self) -> None:
        self._busy = True
        try:
            while self._events:
                event = self._events.popleft()
                log_event(event)
                self._do_all(self._machine.handle(event, self._now()))
            self._set_alarm()
        except Exception as error:
            self._fail(error)
        finally:
            self._busy = False

    def _fail(self, error: Exception) -> None:
        assert self._ended is not None, "the runner runs"
        if not self._ended.done():
            self._ended.set_exception(error)

    def _now(self) -> Moment:
        return Moment(self._clock(), self._boot_clock())

    def _set_alarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        at = self._machine.alarm_boot_s(self._now())
        if at < NEVER:
            # The loop's own clock stands still while the machine sleeps; so it never sleeps for long.
            delay = min(max(0.0, at - self._boot_clock()), 60.0)
            self._alarm = asyncio.get_running_loop().call_later(delay, self.feed, ev.TimePassed())

    # Instructions -----------------------------------------------------------------------------------------------

    def _do_all(self, instructions: tuple[ins.Instruction, ...]) -> None:
        for instruction in instructions:
            self._do(instruction)

    def _do(self, instruction: ins.Instruction) -> None:
        match instruction:
            case ins.RequestJobs():
                self._request(instruction)
            case ins.TakeBackRequest(request_id):
                self._take_back(request_id)
            case ins.SendHeartbeat():
                self._start(self._beat(instruction))
            case ins.ReadPools(fresh):
                self._start(self._find_pools(fresh))
            case ins.ValidateNode():
                self._start(self._validate())
            case ins.EndPilot():
                if self._ended is not None and not self._ended.done():
                    self._ended.set_result(instruction)
            case _:
                self._do_for_payload(instruction)

    def _do_for_payload(self, instruction: ins.PayloadInstruction) -> None:
        match instruction:
            case ins.PrepareJob(job):
                self._work_on(job.key, self._prepare(instruction))
            case ins.StartPayload(key):
                self._start_payload(key)
            case ins.KillPayload(key):
                self._kill(key)
            case ins.StoreOutput(key):
                self._work_on(key, self._store(key))
            case ins.ForgetAttempt(key):
                self._leave_off(key)
                asyncio.get_running_loop().call_later(TIDY_AFTER_S, self._workshop.forget, key)
            case _:
                self._signal(instruction)

    def _signal(self, instruction: ins.SignalInstruction) -> None:
        match instruction:
            case ins.StopPayload(key):
                self._workshop.stop(key)
            case ins.SuspendPayload(key):
                self._workshop.suspend(key)
            case ins.ContinuePayload(key):
                self._workshop.resume(key)
            case ins.WarnPayload(key, left_s):
                self._workshop.warn(key, left_s)
            case _:
                assert_never(instruction)

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        assert self._group is not None, "the runner runs"
        task = self._group.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # The server -------------------------------------------------------------------------------------------------

    def _request(self, call: ins.RequestJobs) -> None:
        self._requests[call.request_id] = (call, self._start(self._ask(call)))

    def _take_back(self, request_id: str) -> None:
        call, task = self._requests[request_id]
        if not task.done():
            task.cancel()
            self._request(ins.without_waiting(call))

    async def _ask(self, call: ins.RequestJobs) -> None:
        try:
            granted = await self._link.request_jobs(call)
        except PilotageError as error:
            self._requests.pop(call.request_id, None)
            self.feed(ev.RequestFailed(call.request_id, failure_of(error)))
        else:
            self._requests.pop(call.request_id, None)
            self.feed(granted)

    async def _beat(self, call: ins.SendHeartbeat) -> None:
        try:
            answer = await self._link.beat(call, self._facts)
        except PilotageError as error:
            self.feed(ev.HeartbeatFailed(call.request_id, failure_of(error)))
        else:
            self.feed(answer)

    async def _find_pools(self, fresh: bool) -> None:
        try:
            pools = await self._read_pools(fresh)
        except PilotageError as error:
            self.feed(ev.PoolsFailed(failure_of(error)))
        else:
            self.feed(pools)

    async def _validate(self) -> None:
        faults = await self._node.faults()
        self.feed(ev.NodeRefused(faults) if faults else ev.NodeValidated())

    # Payloads ---------------------------------------------------------------------------------------------------

    def _work_on(self, key: AttemptKey, work: Coroutine[Any, Any, None]) -> None:
        task = self._start(work)
        self._work[key] = task
        task.add_done_callback(lambda done: self._forget_task(key, done))

    def _forget_task(self, key: AttemptKey, task: asyncio.Task[None]) -> None:
        if self._work.get(key) is task:
            del self._work[key]

    def _leave_off(self, key: AttemptKey) -> bool:
        task = self._work.pop(key, None)
        return task is not None and task.cancel()

    async def _prepare(self, instruction: ins.PrepareJob) -> None:
        key = instruction.job.key
        try:
            await self._workshop.prepare(instruction.job, instruction.slot)
        except (JobAtFaultError, NodeAtFaultError) as error:
            self.feed(_start_failed(key, error))
        else:
            self.feed(ev.JobPrepared(key))

    def _start_payload(self, key: AttemptKey) -> None:
        try:
            self._workshop.start(key)
        except (JobAtFaultError, NodeAtFaultError) as error:
            self.feed(_start_failed(key, error))
        else:
            self.feed(ev.PayloadStarted(key))

    def _kill(self, key: AttemptKey) -> None:
        if self._leave_off(key):
            self.feed(ev.StartFailed(key, Outcome.START_FAILED, "it was stopped before its start"))
        else:
            self._workshop.kill(key)

    async def _store(self, key: AttemptKey) -> None:
        try:
            files, notes = await self._workshop.store(key)
        except PilotageError as error:
            self.feed(ev.OutputFailed(key, failure_of(error)))
        else:
            self.feed(ev.OutputStored(key, files, notes))

    def _cancel_all(self) -> None:
        for task in tuple(self._tasks):
            task.cancel()


def _start_failed(key: AttemptKey, error: JobAtFaultError | NodeAtFaultError) -> ev.StartFailed:
    job_at_fault = isinstance(error, JobAtFaultError)
    return ev.StartFailed(key, Outcome.REFUSED_BY_JOB if job_at_fault else Outcome.START_FAILED, str(error))
