"""The pilot's shell: turns the machine's instructions into I/O and what comes of it into events."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine, Iterable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, assert_never

from pilotage.errors import PilotageError
from pilotage_pilot.core import events as ev
from pilotage_pilot.core import instructions as ins
from pilotage_pilot.core.machine import PilotMachine
from pilotage_pilot.core.moment import Moment
from pilotage_pilot.core.patience import NEVER
from pilotage_pilot.edges import Edges, ReadPools
from pilotage_pilot.event_log import log_event, log_refused_attributes
from pilotage_pilot.link.base import NodeFacts
from pilotage_pilot.link.failures import failure_of
from pilotage_pilot.payload_work import PayloadWork
from pilotage_pilot.policy.keeper import PolicyKeeper


class Runner:
    """Runs one pilot to its end."""

    def __init__(self, machine: PilotMachine, edges: Edges, facts: NodeFacts, read_pools: ReadPools) -> None:
        self._machine = machine
        self._link = edges.link
        self._workshop = edges.workshop
        self._node = edges.node
        self._policy = edges.policy
        self._voice = edges.voice
        self._payload_work = PayloadWork(edges.workshop, self._start, self.feed)
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
        self._ended: asyncio.Future[ins.EndPilot] | None = None
        self._group: asyncio.TaskGroup | None = None

    async def run(self) -> ins.EndPilot:
        """Run the pilot and return how it ended; cancelled, it leaves nothing running."""
        self._ended = asyncio.get_running_loop().create_future()
        self._workshop.listen(self.feed)
        if self._policy is not None:
            self._workshop.wrap(self._policy.wrapper)
        try:
            async with nullcontext() if self._voice is None else self._voice.speaking(self.feed):
                return await self._live(self._ended)
        finally:
            await self._workshop.close()

    async def _live(self, ended: asyncio.Future[ins.EndPilot]) -> ins.EndPilot:
        async with asyncio.TaskGroup() as self._group:
            try:
                self._do_all(self._machine.begin(self._now()))
                self._go_on()
                return await ended
            finally:
                self._hear_no_more()

    def _hear_no_more(self) -> None:
        """Take up nothing new, for what is under way ends now."""
        self._over = True
        if self._alarm is not None:
            self._alarm.cancel()
        for task in tuple(self._tasks):
            task.cancel()

    def feed(self, event: ev.Event) -> None:
        """Let the machine hear of an event, after those that it has not heard yet."""
        self._events.append(event)
        if not self._busy and not self._over:
            self._go_on()

    def reload_policy(self) -> None:
        """Read the policy again, while it runs and has one."""
        if self._policy is not None and self._group is not None and not self._over:
            self._start(self._reload(self._policy))

    def _go_on(self) -> None:
        self._busy = True
        try:
            while self._events and not self._over:
                self._hear_all()
                self._do_all(self._machine.go_on(self._now()))
            self._set_alarm()
        except Exception as error:
            self._fail(error)
        finally:
            self._busy = False

    def _hear_all(self) -> None:
        while self._events and not self._over:
            event = self._events.popleft()
            log_event(event)
            self._do_all(self._machine.handle(event, self._now()))

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

    def _do_all(self, instructions: Iterable[ins.Instruction]) -> None:
        for instruction in instructions:
            self._do(instruction)

    def _do(self, instruction: ins.Instruction) -> None:
        match instruction:
            case ins.RequestJobs():
                self._request(instruction)
            case ins.TakeBackRequest(request_id):
                self._take_back(request_id)
            case ins.SendHeartbeat():
                self._tell_broker(instruction)
                self._start(self._beat(instruction))
            case ins.ReadPools(fresh):
                self._start(self._find_pools(fresh))
            case ins.ValidateNode() | ins.SampleNode() | ins.ReportRefusedAttributes():
                self._do_for_node(instruction)
            case ins.EndPilot():
                self._end(instruction)
            case _:
                self._payload_work.do(instruction)

    def _end(self, end: ins.EndPilot) -> None:
        assert self._ended is not None, "the runner runs"
        if not self._ended.done():
            self._ended.set_result(end)

    def _do_for_node(self, instruction: ins.NodeInstruction) -> None:
        match instruction:
            case ins.ValidateNode():
                self._start(self._validate())
            case ins.SampleNode():
                self.feed(ev.NodeSampled(self._node.sample(self._workshop.cpu_times())))
            case ins.ReportRefusedAttributes(refused):
                log_refused_attributes(refused)
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

    def _tell_broker(self, call: ins.SendHeartbeat) -> None:
        if self._voice is not None and call.slots is not None:
            self._voice.tell_slots(call.slots, draining=call.draining)

    async def _beat(self, call: ins.SendHeartbeat) -> None:
        try:
            answer = await self._link.beat(call, self._facts_now())
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
            if self._voice is not None and pools.known:
                self._voice.know_pools(pools.pool_ids)
            self.feed(pools)

    async def _validate(self) -> None:
        faults = await self._node.faults()
        self.feed(ev.NodeRefused(faults) if faults else ev.NodeValidated())

    async def _reload(self, policy: PolicyKeeper) -> None:
        news = await policy.reload()
        self._workshop.wrap(policy.wrapper)
        self.feed(news)

    def _facts_now(self) -> NodeFacts:
        if self._policy is None:
            return self._facts
        return replace(self._facts, attributes={**self._facts.attributes, **self._policy.attributes()})
