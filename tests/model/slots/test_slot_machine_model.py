"""Random events and policy values of a slot: the state machine keeps its invariants."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pilotage.values.accounts import Account
from pilotage_pilot.core.slots import events as ev
from pilotage_pilot.core.slots.states import STATES, Activity, DrainHow, Draining, SlotState
from support.slot_bench import ANN, BOB, FakePolicyEvaluator, ModelSlotNode, at

INACTIVE_POLICY = {
    "IS_OWNER": False,
    "WANT_SUSPEND": False,
    "SUSPEND": False,
    "CONTINUE": True,
    "PREEMPT": False,
    "KILL": False,
}
POLICY_CHANGES = st.sampled_from(
    [
        INACTIVE_POLICY,
        {"WANT_SUSPEND": True, "SUSPEND": True, "CONTINUE": False},
        {"SUSPEND": False, "CONTINUE": True},
        {"SUSPEND": False, "CONTINUE": None},
        {"PREEMPT": True, "WANT_VACATE": True, "WANT_HOLD": True},
        {"PREEMPT": True, "WANT_VACATE": None},
        {"KILL": True},
        {"IS_OWNER": True},
        {"START": True},
        dict.fromkeys(INACTIVE_POLICY, "True"),
    ]
)
NUMBERS = ("MaxJobRetirementTime", "MachineMaxVacateTime", "CLAIM_WORKLIFE", "POLLING_INTERVAL", "UPDATE_INTERVAL")
POLICY_NUMBERS = st.sampled_from([None, -1, 0, 1, 30, 100, 1000])
WAITS = st.sampled_from([0, 1, 5, 29, 30, 100, 1000])
GRACES = st.sampled_from([None, 0, 20, 700])
REASON = "requested"
LATE_ORDERS = st.sampled_from(
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


class SlotModel(ModelSlotNode, RuleBasedStateMachine):
    """A node that executes the slot's instructions, with random policy values and random orders."""

    @initialize(dynamic=st.booleans(), polls=st.booleans())
    def begin(self, dynamic: bool, polls: bool) -> None:
        self.serve(FakePolicyEvaluator(polls=polls, MaxJobRetirementTime=1000, MachineMaxVacateTime=30))
        self._make_slot(dynamic)
        self.job_starts()

    def _make_slot(self, dynamic: bool) -> None:
        self.evaluator.values |= INACTIVE_POLICY
        self._serve_slot(dynamic=dynamic)
        if not dynamic:
            self._feed(ev.Polled())
        self.job_is_granted(ANN)

    # The node -----------------------------------------------------------------------------------------

    @rule(seconds=WAITS)
    def time_passes(self, seconds: float) -> None:
        end = self.boot_s + seconds
        while (alarm := self.slot.alarm_boot_s(self.evaluator)) <= end:
            self._wait(alarm - self.boot_s)
            self._feed(ev.Polled())
        self._wait(end - self.boot_s)

    @precondition(lambda self: self.slot.deleted)
    @rule(dynamic=st.booleans())
    def another_slot_is_made(self, dynamic: bool) -> None:
        self._is_refused(ev.Polled())
        self._make_slot(dynamic)

    # The policy ---------------------------------------------------------------------------------------

    @precondition(lambda self: not self.slot.deleted)
    @rule(change=POLICY_CHANGES)
    def policy_changes(self, change: dict[str, Any]) -> None:
        self.evaluator.values |= change
        self._feed(ev.Polled())

    @precondition(lambda self: not self.slot.deleted)
    @rule(name=st.sampled_from(NUMBERS), number=POLICY_NUMBERS)
    def policy_number_changes(self, name: str, number: float | None) -> None:
        self.evaluator.values[name] = number
        self._feed(ev.Polled())

    # The job ------------------------------------------------------------------------------------------

    @property
    def _takes_jobs(self) -> bool:
        return self.slot.state in FREE or (self.slot.state is SlotState.CLAIMED and not self.has_job)

    @precondition(lambda self: not self.slot.deleted and self._takes_jobs)
    @rule(holder=st.sampled_from([ANN, ANN, BOB]))
    def job_is_granted(self, holder: Account) -> None:
        before, activations = self._seen(), self.slot.claim.activations if self.slot.claim else 0
        effects = self._feed(ev.ClaimGranted(holder))
        if any(isinstance(effect, ev.RefuseClaim) for effect in effects):
            assert len(effects) == 1, "a refused claim has other effects"
            assert before == self._seen(), "a refused claim has changed the slot"
            return
        assert self.slot.claim is not None
        assert self.slot.claim.holder == holder
        is_continued = before[3] is not None and not effects
        assert self.slot.claim.activations == (activations if is_continued else 0)
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
        asked = self.stop_requested
        self._forget_job()
        effects = self._feed(ev.JobEnded())
        assert not asked or any(isinstance(effect, ev.EndClaim) for effect in effects), "a preempted claim continues"
        assert self.slot.state is not SlotState.PREEMPTING

    @precondition(lambda self: not self.slot.deleted)
    @rule()
    def illegal_events_are_rejected(self) -> None:
        if not self.has_job or self.started:
            self._is_refused(ev.JobStarted())
        if not self.has_job:
            self._is_refused(ev.JobEnded())
        if not self._takes_jobs:
            self._is_refused(ev.ClaimGranted(BOB))
        if self.slot.state is not SlotState.DRAINED:
            self._is_refused(ev.NodeDrained())

    # Orders of operators and the server ---------------------------------------------------------------------------

    @precondition(lambda self: self.slot.state is SlotState.CLAIMED)
    @rule()
    def a_better_job_waits(self) -> None:
        self._feed(ev.PreemptionOrdered(REASON))

    @precondition(lambda self: self.slot.preemption is not None)
    @rule()
    def no_better_job_waits(self) -> None:
        self._feed(ev.PreemptionWithdrawn())
        assert self.slot.preemption is None or self.stop_requested

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
        self.by_command = self.is_suspended

    @precondition(lambda self: self.is_suspended and not self.stop_requested)
    @rule()
    def job_is_continued(self) -> None:
        self._feed(ev.ContinueOrdered())

    @precondition(lambda self: self.slot.state is not SlotState.CLAIMED and not self.slot.deleted and not self.has_job)
    @rule(order=LATE_ORDERS)
    def late_order_arrives(self, order: ev.SlotEvent) -> None:
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

    # Invariants ------------------------------------------------------------------------------------------

    @invariant()
    def states_agree_with_jobs(self) -> None:
        pair = (self.slot.state, self.slot.activity)
        assert pair in STATES
        assert (self.slot.job is not None) == self.has_job
        assert not self.has_job or self.slot.state in (SlotState.CLAIMED, SlotState.PREEMPTING)
        assert (self.slot.activity is Activity.SUSPENDED) == (self.is_suspended and not self.stop_requested)
        assert self.stop_requested == (self.slot.state is SlotState.PREEMPTING)
        assert self.killed == (self.slot.activity is Activity.KILLING)
        assert self.slot.deleted <= self.dynamic

    @invariant()
    def vacated_job_is_killed_in_time(self) -> None:
        if self.stop_requested and not self.killed:
            assert self.boot_s < self.stop_end_s, "a preempted job is never killed"

    @invariant()
    def retirement_stays_within_the_policy(self) -> None:
        """Compare with the policy's value, not with the machine's own arithmetic."""
        slot, draining = self.slot, self.slot.draining
        must_leave = slot.preemption is not None or draining is not None or slot.activity is Activity.RETIRING
        is_running = slot.state is SlotState.CLAIMED and self.started
        if must_leave and is_running and _has_its_own_retirement_only(draining):
            granted_s = self.evaluator.number("MaxJobRetirementTime") or 0.0
            assert self.ran_s < max(granted_s, 0.0), "a job runs beyond its retirement time"

    @invariant()
    def run_time_adds_up(self) -> None:
        if self.slot.job is not None:
            assert self.slot.job.run.seconds(at(self.boot_s)) == self.ran_s


def _has_its_own_retirement_only(draining: Draining | None) -> bool:
    if draining is None:
        return True
    counted = draining.how is DrainHow.GRACEFUL and draining.originals_until_boot_s is not None
    return draining.how is not DrainHow.PEACEFUL and not counted


TestSlotModel = SlotModel.TestCase
TestSlotModel.settings = settings(stateful_step_count=60)
