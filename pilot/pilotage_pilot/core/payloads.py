"""The attempts that a pilot holds: how each goes on until its payload is gone, and when and why it is stopped.

Rules
-----
An attempt leaves this book only when the server has taken (or refused) its outcome. Leases are counted on the
boot clock from the sending of the request or heartbeat that gave them. Who wants a payload stopped tells its slot;
what the slot then wants is done here. Nothing here talks to the server.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, assert_never

from pilotage_pilot.core import instructions as ins
from pilotage_pilot.core.attempt_book import AttemptBook
from pilotage_pilot.core.attempts import (
    SLOT_SHOWS,
    STARTED,
    UNSTARTED,
    Attempt,
    Ending,
    Stage,
    Step,
)
from pilotage_pilot.core.events import StartFailed
from pilotage_pilot.core.jobs import AttemptKey, GrantedJob, Outcome, ReportedState
from pilotage_pilot.core.moment import Moment
from pilotage_pilot.core.node_slots import JobOrder, NodeSlots
from pilotage_pilot.core.payload_ends import Instructions, PayloadEnds
from pilotage_pilot.core.rules import Rules
from pilotage_pilot.core.slot_events import ContinueJob, KillJob, StopJob, SuspendJob


class Payloads:
    """The attempts of one pilot, with the slots that they are in; `ends` takes those over whose payloads are gone."""

    def __init__(self, slots: NodeSlots, rules: Rules) -> None:
        self.slots = slots
        self._rules = rules
        self._attempts = AttemptBook()
        self.ends = PayloadEnds(self._attempts, slots, rules)
        self._node_failures = 0
        self.has_run_any = False

    def __len__(self) -> int:
        return len(self._attempts)

    def __iter__(self) -> Iterator[Attempt]:
        return iter(self._attempts)

    def get(self, key: AttemptKey) -> Attempt | None:
        """Return an attempt; None = the pilot does not hold it (any more)."""
        return self._attempts.get(key)

    @property
    def working(self) -> bool:
        """Whether any attempt is not at its end yet."""
        return bool(self._attempts.under_way())

    @property
    def node_fails_jobs(self) -> bool:
        """Whether too many starts in a row failed on the node's side."""
        return self._node_failures >= self._rules.failed_starts

    def leases(self) -> tuple[AttemptKey, ...]:
        """Return the attempts whose leases are to be renewed."""
        return tuple(attempt.key for attempt in self._attempts.under_way())

    # From the grant to the payload ------------------------------------------------------------------------------

    def begin(self, prepare: ins.PrepareJob, lease_end_boot_s: float) -> Instructions:
        """Hold the attempt of a job that has entered its slot, until its lease ends."""
        self._attempts.put(Attempt(prepare.job, lease_end_boot_s))
        return [prepare]

    def give_back(self, job: GrantedJob, ending: Ending, now: Moment) -> None:
        """Give a job back that has not entered a slot."""
        self._attempts.put(Attempt(job, now.boot_s, Stage.REPORTING, ending, ended=now, report_boot_s=now.boot_s))

    def renew(self, key: AttemptKey, lease_end_boot_s: float) -> None:
        """Let a lease go on."""
        attempt = self._attempts.get(key)
        if attempt is not None:
            self._attempts.put(replace(attempt, lease_end_boot_s=lease_end_boot_s))

    def lease_end_boot_s(self, lease_s: float, sent_boot_s: float) -> float:
        """Return by when a payload is killed whose lease was given or renewed by what was sent then."""
        return sent_boot_s + lease_s - self._rules.margin_of(lease_s)

    def prepared(self, key: AttemptKey, now: Moment) -> Instructions:
        """Start the payload whose folder is ready, unless it is not wanted any more."""
        attempt = self._attempts.get(key)
        if attempt is None or attempt.stage not in (Stage.PREPARING, Stage.KILLING):
            return []
        if attempt.stage is Stage.KILLING:
            return self.ends.finish(attempt, Step.PREPARED, now)
        self._move(attempt, Step.PREPARED, now)
        return [ins.StartPayload(key)]

    def start_failed(self, event: StartFailed, now: Moment) -> Instructions:
        """End an attempt that has no payload and will have none."""
        attempt = self._attempts.get(event.key)
        if attempt is None or attempt.stage not in UNSTARTED | {Stage.KILLING}:
            return []
        if attempt.ending is None and event.outcome is Outcome.START_FAILED:
            self._node_failures += 1
        ending = attempt.ending or Ending(event.outcome, event.reason)
        return self.ends.finish(attempt, Step.NOT_STARTED, now, ending=ending)

    def started(self, key: AttemptKey, now: Moment) -> Instructions:
        """Note that a payload runs; kill it where that was ordered meanwhile."""
        attempt = self._attempts.get(key)
        if attempt is None or attempt.stage not in (Stage.STARTING, Stage.KILLING):
            return []
        self._node_failures = 0
        self.has_run_any = True
        self._move(attempt, Step.STARTED, now, started=now, clock_boot_s=now.boot_s)
        if attempt.stage is Stage.KILLING:
            return [ins.KillPayload(key)]
        return self.obey(self.slots.job_started(key, now), now)

    # Orders -----------------------------------------------------------------------------------------------------

    def stop(self, key: AttemptKey, ending: Ending, now: Moment) -> Instructions:
        """Ask a payload to end itself, and kill it when its grace is over; the first ending that is ordered stands."""
        attempt = self._attempts.get(key)
        if attempt is None or attempt.stage not in UNSTARTED | STARTED:
            return []
        self._attempts.put(replace(attempt, ending=attempt.ending or ending))
        return self.obey(self.slots.kill(key, ending.reason, self._rules.grace_s, now), now)

    def kill(self, key: AttemptKey, ending: Ending, now: Moment) -> Instructions:
        """End a payload, or what is done for it, at once; the first ending that was ordered stands."""
        attempt = self._attempts.get(key)
        if attempt is None or attempt.stage in (Stage.KILLING, Stage.REPORTING):
            return []
        if attempt.stage is Stage.STORING:
            return self.ends.finish(attempt, Step.ABANDONED, now, ending=ending)
        self._attempts.put(replace(attempt, ending=attempt.ending or ending))
        return self.obey(self.slots.kill(key, ending.reason, None, now), now)

    def stop_all(self, ending: Ending, now: Moment, *, at_once: bool) -> Instructions:
        """Stop (or kill, `at_once`) every attempt whose payload has not ended."""
        act = self.kill if at_once else self.stop
        ours = [attempt.key for attempt in self._attempts.under_way() if attempt.stage in UNSTARTED | STARTED]
        return [instruction for key in ours for instruction in act(key, ending, now)]

    def drain(self, reason: str, now: Moment) -> Instructions:
        """Let the slots take no more jobs; those that are plugged end at once."""
        plugged = [attempt for attempt in self._attempts.under_way() if attempt.is_plugged]
        ends = [instruction for attempt in plugged for instruction in self.ends.unplug(attempt, now)]
        return ends + self.obey(self.slots.drain(now, reason), now)

    def obey(self, orders: Iterable[JobOrder], now: Moment) -> Instructions:
        """Do what slots want of the attempts in them."""
        return [instruction for order in orders for instruction in self._obey(order, now)]

    def _obey(self, order: JobOrder, now: Moment) -> Instructions:
        attempt, effect = self._attempts[order.key], order.effect
        match effect:
            case SuspendJob():
                self._move(attempt.clocked(now), Step.SUSPENDED, now)
                return [ins.SuspendPayload(attempt.key)] if not attempt.is_plugged else []
            case ContinueJob():
                self._move(attempt.clocked(now), Step.CONTINUED, now)
                # A payload whose lease has ended meanwhile is about to be killed.
                goes_on = attempt.lease_end_boot_s > now.boot_s and not attempt.is_plugged
                return [ins.ContinuePayload(attempt.key)] if goes_on else []
            case StopJob(_, reason, hold) | KillJob(reason, hold):
                if attempt.stage not in UNSTARTED | STARTED - {Stage.KILLING}:
                    return []
                if attempt.is_plugged:
                    return self.ends.unplug(attempt, now)
                ending = attempt.ending or Ending(Outcome.EVICTED, reason, hold)
                gently = isinstance(effect, StopJob) and attempt.stage not in UNSTARTED
                step = Step.STOP_ORDERED if gently else Step.KILL_ORDERED
                self._move(attempt.clocked(now), step, now, ending=ending)
                return [ins.StopPayload(attempt.key) if gently else ins.KillPayload(attempt.key)]
            case _:
                assert_never(effect)

    def warn(self, key: AttemptKey, left_s: float) -> Instructions:
        """Warn a payload, if it runs or is suspended."""
        attempt = self._attempts.get(key)
        if attempt is None or attempt.is_plugged or attempt.stage not in (Stage.RUNNING, Stage.SUSPENDED):
            return []
        return [ins.WarnPayload(key, left_s)]

    def warn_all(self, left_s: float) -> Instructions:
        """Warn every payload that runs or is suspended."""
        return [warning for attempt in self._attempts.under_way() for warning in self.warn(attempt.key, left_s)]

    # Time -------------------------------------------------------------------------------------------------------

    def due(self, now: Moment) -> Instructions:
        """Do what time has made due: ended leases, passed limits, second tries."""
        return [instruction for attempt in self._attempts.under_way() for instruction in self._due_of(attempt, now)]

    def _due_of(self, attempt: Attempt, now: Moment) -> Instructions:
        if attempt.stage in UNSTARTED | STARTED and attempt.lease_end_boot_s <= now.boot_s:
            return self.kill(attempt.key, Ending(Outcome.KILLED, "its lease was not renewed in time"), now)
        if attempt.retry_boot_s is not None and attempt.retry_boot_s <= now.boot_s:
            self._attempts.put(replace(attempt, retry_boot_s=None))
            return [ins.StoreOutput(attempt.key)] if attempt.stage is Stage.STORING else []
        if attempt.plug_end_boot_s is not None and attempt.plug_end_boot_s <= now.boot_s:
            return self.ends.unplug(attempt, now)
        if attempt.is_out_of_time(now):
            limit = attempt.job.description.wall_time
            ending = Ending(Outcome.LIMIT_EXCEEDED, f"it ran longer than its wall time of {limit}")
            return self.stop(attempt.key, ending, now)
        return []

    def alarms(self) -> Iterator[float]:
        """Yield the times, on the boot clock, at which `due` may have something to do."""
        for attempt in self._attempts.under_way():
            if attempt.stage in UNSTARTED | STARTED and attempt.stage is not Stage.KILLING:
                yield attempt.lease_end_boot_s
            for moment in (attempt.retry_boot_s, attempt.wall_end_boot_s(), attempt.plug_end_boot_s):
                if moment is not None:
                    yield moment

    # What the server has heard ----------------------------------------------------------------------------------

    def untold_ends(self) -> Iterator[Attempt]:
        """Yield the attempts that have ended and that the server has not been told of, the first that ended first."""
        return self._attempts.untold_ends()

    def news_under_way(self) -> Iterator[Attempt]:
        """Yield the attempts that have not ended and of which the server has something to be told."""
        return (attempt for attempt in self._attempts.under_way() if attempt.untold() is not None)

    def told(self, key: AttemptKey, state: ReportedState | None) -> None:
        """Note what was last sent of an attempt; None = the message was lost."""
        attempt = self._attempts.get(key)
        if attempt is not None:
            self._attempts.put(replace(attempt, told=state))

    def acknowledged(self, key: AttemptKey) -> None:
        """Forget an attempt whose outcome the server has taken or refused."""
        self._attempts.remove_ended(key)

    def _move(self, attempt: Attempt, step: Step, now: Moment, **changes: Any) -> None:
        self._attempts.put(attempt.step(step, report_boot_s=self._rules.tell_by_boot_s(now), **changes))

    def validate(self) -> None:
        """Raise AssertionError where attempts and slots do not go together."""
        self.slots.validate()
        for attempt in self:
            slot = self.slots.of(attempt.key)
            shown = None if slot is None else (slot.state, slot.activity)
            assert shown in SLOT_SHOWS[attempt.stage], f"{attempt.key} is {attempt.stage} in a slot that is {shown}"
            if attempt.stage is Stage.REPORTING:
                assert attempt.ending is not None, f"{attempt.key} has ended without a reason"
