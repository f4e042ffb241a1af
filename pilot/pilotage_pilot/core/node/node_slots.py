"""The slots of a node in operation: events to their machines, polls, draining, and orders for attempts.

Rules
-----
Every state change of a slot goes through its machine, here. An effect on a job becomes an order for its attempt; an
effect on the slot is applied here. Slots are polled in their order. Source of draining: HTCondor's startd.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from operator import attrgetter
from types import MappingProxyType

from pilotage.values.amounts import Amounts
from pilotage.values.attempts import AttemptKey
from pilotage_pilot.core.ads.attributes import NodeSample, parent_of
from pilotage_pilot.core.ads.policy_ads import NodeAds, SlotAds
from pilotage_pilot.core.instructions import PrepareJob, Slot, StoreClaimEnds
from pilotage_pilot.core.model import GrantedJob, Now
from pilotage_pilot.core.node.slot_set import NodeSlot, SlotSet
from pilotage_pilot.core.policy import Policy
from pilotage_pilot.core.slots import events as se
from pilotage_pilot.core.slots.conditions import own_retirement_end_boot_s
from pilotage_pilot.core.slots.evaluator import NEVER, SlotEvaluator
from pilotage_pilot.core.slots.layout import Layout
from pilotage_pilot.core.slots.machine import SlotMachine
from pilotage_pilot.core.slots.states import DrainHow, SlotState


def originals_stay_until_boot_s(slots: Iterable[tuple[SlotMachine, SlotEvaluator]], now: Now) -> float:
    """Return until when the longest of the jobs may stay, on the boot clock; `now` = there are none.

    The value for `DrainTimeCounted`. It is valid until one of the jobs starts, ends, or is suspended or continued, and
    moves with time while one is suspended.
    """
    ends = (
        own_retirement_end_boot_s(slot.job, evaluator, now)
        for slot, evaluator in slots
        if slot.state is SlotState.CLAIMED and slot.job is not None
    )
    return max(ends, default=now.boot_s)


def is_drained(slots: Iterable[SlotMachine]) -> bool:
    """Whether every slot is drained, so that `NodeDrained` is due."""
    return all(slot.state is SlotState.DRAINED for slot in slots)


POLL_AGAIN_AFTER_S = 1.0
"""Least interval between polls of slots that depend on each other."""

_NO_ADS: Mapping[str, str] = MappingProxyType({})
_NO_CLAIM_ENDS: Mapping[str, datetime] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class JobOrder:
    """An order of a slot for its attempt."""

    key: AttemptKey
    effect: se.JobEffect


Orders = list[JobOrder]


class NodeSlots:
    """The slots of one node under its policy; `claim_ends` are those of earlier pilots' claims, by static slot."""

    def __init__(
        self, layout: Layout, ads: NodeAds, now: Now, claim_ends: Mapping[str, datetime] = _NO_CLAIM_ENDS
    ) -> None:
        self.ads = ads
        self.book = SlotSet(layout, now, claim_ends)
        self._has_new_claim_ends = False
        self.version = 0
        """Grows with every change that a report of the slots shows."""
        self._drain: DrainHow | None = None
        self._has_sample = False
        self._policy_faults: dict[str, str] = {}
        for slot in self.book:
            ads.add(slot.facts)
        for slot in self.book:
            self._handle(slot, se.Polled(), now)

    @property
    def total(self) -> Amounts:
        """The total that the layout divides."""
        return self.book.total

    @property
    def has_policy(self) -> bool:
        """Whether the slots have a policy other than the built-in one."""
        return isinstance(self.ads, SlotAds)

    def slots(self, reported_ads: Mapping[str, str] = _NO_ADS) -> tuple[Slot, ...]:
        """Return every slot, static ones first, with its readings, and its ad if it differs from `reported_ads`."""
        return tuple(self._shown(slot, reported_ads) for slot in self.book)

    def _shown(self, slot: NodeSlot, reported_ads: Mapping[str, str]) -> Slot:
        ad = self.ads.full_text(slot.name)
        shown = slot.shown("" if reported_ads.get(slot.name) == ad else ad, self.ads.readings(slot.name))
        fault = self._policy_faults.get(slot.name, "")
        return replace(shown, policy_fault=fault) if fault else shown

    def set_policy_faults(self, offered: Iterable[str], faults: Mapping[str, str]) -> dict[str, str]:
        """Record why the server gives offered slots no jobs for their policies; returns what has changed, "" = none."""
        changed = {
            name: faults.get(name, "") for name in offered if faults.get(name, "") != self._policy_faults.get(name, "")
        }
        self._policy_faults = {name: why for name, why in {**self._policy_faults, **changed}.items() if why}
        self.version += bool(changed)
        return changed

    def of(self, key: AttemptKey) -> Slot | None:
        """Return the slot of an attempt; None = in no slot."""
        slot = self.book.of(key)
        return None if slot is None else slot.shown()

    # Jobs -------------------------------------------------------------------------------------------------------

    def enter(self, name: str, job: GrantedJob, now: Now) -> PrepareJob | str:
        """Put a granted job into the slot `name`, or return the reason why not."""
        offered = self._offered_to(name, job, now)
        if offered is None or not job.amounts.fits_in(offered.free):
            return f"it asks for {job.amounts}, {name} has less free"
        if self.ads.starts(offered.name, job.job_ad, now) is not True:
            return f"START of {name} is not true of it"
        slot = self._carve(offered, job.amounts, now) if offered.is_partitionable else offered
        rank = self.ads.rank(offered.name, job.job_ad, now)
        self.book.put_in(slot, job.key)
        slot.entered_boot_s = now.boot_s
        self.ads.job_entered(slot.name, job.job_ad, f"{job.cluster}.{job.process}", now)
        effects = self._handle(slot, se.ClaimGranted(job.account, rank), now)
        refusal = next((each for each in effects if isinstance(each, se.RefuseClaim)), None)
        if refusal is not None:
            self._leave(slot)
            if slot.machine.claim is None:
                self.ads.claim_ended(slot.name)
            self._handle(slot, se.Polled(), now)
            return refusal.reason
        if not self.has_policy:
            return PrepareJob(job, slot.shown())
        nice, machine_ad = self.ads.renice(slot.name, job.job_ad, now), self.ads.machine_ad(slot.name, now)
        return PrepareJob(job, slot.shown(), nice, machine_ad, job.job_ad)

    def _offered_to(self, name: str, job: GrantedJob, now: Now) -> NodeSlot | None:
        slot = self.book.get(name)
        if slot is not None and slot.is_dynamic and not slot.accepts(job):
            self.release((name,), "the next job needs a slot of another size", now)
            slot = None
        if slot is None:
            # The resources of a deleted dynamic slot are its parent's.
            slot = self.book.get(parent_of(name))
        return slot if slot is not None and (slot.is_free or slot.state_and_activity[0] is SlotState.CLAIMED) else None

    def _carve(self, parent: NodeSlot, amounts: Amounts, now: Now) -> NodeSlot:
        slot = self.book.carve(parent, amounts, now)
        self.ads.add(slot.facts)
        self._resized(parent)
        return slot

    def _resized(self, parent: NodeSlot) -> None:
        self.version += 1
        self.ads.resize(parent.name, parent.space.free)

    def job_started(self, key: AttemptKey, now: Now) -> Orders:
        """Record the start of a payload."""
        return self._handle_order(self.book.of(key), se.JobStarted(), now)

    def job_ended(self, key: AttemptKey, now: Now, *, keeps_disk_mib: int = 0) -> None:
        """Remove an attempt from its slot; `keeps_disk_mib` stay reserved for its files."""
        slot = self.book.of(key)
        if slot is None:
            return
        slot.last_occupied_s = now.boot_s - slot.entered_boot_s
        if keeps_disk_mib:
            self.book.lend_disk(key, keeps_disk_mib)
        self._leave(slot)
        self._handle(slot, se.JobEnded(), now)
        if self._drain is not None:
            self._check_drained(now)

    def _leave(self, slot: NodeSlot) -> None:
        self.book.take_out(slot)
        self.ads.job_left(slot.name)

    def release_disk(self, key: AttemptKey) -> None:
        """Release the disk that was reserved for an attempt's files."""
        if (slot := self.book.end_loan(key)) is not None:
            self._resized(slot)

    # Orders from outside ----------------------------------------------------------------------------------------

    def kill(self, key: AttemptKey, reason: str, grace_s: float | None, now: Now) -> Orders:
        """Stop an attempt's job within `grace_s`; None = kill it at once."""
        return self._handle_order(self.book.of(key), se.KillOrdered(reason, grace_s is None, grace_s), now)

    def preempt(self, key: AttemptKey, reason: str, now: Now) -> Orders:
        """Preempt an attempt's job for a better one, as the policy allows."""
        slot = self.book.of(key)
        if slot is not None:
            slot.ordered_boot_s = now.boot_s
        return self._handle_order(slot, se.PreemptionOrdered(reason), now)

    def withdraw_preemption(self, key: AttemptKey, now: Now) -> Orders:
        """Withdraw the preemption of an attempt's job that has not been stopped."""
        return self._handle_order(self.book.of(key), se.PreemptionWithdrawn(), now)

    def suspend_all(self, now: Now) -> Orders:
        """Suspend every job until `continue_all`."""
        return [order for slot in self.book for order in self._handle_order(slot, se.SuspendOrdered(), now)]

    def continue_all(self, now: Now) -> Orders:
        """Continue every suspended job."""
        return [order for slot in self.book for order in self._handle_order(slot, se.ContinueOrdered(), now)]

    def release(self, names: tuple[str, ...], reason: str, now: Now) -> None:
        """End the claims of those slots that wait for a job."""
        for slot in (self.book.get(name) for name in names):
            if slot is not None and slot.waits_for_its_account:
                self._handle(slot, se.ReleaseOrdered(reason), now)

    def drain(self, now: Now, reason: str, how: DrainHow = DrainHow.PEACEFUL) -> Orders:
        """Drain the node; `how` sets the time of running jobs."""
        self._drain = how
        ordered = se.DrainOrdered(how, reason)
        orders = [order for slot in self.book for order in self._handle_order(slot, ordered, now)]
        self._check_drained(now)
        return orders + self._count_drain_time(now)

    def _check_drained(self, now: Now) -> None:
        if is_drained(slot.machine for slot in self.book):
            for slot in self.book:
                self._handle(slot, se.NodeDrained(), now)
        else:
            self._poll_all(now)  # the time of the others has changed

    def _count_drain_time(self, now: Now) -> Orders:
        if self._drain is not DrainHow.GRACEFUL:
            return []  # only a graceful drain depends on the other jobs
        claimed = [slot for slot in self.book if slot.state_and_activity[0] is SlotState.CLAIMED]
        machines = ((slot.machine, self.ads.evaluator(slot.name, now)) for slot in claimed)
        counted = se.DrainTimeCounted(originals_stay_until_boot_s(machines, now))
        return [order for slot in claimed for order in self._handle_order(slot, counted, now)]

    def new_claim_ends(self) -> list[StoreClaimEnds]:
        """Return the order to store when claims ended, if the policy uses it and one has ended since the last call."""
        has_new, self._has_new_claim_ends = self._has_new_claim_ends, False
        if not has_new or not self.ads.uses_claim_ends:
            return []
        ends = {slot.name: slot.machine.last_claim_end for slot in self.book if not slot.is_dynamic}
        known = {name: end for name, end in ends.items() if end is not None}
        return [StoreClaimEnds(known)]

    # Inputs of the expressions ----------------------------------------------------------------------------------

    def sampled(self, sample: NodeSample, now: Now) -> None:
        """Apply a sample of the node."""
        self.ads.sample(sample, now)
        if not self._has_sample:  # earlier evaluations and reports had no sample
            self._has_sample = True
            self.version += 1
            self._wake(sample.boot_s, all_free=True)

    def set_attributes(self, expressions: Mapping[str, str], now: Now) -> dict[str, str]:
        """Apply all attributes that operators have set; returns the reasons of refused ones."""
        refused = self.ads.set_attributes(expressions)
        self.version += 1
        self._poll_all(now)
        return refused

    def change_policy(self, policy: Policy, now: Now) -> None:
        """Activate another policy; ignored by a pilot without a policy."""
        if isinstance(self.ads, SlotAds):
            self.ads.change_policy(policy)
            self._poll_all(now)

    def _poll_all(self, now: Now) -> None:
        for slot in self.book:
            slot.due_boot_s = now.boot_s

    # Polls ------------------------------------------------------------------------------------------------------

    def poll(self, now: Now) -> Orders:
        """Poll every slot that is due, including those that become due by the others."""
        orders: Orders = []
        while due := sorted((slot for slot in self.book if slot.due_boot_s <= now.boot_s), key=attrgetter("position")):
            orders += [order for slot in due for order in self._handle_order(slot, se.Polled(), now)]
        return orders + self._count_drain_time(now)

    def next_poll_boot_s(self) -> float:
        """Return when `poll` is needed, on the boot clock; infinity = never."""
        return min((slot.due_boot_s for slot in self.book), default=NEVER)

    def _handle_order(self, slot: NodeSlot | None, event: se.SlotEvent, now: Now) -> Orders:
        if slot is None or slot.machine.deleted:
            return []
        key = slot.attempt
        effects = self._handle(slot, event, now)
        return [JobOrder(key, each) for each in effects if isinstance(each, se.JobEffect) and key is not None]

    def _handle(self, slot: NodeSlot, event: se.SlotEvent, now: Now) -> tuple[se.SlotEffect, ...]:
        evaluator = self.ads.evaluator(slot.name, now)
        before = slot.state_and_activity
        effects = slot.machine.handle(event, evaluator, now)
        if slot.machine.deleted:
            self.book.remove(slot)
            self.ads.remove(slot.name)
            self._resized(self.book.parent(slot))
            self._wake(now.boot_s)
            return effects
        if not slot.is_dynamic and any(isinstance(each, se.EndClaim) for each in effects):
            self._has_new_claim_ends = True
        if slot.machine.claim is None and any(isinstance(each, se.EndClaim) for each in effects):
            # Its conditions were evaluated with the claim's last job, which does not count any more.
            self.ads.claim_ended(slot.name)
            evaluator = self.ads.evaluator(slot.name, now)
            effects += slot.machine.handle(se.Polled(), evaluator, now)
        self.ads.show(slot.name, slot.machine)
        slot.due_boot_s = slot.machine.alarm_boot_s(evaluator)
        if isinstance(event, se.Polled):
            slot.polled_boot_s = now.boot_s
            slot.seen_version = self.ads.version(slot.name)
        if slot.state_and_activity != before:
            slot.stamp += 1
            self.version += 1
            self._wake(now.boot_s)
        return effects

    def _wake(self, boot_s: float, *, all_free: bool = False) -> None:
        """Poll free slots soon whose ads have changed; others keep their interval."""
        for slot in self.book:
            if slot.is_free and (all_free or slot.seen_version != self.ads.version(slot.name)):
                soon = max(boot_s, slot.polled_boot_s + POLL_AGAIN_AFTER_S)
                slot.due_boot_s = min(slot.due_boot_s, soon)

    def validate(self) -> None:
        """Raise AssertionError if the slots contradict each other."""
        self.book.validate()
