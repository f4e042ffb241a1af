"""Whatever happens to a slot, and whatever its policy says, its machine keeps its word."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pilotage.values.accounts import Account
from pilotage_pilot.core.slots import events as ev
from pilotage_pilot.core.slots.states import STATES, Activity, DrainHow, Draining, SlotState
from support.slot_bench import ANN, BOB, Answers, ObedientNode, at

QUIET = {"IS_OWNER": False, "WANT_SUSPEND": False, "SUSPEND": False, "CONTINUE": True, "PREEMPT": False, "KILL": False}
MOODS = st.sampled_from(
    [
        QUIET,
        {"WANT_SUSPEND": True, "SUSPEND": True, "CONTINUE": False},
        {"SUSPEND": False, "CONTINUE": True},
        {"SUSPEND": False, "CONTINUE": None},
        {"PREEMPT": True, "WANT_VACATE": True, "WANT_HOLD": True},
        {"PREEMPT": True, "WANT_VACATE": None},
        {"KILL": True},
        {"IS_OWNER": True},
        {"START": True},
        dict.fromkeys(QUIET, "True"),
    ]
)
NUMBERS = ("MaxJobRetirementTime", "MachineMaxVacateTime", "CLAIM_WORKLIFE", "POLLING_INTERVAL", "UPDATE_INTERVAL")
SAID_NUMBER = st.sampled_from([None, -1, 0, 1, 30, 100, 1000])
WAITS = st.sampled_from([0, 1, 5, 29, 30, 100, 1000])
GRACES = st.sampled_from([None, 0, 20, 700])
REASON = "somebody wants it"
LATE = st.sampled_from(
    [
        ev.PreemptionOrdered(REASON),
        ev.PreemptionWithdrawn(),
        ev.ReleaseOrdered(REASON),
        ev.KillOrdered(REASON, hard=True),
        ev.SuspendOrdered(),
        ev.ContinueOrdered(),
    ]
)
FREE = (SlotState.OWNER, SlotState.UNCLAIMED)


class SlotWorld(ObedientNode, RuleBasedStateMachine):
    """A node that does what the slot says, a policy that says anything, and people who order anything."""

    @initialize(dynamic=st.booleans(), polls=st.booleans())
    def begin(self, dynamic: bool, polls: bool) -> None:
        self.serve(Answers(polls=polls, MaxJobRetirementTime=1000, MachineMaxVacateTime=30))
        self._make_slot(dynamic)
        self.job_starts()

    def _make_slot(self, dynamic: bool) -> None:
        self.judge.said |= QUIET
        self._serve_slot(dynamic=dynamic)
        if not dynamic:
            self._feed(ev.Polled())
        self.job_is_granted(ANN)

    # What the node does -----------------------------------------------------------------------------------------

    @rule(seconds=WAITS)
    def time_passes(self, seconds: float) -> None:
        end = self.boot_s + seconds
        while (alarm := self.slot.alarm_boot_s(self.judge)) <= end:
            self._wait(alarm - self.boot_s)
            self._feed(ev.Polled())
        self._wait(end - self.boot_s)

    @precondition(lambda self: self.slot.deleted)
    @rule(dynamic=st.booleans())
    def another_slot_is_made(self, dynamic: bool) -> None:
        self._is_refused(ev.Polled())
        self._make_slot(dynamic)

    # What the policy says ---------------------------------------------------------------------------------------

    @precondition(lambda self: not self.slot.deleted)
    @rule(mood=MOODS)
    def policy_says(self, mood: dict[str, Any]) -> None:
        self.judge.said |= mood
        self._feed(ev.Polled())

    @precondition(lambda self: not self.slot.deleted)
    @rule(name=st.sampled_from(NUMBERS), number=SAID_NUMBER)
    def policy_counts(self, name: str, number: float | None) -> None:
        self.judge.said[name] = number
        self._feed(ev.Polled())

    # What the job does ------------------------------------------------------------------------------------------

    @property
    def _takes_jobs(self) -> bool:
        return self.slot.state in FREE or (self.slot.state is SlotState.CLAIMED and not self.has_job)

    @precondition(lambda self: not self.slot.deleted and self._takes_jobs)
    @rule(holder=st.sampled_from([ANN, ANN, BOB]))
    def job_is_granted(self, holder: Account) -> None:
        before, activations = self._seen(), self.slot.claim.activations if self.slot.claim else 0
        said = self._feed(ev.ClaimGranted(holder))
        if any(isinstance(effect, ev.RefuseClaim) for effect in said):
            assert len(said) == 1, "a refused claim does more than that"
            assert before == self._seen(), "a refused claim has changed the slot"
            return
        assert self.slot.claim is not None
        assert self.slot.claim.holder == holder
        goes_on = before[3] is not None and not said
        assert self.slot.claim.activations == (activations if goes_on else 0)
        self._forget_job()
        self.has_job = True

    @precondition(lambda self: self.has_job and not self.started)
    @rule()
    def job_starts(self) -> None:
        self.started = True
        self._feed(ev.JobStarted())

    @precondition(lambda self: self.has_job)
    @rule()
    def job_ends(self) -> None:
        asked = self.asked
        self._forget_job()
        said = self._feed(ev.JobEnded())
        assert not asked or any(isinstance(effect, ev.EndClaim) for effect in said), "a preempted claim goes on"
        assert self.slot.state is not SlotState.PREEMPTING

    @precondition(lambda self: not self.slot.deleted)
    @rule()
    def what_cannot_be_is_refused(self) -> None:
        if not self.has_job or self.started:
            self._is_refused(ev.JobStarted())
        if not self.has_job:
            self._is_refused(ev.JobEnded())
        if not self._takes_jobs:
            self._is_refused(ev.ClaimGranted(BOB))
        if self.slot.state is not SlotState.DRAINED:
            self._is_refused(ev.NodeDrained())

    # What people and the server order ---------------------------------------------------------------------------

    @precondition(lambda self: self.slot.state is SlotState.CLAIMED)
    @rule()
    def a_better_job_waits(self) -> None:
        self._feed(ev.PreemptionOrdered(REASON))

    @precondition(lambda self: self.slot.preemption is not None)
    @rule()
    def no_better_job_waits(self) -> None:
        self._feed(ev.PreemptionWithdrawn())
        assert self.slot.preemption is None or self.asked

    @precondition(lambda self: self.slot.state is SlotState.CLAIMED)
    @rule()
    def claim_is_ended(self) -> None:
        self._feed(ev.ReleaseOrdered(REASON))

    @precondition(lambda self: self.has_job)
    @rule(grace_s=GRACES)
    def job_is_killed(self, grace_s: float | None) -> None:
        self._feed(ev.KillOrdered(REASON, hard=grace_s == 0, grace_s=grace_s))

    @precondition(lambda self: self.slot.state is SlotState.CLAIMED and self.started)
    @rule()
    def job_is_suspended(self) -> None:
        self.by_command = True
        self._feed(ev.SuspendOrdered())
        self.by_command = self.stands

    @precondition(lambda self: self.stands and not self.asked)
    @rule()
    def job_is_continued(self) -> None:
        self._feed(ev.ContinueOrdered())

    @precondition(lambda self: self.slot.state is not SlotState.CLAIMED and not self.slot.deleted and not self.has_job)
    @rule(order=LATE)
    def an_order_comes_too_late(self, order: ev.SlotEvent) -> None:
        claim = self.slot.claim
        self._feed(order)
        assert self.slot.claim is claim

    @precondition(lambda self: not self.slot.deleted)
    @rule(how=st.sampled_from(DrainHow))
    def node_drains(self, how: DrainHow) -> None:
        self._feed(ev.DrainOrdered(how, REASON))

    @precondition(lambda self: self.slot.draining is not None and not self.slot.deleted)
    @rule(seconds=WAITS)
    def drain_time_is_counted(self, seconds: float) -> None:
        self._feed(ev.DrainTimeCounted(self.boot_s + seconds))

    @precondition(lambda self: self.slot.state is SlotState.DRAINED)
    @rule()
    def node_is_drained(self) -> None:
        self._feed(ev.NodeDrained())
        assert self.slot.activity is Activity.IDLE

    # What always holds ------------------------------------------------------------------------------------------

    @invariant()
    def states_and_jobs_go_together(self) -> None:
        pair = (self.slot.state, self.slot.activity)
        assert pair in STATES
        assert (self.slot.job is not None) == self.has_job
        assert not self.has_job or self.slot.state in (SlotState.CLAIMED, SlotState.PREEMPTING)
        assert (self.slot.activity is Activity.SUSPENDED) == (self.stands and not self.asked)
        assert self.asked == (self.slot.state is SlotState.PREEMPTING)
        assert self.killed == (self.slot.activity is Activity.KILLING)
        assert self.slot.deleted <= self.dynamic

    @invariant()
    def a_job_that_does_not_end_itself_is_killed(self) -> None:
        if self.asked and not self.killed:
            assert self.boot_s < self.stop_end_s, "a preempted job goes on for ever"

    @invariant()
    def retirement_is_never_longer_than_the_policy_allows(self) -> None:
        """Hold against the policy, not against the machine's own arithmetic."""
        slot, draining = self.slot, self.slot.draining
        has_to_go = slot.preemption is not None or draining is not None or slot.activity is Activity.RETIRING
        stays = slot.state is SlotState.CLAIMED and self.started
        if has_to_go and stays and _has_its_own_retirement_only(draining):
            granted_s = self.judge.number("MaxJobRetirementTime") or 0.0
            assert self.ran_s < max(granted_s, 0.0), "a job stays that has no retirement left"

    @invariant()
    def the_time_that_a_job_ran_adds_up(self) -> None:
        if self.slot.job is not None:
            assert self.slot.job.run.seconds(at(self.boot_s)) == self.ran_s


def _has_its_own_retirement_only(draining: Draining | None) -> bool:
    if draining is None:
        return True
    counted = draining.how is DrainHow.GRACEFUL and draining.originals_until_boot_s is not None
    return draining.how is not DrainHow.PEACEFUL and not counted


TestSlotWorld = SlotWorld.TestCase
TestSlotWorld.settings = settings(stateful_step_count=60)
