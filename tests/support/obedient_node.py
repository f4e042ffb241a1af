"""A node that does what a slot's machine says, for tests of the machine: it asserts what must never be said."""

from __future__ import annotations

from typing import Any

import pytest

from pilotage_pilot.core.slots import events as ev
from pilotage_pilot.core.slots.machine import IllegalSlotEventError, SlotMachine
from pilotage_pilot.core.slots.states import RUNNING, Activity, SlotState
from support.slot_bench import BOOT_S, Answers, at


class ObedientNode:
    """Keeps how it stands with the job of one slot, and for how long it ran."""

    def serve(self, judge: Answers) -> None:
        """Begin with a policy that answers like this; the first slot is still to be made."""
        self.boot_s = BOOT_S
        self.judge = judge

    def _serve_slot(self, *, dynamic: bool) -> None:
        self.dynamic = dynamic
        self.slot = SlotMachine(at(self.boot_s), dynamic=dynamic)
        self._forget_job()

    def _forget_job(self) -> None:
        self.has_job = self.started = self.stands = self.asked = self.killed = False
        self.by_command = False
        self.ran_s = 0.0

    def _feed(self, event: ev.SlotEvent) -> tuple[ev.SlotEffect, ...]:
        before = self.slot.state
        said = self.slot.handle(event, self.judge, at(self.boot_s))
        self.slot.validate()
        for effect in said:
            self._do(effect, event)
        signalled = any(isinstance(effect, ev.SuspendJob | ev.ContinueJob) for effect in said)
        assert not signalled or len(said) == 1, f"{said} contradict one another"
        drained = before is SlotState.DRAINED and self.slot.state is not SlotState.DRAINED
        assert not drained, f"{event} undid a drain"
        alarm = self.slot.alarm_boot_s(self.judge)
        assert alarm > self.boot_s, f"after {event} at {self.boot_s} the slot wants to be polled at {alarm}"
        return said

    def _do(self, effect: ev.SlotEffect, event: ev.SlotEvent) -> None:
        match effect:
            case ev.SuspendJob():
                assert self.started, "a job is suspended that does not run"
                self._is_in_peace()
                self.stands = True
            case ev.ContinueJob():
                assert self.stands, "a job is continued that runs"
                wanted = isinstance(event, ev.ContinueOrdered) or not self.by_command
                assert wanted or self.slot.activity is Activity.RETIRING, "a command to suspend is not obeyed"
                self.stands = self.by_command = False
            case ev.StopJob(grace_s):
                self._is_in_peace(suspended=self.stands)
                assert grace_s > 0
                self.asked, self.stop_end_s = True, self.boot_s + grace_s
            case ev.KillJob():
                assert self.has_job, "nothing to kill"
                assert not self.killed, "a job is killed twice"
                self.asked = self.killed = True
            case ev.RefuseClaim():
                assert isinstance(event, ev.ClaimGranted)
            case ev.EndClaim():
                assert not self.has_job, "a claim ends while its job is there"
            case ev.DeleteSlot():
                assert self.dynamic, "a static slot is deleted"
                assert not self.has_job, "a slot is deleted with its job"

    def _is_in_peace(self, *, suspended: bool = False) -> None:
        assert self.has_job, "nothing to suspend or stop"
        assert self.stands == suspended, "a job is suspended twice"
        assert not self.asked, "a job has been asked to end itself already"

    def _wait(self, seconds: float) -> None:
        self.boot_s += seconds
        if self.slot.state is SlotState.CLAIMED and self.slot.activity in RUNNING:
            self.ran_s += seconds

    def _is_refused(self, event: ev.SlotEvent) -> None:
        before = self._seen()
        with pytest.raises(IllegalSlotEventError):
            self.slot.handle(event, self.judge, at(self.boot_s))
        assert before == self._seen()

    def _seen(self) -> tuple[Any, ...]:
        slot = self.slot
        since = (slot.entered_state, slot.entered_activity)
        return (slot.state, slot.activity, since, slot.claim, slot.job, slot.preemption, slot.draining)
