"""The pilot as a machine: it hears events and says what is to be done, and does nothing itself.

Rules
-----
The state changes only in `handle` and `go_on`: what an event means is in the first, what time and state make due in
the second, which comes once for as many events as there are. Time passes only with events; `alarm_boot_s` says when
the next one is needed.
The parts decide for themselves (`payloads` the attempts, `conversation` the talk with the server, `departure` the
pilot's end, `glidein_end` what comes before it); here is who hears what, and what concerns several of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import assert_never

from pilotage_pilot.core import events as ev
from pilotage_pilot.core.attempts import Ending
from pilotage_pilot.core.broker_events import AskWanted, BrokerChanged, BrokerEvent, JobsAnnounced
from pilotage_pilot.core.conversation import Conversation
from pilotage_pilot.core.departure import Departure, ExitCode, Phase, Reason
from pilotage_pilot.core.glidein_end import GlideinEnd
from pilotage_pilot.core.instructions import EndPilot, Instruction, ReadPools, ValidateNode
from pilotage_pilot.core.jobs import AttemptKey, Outcome
from pilotage_pilot.core.moment import Moment
from pilotage_pilot.core.node_looks import NodeLooks
from pilotage_pilot.core.node_slots import NodeSlots
from pilotage_pilot.core.patience import NEVER, Patience
from pilotage_pilot.core.payload_ends import Instructions
from pilotage_pilot.core.payloads import Payloads
from pilotage_pilot.core.rules import Lifetime, Rules


class PilotMachine:
    """One pilot; `name` makes its request ids differ from those of all other pilots."""

    def __init__(self, name: str, slots: NodeSlots, rules: Rules, lifetime: Lifetime, now: Moment) -> None:
        self._rules = rules
        self._lifetime = lifetime
        self._slots = slots
        self._looks = NodeLooks(rules.sample_s if slots.has_policy else rules.node_retell_s, now)
        self._payloads = Payloads(slots, rules)
        self._conversation = Conversation(name, self._payloads, rules, lifetime, now)
        self._departure = Departure()
        self._glidein_end = GlideinEnd(lifetime)
        self._validated = False
        self._patience = Patience(rules, now)

    @property
    def phase(self) -> Phase:
        """Where the pilot is on its way."""
        return self._departure.phase

    @property
    def payloads(self) -> Payloads:
        """The attempts that the pilot holds."""
        return self._payloads

    def begin(self, now: Moment) -> tuple[Instruction, ...]:
        """Return what is to be done first."""
        return (ValidateNode(), ReadPools(), *self.go_on(now))

    def handle(self, event: ev.Event, now: Moment) -> Sequence[Instruction]:
        """Take in an event and return what is to be done because of it, in order; `go_on` has to follow."""
        return () if self.phase is Phase.ENDED else self._react(event, now)

    def go_on(self, now: Moment) -> Sequence[Instruction]:
        """Return what else is to be done, in order, once all events are handled that have come by now."""
        return () if self.phase is Phase.ENDED else self._go_on(now)

    # Who hears what ---------------------------------------------------------------------------------------------

    def _react(self, event: ev.Event, now: Moment) -> Instructions:
        match event:
            case ev.JobPrepared(key):
                return self._payloads.prepared(key, now)
            case ev.PayloadStarted(key):
                return self._payloads.started(key, now) + self._late_warning(key, now)
            case ev.StartFailed():
                return self._payloads.start_failed(event, now)
            case ev.PayloadExited():
                return self._payloads.ends.exited(event, now)
            case ev.LimitPassed(key, reason):
                return self._payloads.stop(key, Ending(Outcome.LIMIT_EXCEEDED, reason), now)
            case ev.OutputStored():
                return self._payloads.ends.stored(event, now) + self._next_turns(now)
            case ev.OutputFailed():
                return self._payloads.ends.store_failed(event, now)
            case _:
                return self._react_beyond(event, now)

    def _react_beyond(self, event: ev.ServerEvent | BrokerEvent | ev.NodeEvent, now: Moment) -> Instructions:
        match event:
            case ev.JobsGranted():
                takes = self._takes_jobs(now)
                jobs = self._conversation.granted(event, now, takes_jobs=takes)
                return jobs + self._obey(event.commands, now)
            case ev.HeartbeatAnswered():
                return self._beat_answered(event, now)
            case ev.RequestFailed(_, failure):
                self._conversation.request_failed(event, now)
                return self._call_failed(failure, now)
            case ev.HeartbeatFailed(_, failure):
                self._conversation.beat_failed(event, now)
                return self._call_failed(failure, now)
            case ev.PoolsRead(known, pool_ids):
                return self._pools_read(known, pool_ids, now)
            case ev.PoolsFailed(failure):
                self._conversation.pools.failed(failure, now)
                return self._call_failed(failure, now)
            case BrokerChanged() | JobsAnnounced() | AskWanted():
                self._conversation.hear(event)
                return []
            case _:
                return self._react_to_node(event, now)

    def _react_to_node(self, event: ev.NodeEvent, now: Moment) -> Instructions:
        match event:
            case ev.NodeValidated():
                self._validated = True
            case ev.NodeRefused(faults):
                return self._drain(f"the node is not fit for work: {'; '.join(faults)}", now, ExitCode.NODE_UNFIT)
            case ev.StopRequested(reason, at_once):
                return self._stop(reason, now, at_once=at_once)
            case ev.SuspendRequested():
                return self._payloads.obey(self._slots.suspend_all(now), now)
            case ev.ContinueRequested():
                return self._payloads.obey(self._slots.continue_all(now), now)
            case ev.TimePassed():
                return self._payloads.obey(self._slots.poll(now), now)
            case _:
                self._look_anew(event, now)
        return []

    def _look_anew(self, event: ev.PolicyEvent, now: Moment) -> None:
        match event:
            case ev.NodeSampled(sample):
                self._slots.sampled(sample)
                self._looks.looked(now)
            case ev.PolicyReloaded(policy):
                self._slots.change_policy(policy, now)
                self._conversation.tell_node_again()
            case ev.PolicyRefused():
                self._conversation.tell_node_again()
            case _:
                assert_never(event)

    def _beat_answered(self, event: ev.HeartbeatAnswered, now: Moment) -> Instructions:
        instructions = self._conversation.beat_answered(event, now) + self._check_clock(now)
        if self.phase is Phase.LEAVING and self._conversation.parted:
            return [*instructions, self._end_pilot()]
        return instructions + self._obey(event.commands, now)

    def _check_clock(self, now: Moment) -> Instructions:
        error_s = self._conversation.clock_error_s
        if error_s is None or error_s <= self._rules.clock_error_s:
            return []
        return self._drain(f"the node's clock is {error_s:.0f} s off the server's", now, ExitCode.NODE_UNFIT)

    def _obey(self, commands: Iterable[ev.Command], now: Moment) -> Instructions:
        instructions: Instructions = []
        for command in commands:
            match command:
                case ev.KillCommanded(key, reason):
                    ending = Ending(Outcome.KILLED, reason)
                    self._conversation.backlog.give_back(key, ending, now)
                    instructions += self._payloads.stop(key, ending, now)
                case ev.DrainCommanded(reason, evict):
                    instructions += self._evict(reason, now) if evict else []
                    instructions += self._drain(reason or "the server drains it", now)
                case _:
                    assert_never(command)
        return instructions

    def _call_failed(self, failure: ev.Failure, now: Moment) -> Instructions:
        if failure.kind is ev.FailureKind.TRANSIENT:
            return []
        if self.phase is Phase.LEAVING:
            return [self._end_pilot()]
        if failure.kind is ev.FailureKind.CREDENTIAL and not self._payloads.working:
            self._departure.hurry(now.boot_s + self._rules.goodbye_patience_s)
        return self._drain(f"the server refuses the pilot: {failure.why}", now, ExitCode.NO_SERVER)

    def _pools_read(self, known: bool, pool_ids: tuple[str, ...], now: Moment) -> Instructions:
        self._conversation.pools.read(pool_ids, now)
        return [] if known else self._drain("its queue is not in the resource tree (any more)", now)

    # The pilot's own way ----------------------------------------------------------------------------------------

    def _next_turns(self, now: Moment) -> Instructions:
        return self._conversation.backlog.due(now, takes_jobs=self._takes_jobs(now))

    def _takes_jobs(self, now: Moment) -> bool:
        is_fit = self._validated and self._conversation.clock_error_s is not None
        return is_fit and not self._drains(now)

    def _drains(self, now: Moment) -> bool:
        return not self._departure.is_open or self._lifetime.is_too_short(now)

    def _drain(self, reason: str, now: Moment, exit_code: ExitCode = ExitCode.AS_PLANNED) -> Instructions:
        return self._drain_for(Reason(reason, exit_code), now)

    def _drain_for(self, reason: Reason, now: Moment) -> Instructions:
        if not self._departure.drain(reason):
            return []
        return self._conversation.seeking.take_back(now) + self._payloads.drain(reason.text, now)

    def _evict(self, reason: str, now: Moment, *, at_once: bool = False) -> Instructions:
        return self._payloads.stop_all(Ending(Outcome.EVICTED, reason), now, at_once=at_once)

    def _stop(self, reason: str, now: Moment, *, at_once: bool) -> Instructions:
        patience = self._rules.goodbye_patience_s + (0.0 if at_once else self._rules.grace_s)
        self._departure.hurry(now.boot_s + patience)
        return self._evict(reason, now, at_once=at_once) + self._drain(reason, now)

    def _late_warning(self, key: AttemptKey, now: Moment) -> Instructions:
        return self._payloads.warn(key, self._glidein_end.time_left_s(now)) if self._glidein_end.is_announced else []

    def _go_on(self, now: Moment) -> Instructions:
        instructions = self._payloads.due(now) + self._near_the_end(now)
        if self._patience.watch(working=self._payloads.working, now=now):
            self._conversation.seeking.asked_in_vain = False
        instructions += self._reasons_to_leave(now)
        instructions += self._next_turns(now)
        instructions += self._looks.due(now)
        if self.phase in (Phase.OPEN, Phase.DRAINING):
            # Slots that are about to look at themselves are asked for when they have done so.
            asks = self._takes_jobs(now) and self._slots.next_poll_boot_s() > now.boot_s
            wait_s = self._patience.wait_s(now)
            instructions += self._conversation.speak(now, wait_s, takes_jobs=asks, drains=self._drains(now))
        return instructions + self._leave(now)

    def _near_the_end(self, now: Moment) -> Instructions:
        instructions: Instructions = []
        if self._glidein_end.announce(now):
            instructions += self._payloads.warn_all(self._glidein_end.time_left_s(now))
        if self._glidein_end.is_near(now):
            instructions += self._drain_for(Reason("the end of its glidein is near", of_itself=True), now)
        if self._glidein_end.begin_eviction(now):
            self._departure.hurry(now.boot_s + self._glidein_end.stop_margin_s)
            instructions += self._evict("the glidein ends", now)
        return instructions

    def _reasons_to_leave(self, now: Moment) -> Instructions:
        if self._payloads.node_fails_jobs:
            return self._drain("too many starts failed on this node", now, ExitCode.NODE_UNFIT)
        idle_end_boot_s = self._patience.idle_end_boot_s()
        if now.boot_s >= idle_end_boot_s:
            if self._conversation.seeking.found_nothing(idle_end_boot_s):
                return self._drain_for(Reason(f"it had no job for {self._rules.max_idle_s:g} s", of_itself=True), now)
            return self._conversation.seeking.ask_once_more(now)
        if now.boot_s >= self._patience.unreachable_boot_s(self._conversation.heard_boot_s):
            self._departure.hurry(now.boot_s + self._rules.goodbye_patience_s)
            return self._drain("the server could not be reached for too long", now, ExitCode.NO_SERVER)
        return []

    def _leave(self, now: Moment) -> Instructions:
        if self.phase is Phase.DRAINING:
            done = not len(self._payloads) and self._conversation.is_silent
            if not done and not self._departure.gives_up(now):
                return []
            self._conversation.seeking.forget()
            self._departure.leave(self._rules.goodbye_patience_s, now)
        if self._departure.is_over(now):
            return [self._end_pilot()]
        if self.phase is Phase.LEAVING and self._departure.reason is not None:
            return self._conversation.good_bye(self._departure.reason, now)
        return []

    def _end_pilot(self) -> EndPilot:
        reason = self._departure.end()
        return EndPilot(reason.text, reason.exit_code)

    def alarm_boot_s(self, now: Moment) -> float:
        """Return when TimePassed is needed at the latest, on the boot clock; infinity = never."""
        if self.phase is Phase.ENDED:
            return NEVER
        times = [*self._payloads.alarms(), *self._departure.alarms(), *self._turning_points(now)]
        times += [self._slots.next_poll_boot_s(), self._looks.alarm_boot_s()]
        if self.phase is Phase.LEAVING:
            times += self._conversation.good_bye_alarms()
        else:
            times += self._conversation.alarms(now, takes_jobs=self._takes_jobs(now))
        return min(times, default=NEVER)

    def _turning_points(self, now: Moment) -> Iterable[float]:
        points = (*self._glidein_end.alarms(), *self._patience.alarms(self._conversation.heard_boot_s))
        return (point for point in points if point > now.boot_s)

    def validate(self) -> None:
        """Raise AssertionError where the parts do not go together."""
        self._payloads.validate()
        self._conversation.validate()
        assert (self._departure.reason is None) == self._departure.is_open, "a pilot that is not open says why"
        held = [attempt.key for attempt in self._payloads]
        assert self.phase is not Phase.OPEN or len(held) == len(set(held)), "an attempt is held twice"
