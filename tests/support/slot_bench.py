"""The state machine of one slot under test: the test evaluates its policy and is its clock."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pilotage.values.accounts import Account
from pilotage_pilot.core.model import Now
from pilotage_pilot.core.slots import events as ev
from pilotage_pilot.core.slots.machine import IllegalSlotEventError, SlotMachine
from pilotage_pilot.core.slots.states import RUNNING, Activity, DrainHow, SlotState

START = datetime(2026, 11, 20, 12, tzinfo=UTC)
BOOT_S = 5_000.0
ANN = Account("lhcb", "user", "ann")
BOB = Account("lhcb", "user", "bob")
DEFAULTS: Mapping[str, Any] = {
    "IS_OWNER": False,
    "CONTINUE": True,
    "WANT_VACATE": True,
    "MaxJobRetirementTime": 0,
    "MachineMaxVacateTime": 600,
    "CLAIM_WORKLIFE": 1200,
    "POLLING_INTERVAL": 5,
    "UPDATE_INTERVAL": 300,
}

OWNED = (SlotState.OWNER, Activity.IDLE)
UNCLAIMED = (SlotState.UNCLAIMED, Activity.IDLE)
IDLE = (SlotState.CLAIMED, Activity.IDLE)
BUSY = (SlotState.CLAIMED, Activity.BUSY)
SUSPENDED = (SlotState.CLAIMED, Activity.SUSPENDED)
RETIRING = (SlotState.CLAIMED, Activity.RETIRING)
VACATING = (SlotState.PREEMPTING, Activity.VACATING)
KILLING = (SlotState.PREEMPTING, Activity.KILLING)
DRAINING = (SlotState.DRAINED, Activity.RETIRING)
DRAINED = (SlotState.DRAINED, Activity.IDLE)


def at(boot_s: float) -> Now:
    return Now(START + timedelta(seconds=boot_s - BOOT_S), boot_s)


class FakePolicyEvaluator:
    """A policy evaluator with fixed values by name; a value may also be a function without arguments."""

    def __init__(self, *, polls: bool = True, job: Mapping[str, float] | None = None, **values: Any) -> None:
        self.polls = polls
        self.job = dict(job or {})
        self.values: dict[str, Any] = {**DEFAULTS, **values}

    def _of(self, name: str) -> Any:
        value = self.values.get(name)
        return value() if callable(value) else value

    def truth(self, name: str) -> bool | None:
        value = self._of(name)
        return value if isinstance(value, bool) else None

    def number(self, name: str) -> float | None:
        value = self._of(name)
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None

    def text(self, name: str) -> str | None:
        value = self._of(name)
        return value if isinstance(value, str) else None

    def job_number(self, attribute: str) -> float | None:
        return self.job.get(attribute)


class SlotBench:
    """Feeds events to a slot machine, records its effects, and validates it after every step."""

    def __init__(
        self, *, dynamic: bool = False, polls: bool = True, job: Mapping[str, float] | None = None, **answers: Any
    ) -> None:
        self.boot_s = BOOT_S
        self.evaluator = FakePolicyEvaluator(polls=polls, job=job, **answers)
        self.machine = SlotMachine(self.now, dynamic=dynamic)
        self.effects: list[ev.SlotEffect] = []
        if not dynamic:
            self.feed(ev.Polled())

    @property
    def now(self) -> Now:
        return at(self.boot_s)

    @property
    def state_and_activity(self) -> tuple[SlotState, Activity]:
        return self.machine.state, self.machine.activity

    def feed(self, event: ev.SlotEvent) -> tuple[ev.SlotEffect, ...]:
        effects = self.machine.handle(event, self.evaluator, self.now)
        self.machine.validate()
        self.effects += effects
        return effects

    def answer(self, **values: Any) -> None:
        self.evaluator.values |= values

    def poll(self, **values: Any) -> tuple[ev.SlotEffect, ...]:
        """Poll the slot now, with these values of its policy."""
        self.answer(**values)
        return self.feed(ev.Polled())

    def pass_time(self, seconds: float) -> list[ev.SlotEffect]:
        """Let time pass, with a poll at every alarm of the slot; returns the effects."""
        end, before = self.boot_s + seconds, len(self.effects)
        while (alarm := self.machine.alarm_boot_s(self.evaluator)) <= end:
            assert alarm > self.boot_s or self.boot_s == BOOT_S, "an alarm in the past"
            self.boot_s = max(self.boot_s, alarm)
            self.feed(ev.Polled())
        self.boot_s = end
        return self.effects[before:]

    def claim(self, holder: Account = ANN, rank: float = 0.0) -> tuple[ev.SlotEffect, ...]:
        return self.feed(ev.ClaimGranted(holder, rank))

    def start(self, holder: Account = ANN) -> tuple[ev.SlotEffect, ...]:
        """Claim the slot for a job that starts at once."""
        self.claim(holder)
        return self.feed(ev.JobStarted())

    def end(self) -> tuple[ev.SlotEffect, ...]:
        return self.feed(ev.JobEnded())

    def drain(self, how: DrainHow = DrainHow.GRACEFUL) -> tuple[ev.SlotEffect, ...]:
        return self.feed(ev.DrainOrdered(how, "the node drains"))


def a_busy_slot(**answers: Any) -> SlotBench:
    bench = SlotBench(**answers)
    bench.start()
    return bench


def kinds(effects: tuple[ev.SlotEffect, ...] | list[ev.SlotEffect]) -> list[type[ev.SlotEffect]]:
    return [type(effect) for effect in effects]


class ModelSlotNode:
    """A model of the job in one slot, which checks every effect of the slot machine."""

    def serve(self, judge: FakePolicyEvaluator) -> None:
        """Start with this policy and without a slot."""
        self.boot_s = BOOT_S
        self.evaluator = judge

    def _serve_slot(self, *, dynamic: bool) -> None:
        self.dynamic = dynamic
        self.slot = SlotMachine(at(self.boot_s), dynamic=dynamic)
        self._forget_job()

    def _forget_job(self) -> None:
        self.has_job = self.started = self.is_suspended = self.stop_requested = self.killed = False
        self.by_command = False
        self.ran_s = 0.0

    def _feed(self, event: ev.SlotEvent) -> tuple[ev.SlotEffect, ...]:
        before = self.slot.state
        effects = self.slot.handle(event, self.evaluator, at(self.boot_s))
        self.slot.validate()
        for effect in effects:
            self._do(effect, event)
        signalled = any(isinstance(effect, ev.SuspendJob | ev.ContinueJob) for effect in effects)
        assert not signalled or len(effects) == 1, f"{effects} contradict one another"
        drained = before is SlotState.DRAINED and self.slot.state is not SlotState.DRAINED
        assert not drained, f"{event} undid a drain"
        alarm = self.slot.alarm_boot_s(self.evaluator)
        assert alarm > self.boot_s, f"after {event} at {self.boot_s} the slot wants to be polled at {alarm}"
        return effects

    def _do(self, effect: ev.SlotEffect, event: ev.SlotEvent) -> None:
        match effect:
            case ev.SuspendJob():
                assert self.started, "the slot suspends a job that does not run"
                self._check_runs_unasked()
                self.is_suspended = True
            case ev.ContinueJob():
                assert self.is_suspended, "the slot continues a job that is not suspended"
                wanted = isinstance(event, ev.ContinueOrdered) or not self.by_command
                assert wanted or self.slot.activity is Activity.RETIRING, (
                    "the slot continues a job that was suspended by command"
                )
                self.is_suspended = self.by_command = False
            case ev.StopJob(grace_s):
                self._check_runs_unasked(suspended=self.is_suspended)
                assert grace_s > 0
                self.stop_requested, self.stop_end_s = True, self.boot_s + grace_s
            case ev.KillJob():
                assert self.has_job, "nothing to kill"
                assert not self.killed, "a job is killed twice"
                self.stop_requested = self.killed = True
            case ev.RefuseClaim():
                assert isinstance(event, ev.ClaimGranted)
            case ev.EndClaim():
                assert not self.has_job, "a claim ends while its job is there"
            case ev.DeleteSlot():
                assert self.dynamic, "a static slot is deleted"
                assert not self.has_job, "a slot is deleted with its job"

    def _check_runs_unasked(self, *, suspended: bool = False) -> None:
        assert self.has_job, "nothing to suspend or stop"
        assert self.is_suspended == suspended, "a job is suspended twice"
        assert not self.stop_requested, "the job has already been told to stop"

    def _wait(self, seconds: float) -> None:
        self.boot_s += seconds
        if self.slot.state is SlotState.CLAIMED and self.slot.activity in RUNNING:
            self.ran_s += seconds

    def _is_refused(self, event: ev.SlotEvent) -> None:
        before = self._seen()
        with pytest.raises(IllegalSlotEventError):
            self.slot.handle(event, self.evaluator, at(self.boot_s))
        assert before == self._seen()

    def _seen(self) -> tuple[Any, ...]:
        slot = self.slot
        since = (slot.entered_state, slot.entered_activity)
        return (slot.state, slot.activity, since, slot.claim, slot.job, slot.preemption, slot.draining)
