"""The pilot as a state machine: events in, instructions out, no I/O.

Rules
-----
State changes only in `handle` and `advance`. `handle` applies one event. `advance` does what time and state make due,
once after all events that have arrived. Time passes only with events: `alarm_boot_s` says when the next is needed.
The parts decide for themselves: `payloads` the attempts, `server_session` the protocol, `lifetime` the end. This module
routes the events and does what concerns several parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import assert_never

from pilotage.values.attempts import AttemptKey, Outcome
from pilotage_pilot.core import events as ev
from pilotage_pilot.core.attempts.attempt import Ending
from pilotage_pilot.core.attempts.payloads import Instructions, Payloads
from pilotage_pilot.core.events import BrokerChanged, BrokerEvent, ContactRequested, JobsAnnounced
from pilotage_pilot.core.instructions import EndPilot, Instruction, ReadPools, ValidateNode
from pilotage_pilot.core.lifetime import (
    NEVER,
    EndReason,
    ExitCode,
    GlideinEnd,
    IdleTimeout,
    NodeSampling,
    Phase,
    Shutdown,
)
from pilotage_pilot.core.model import Now
from pilotage_pilot.core.node.node_slots import NodeSlots
from pilotage_pilot.core.rules import Lifetime, PilotRules
from pilotage_pilot.core.server_session import ServerSession


class PilotMachine:
    """The state machine of one pilot; `name` makes its request ids unique."""

    def __init__(self, name: str, slots: NodeSlots, rules: PilotRules, lifetime: Lifetime, now: Now) -> None:
        self._rules = rules
        self._lifetime = lifetime
        self._slots = slots
        self._sampling = NodeSampling(rules.sample_s if slots.has_policy else rules.node_refresh_s, now)
        self._payloads = Payloads(slots, rules)
        self._session = ServerSession(name, self._payloads, rules, lifetime, now)
        self._shutdown = Shutdown()
        self._glidein_end = GlideinEnd(lifetime)
        self._validated = False
        self._idle_timeout = IdleTimeout(rules, now)

    @property
    def phase(self) -> Phase:
        """The pilot's phase."""
        return self._shutdown.phase

    @property
    def payloads(self) -> Payloads:
        """The attempts that the pilot holds."""
        return self._payloads

    def begin(self, now: Now) -> tuple[Instruction, ...]:
        """Return the first instructions."""
        return (ValidateNode(), ReadPools(), *self.advance(now))

    def handle(self, event: ev.Event, now: Now) -> Sequence[Instruction]:
        """Apply an event and return its instructions in order; `advance` has to follow."""
        return () if self.phase is Phase.ENDED else self._react(event, now)

    def advance(self, now: Now) -> Sequence[Instruction]:
        """Return the instructions that time and state make due, after all events up to now."""
        return () if self.phase is Phase.ENDED else self._advance(now)

    # Events ----------------------------------------------------------------------------------------------------

    def _react(self, event: ev.Event, now: Now) -> Instructions:
        match event:
            case ev.JobPrepared(key):
                return self._payloads.prepared(key, now)
            case ev.PayloadStarted(key, at):
                return self._payloads.started(key, now, at or now) + self._late_warning(key, now)
            case ev.StartFailed():
                self._session.decline_after(event, now)
                return self._payloads.start_failed(event, now)
            case ev.PayloadExited():
                return self._payloads.exited(event, now)
            case ev.LimitPassed(key, reason, limit_mib):
                ending = Ending(Outcome.LIMIT_EXCEEDED, reason, memory_limit_mib=limit_mib)
                return self._payloads.stop(key, ending, now)
            case ev.OutputStored():
                return self._payloads.ends.stored(event, now) + self._start_prefetched(now)
            case ev.OutputFailed():
                return self._payloads.ends.store_failed(event, now)
            case ev.FolderRemoved(key):
                self._payloads.folder_removed(key)
                return []
            case _:
                return self._react_to_server(event, now)

    def _react_to_server(self, event: ev.ServerEvent | BrokerEvent | ev.NodeEvent, now: Now) -> Instructions:
        match event:
            case ev.JobsGranted():
                takes = self._takes_jobs(now)
                jobs = self._session.granted(event, now, takes_jobs=takes)
                return jobs + self._apply_commands(event.commands, now)
            case ev.HeartbeatAnswered():
                return self._heartbeat_answered(event, now)
            case ev.RequestFailed(_, failure):
                self._session.request_failed(event, now)
                return self._call_failed(failure, now)
            case ev.HeartbeatFailed(_, failure):
                self._session.heartbeat_failed(event, now)
                return self._call_failed(failure, now)
            case ev.PoolsRead(known, pool_ids):
                self._session.pools.read(pool_ids, now)
                return [] if known else self._drain("its queue is not in the resource tree (any more)", now)
            case ev.PoolsFailed(failure):
                self._session.pools.failed(failure, now)
                return self._call_failed(failure, now)
            case BrokerChanged() | JobsAnnounced() | ContactRequested():
                self._session.handle_broker_event(event)
                return []
            case _:
                return self._react_to_node(event, now)

    def _react_to_node(self, event: ev.NodeEvent, now: Now) -> Instructions:
        match event:
            case ev.NodeValidated():
                self._validated = True
            case ev.NodeRefused(faults):
                return self._drain(f"the node is not fit for work: {'; '.join(faults)}", now, ExitCode.NODE_UNFIT)
            case ev.StopRequested(reason, at_once):
                deadline_s = self._rules.goodbye_timeout_s + (0.0 if at_once else self._rules.grace_s)
                self._shutdown.limit_time(now.boot_s + deadline_s)
                return self._evict(reason, now, at_once=at_once) + self._drain(reason, now)
            case ev.SuspendRequested():
                return self._payloads.apply_orders(self._slots.suspend_all(now), now)
            case ev.ContinueRequested():
                return self._payloads.apply_orders(self._slots.continue_all(now), now)
            case ev.TimePassed():
                return self._payloads.apply_orders(self._slots.poll(now), now)
            case _:
                self._apply_policy_event(event, now)
        return []

    def _apply_policy_event(self, event: ev.PolicyEvent, now: Now) -> None:
        match event:
            case ev.NodeSampled(sample):
                self._slots.sampled(sample, now)
                self._sampling.sampled(now)
            case ev.PolicyReloaded(policy):
                self._slots.change_policy(policy, now)
                self._session.report_node_again()
            case ev.PolicyRefused():
                self._session.report_node_again()
            case _:
                assert_never(event)

    def _heartbeat_answered(self, event: ev.HeartbeatAnswered, now: Now) -> Instructions:
        instructions = self._session.heartbeat_answered(event, now) + self._check_clock(now)
        if self.phase is Phase.LEAVING and self._session.goodbye_answered:
            return [*instructions, self._end_pilot()]
        return instructions + self._apply_commands(event.commands, now)

    def _check_clock(self, now: Now) -> Instructions:
        error_s = self._session.clock_error_s
        if error_s is None or error_s <= self._rules.clock_error_s:
            return []
        return self._drain(f"the node's clock is {error_s:.0f} s off the server's", now, ExitCode.NODE_UNFIT)

    def _apply_commands(self, commands: Iterable[ev.Command], now: Now) -> Instructions:
        instructions: Instructions = []
        for command in commands:
            match command:
                case ev.KillCommanded(key, reason):
                    ending = Ending(Outcome.KILLED, reason)
                    self._session.prefetch.give_back(key, ending, now)
                    instructions += self._payloads.stop(key, ending, now)
                case ev.DrainCommanded(reason, evict):
                    instructions += self._evict(reason, now) if evict else []
                    instructions += self._drain(reason or "the server drains it", now)
                case ev.ReportCommanded():
                    self._session.report_node_again()
                case _:
                    assert_never(command)
        return instructions

    def _call_failed(self, failure: ev.Failure, now: Now) -> Instructions:
        if failure.kind is ev.FailureKind.TRANSIENT:
            return []
        if self.phase is Phase.LEAVING:
            return [self._end_pilot()]
        if failure.kind is ev.FailureKind.CREDENTIAL and not self._payloads.working:
            self._shutdown.limit_time(now.boot_s + self._rules.goodbye_timeout_s)
        return self._drain(f"the server refuses the pilot: {failure.why}", now, ExitCode.NO_SERVER)

    def _late_warning(self, key: AttemptKey, now: Now) -> Instructions:
        return self._payloads.warn(key, self._glidein_end.time_left_s(now)) if self._glidein_end.is_announced else []

    # Phases ----------------------------------------------------------------------------------------------------

    def _start_prefetched(self, now: Now) -> Instructions:
        return self._session.prefetch.due(now, takes_jobs=self._takes_jobs(now))

    def _takes_jobs(self, now: Now) -> bool:
        is_fit = self._validated and self._session.clock_error_s is not None
        return is_fit and not self._drains(now)

    def _drains(self, now: Now) -> bool:
        return not self._shutdown.is_open or self._lifetime.is_too_short(now)

    def _drain(self, reason: str, now: Now, exit_code: ExitCode = ExitCode.AS_PLANNED) -> Instructions:
        return self._drain_for(EndReason(reason, exit_code), now)

    def _drain_for(self, reason: EndReason, now: Now) -> Instructions:
        if not self._shutdown.drain(reason):
            return []
        return self._session.job_pull.recall(now) + self._payloads.drain(reason.text, now)

    def _evict(self, reason: str, now: Now, *, at_once: bool = False) -> Instructions:
        return self._payloads.stop_all(Ending(Outcome.EVICTED, reason), now, at_once=at_once)

    def _advance(self, now: Now) -> Instructions:
        instructions = self._payloads.due(now) + self._approach_end(now)
        if self._idle_timeout.watch(working=self._payloads.working, now=now):
            self._session.job_pull.last_answer_empty = False
        instructions += self._reasons_to_leave(now)
        instructions += self._start_prefetched(now)
        instructions += [*self._slots.new_claim_ends(), *self._sampling.due(now)]
        if self.phase in (Phase.OPEN, Phase.DRAINING):
            # Slots that have to be polled now are offered after the poll.
            asks = self._takes_jobs(now) and self._slots.next_poll_boot_s() > now.boot_s
            wait_s = self._idle_timeout.wait_s(now)
            instructions += self._session.send_due(now, wait_s, takes_jobs=asks, drains=self._drains(now))
        return instructions + self._leave(now)

    def _approach_end(self, now: Now) -> Instructions:
        instructions: Instructions = []
        if self._glidein_end.announce(now):
            instructions += self._payloads.warn_all(self._glidein_end.time_left_s(now))
        if self._glidein_end.is_near(now):
            instructions += self._drain_for(EndReason("the end of its glidein is near", is_normal=True), now)
        if self._glidein_end.begin_eviction(now):
            self._shutdown.limit_time(now.boot_s + self._glidein_end.stop_margin_s)
            instructions += self._evict("the glidein ends", now)
        return instructions

    def _reasons_to_leave(self, now: Now) -> Instructions:
        if self._payloads.node_fails_jobs:
            return self._drain("too many starts failed on this node", now, ExitCode.NODE_UNFIT)
        if now.boot_s >= self._idle_timeout.unreachable_boot_s(self._session.last_contact_boot_s):
            self._shutdown.limit_time(now.boot_s + self._rules.goodbye_timeout_s)
            return self._drain("the server could not be reached for too long", now, ExitCode.NO_SERVER)
        idle_end_boot_s = self._idle_timeout.idle_end_boot_s()
        if now.boot_s >= idle_end_boot_s:
            if self._session.job_pull.found_no_job(idle_end_boot_s):
                return self._drain_for(
                    EndReason(f"it had no job for {self._rules.max_idle_s:g} s", is_normal=True), now
                )
            return self._session.job_pull.request_again(now)
        return []

    def _leave(self, now: Now) -> Instructions:
        if self.phase is Phase.DRAINING:
            done = not len(self._payloads) and self._session.is_idle
            if not done and not self._shutdown.is_out_of_time(now):
                return []
            self._session.job_pull.abandon()
            self._shutdown.begin_goodbye(self._rules.goodbye_timeout_s, now)
        if self._shutdown.is_over(now):
            return [self._end_pilot()]
        if self.phase is Phase.LEAVING and self._shutdown.reason is not None:
            return self._session.send_goodbye(self._shutdown.reason, now)
        return []

    def _end_pilot(self) -> EndPilot:
        reason = self._shutdown.end()
        return EndPilot(reason.text, reason.exit_code)

    def alarm_boot_s(self, now: Now) -> float:
        """Return when the next TimePassed is needed, on the boot clock; infinity = never."""
        if self.phase is Phase.ENDED:
            return NEVER
        times = [*self._glidein_end.alarms(), *self._idle_timeout.alarms(self._session.last_contact_boot_s)]
        times = [point for point in times if point > now.boot_s]
        times += [*self._payloads.alarms(), *self._shutdown.alarms()]
        times += [self._slots.next_poll_boot_s(), self._sampling.alarm_boot_s()]
        if self.phase is Phase.LEAVING:
            times += self._session.goodbye_alarms()
        else:
            times += self._session.alarms(now, takes_jobs=self._takes_jobs(now))
        return min(times, default=NEVER)

    def validate(self) -> None:
        """Raise AssertionError if the parts contradict each other."""
        self._payloads.validate()
        self._session.validate()
        assert (self._shutdown.reason is None) == self._shutdown.is_open, "reason and phase contradict each other"
        held = [attempt.key for attempt in self._payloads]
        assert self.phase is not Phase.OPEN or len(held) == len(set(held)), "an attempt is held twice"
