"""The slots of a node at work: what they hear, what they show one another, and what they want of their jobs.

Rules
-----
Every change of a slot's state goes through its machine, here. What a machine wants done with a job comes out as an
order for the attempt in the slot; what it wants of the slot itself is done here. Slots are polled in their order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from operator import attrgetter
from types import MappingProxyType

from pilotage_pilot.core import slot_events as se
from pilotage_pilot.core.amounts import Amounts
from pilotage_pilot.core.instructions import PrepareJob
from pilotage_pilot.core.jobs import AttemptKey, GrantedJob
from pilotage_pilot.core.moment import Moment
from pilotage_pilot.core.node_ads import NodeAds
from pilotage_pilot.core.node_drain import is_drained, originals_stay_until_boot_s
from pilotage_pilot.core.policy import Policy
from pilotage_pilot.core.slot_ads import SlotAds
from pilotage_pilot.core.slot_book import NodeSlot, SlotBook
from pilotage_pilot.core.slot_facts import NodeSample, parent_of
from pilotage_pilot.core.slot_judge import NEVER
from pilotage_pilot.core.slot_layout import Layout
from pilotage_pilot.core.slot_states import SlotState
from pilotage_pilot.core.slot_status import DrainHow
from pilotage_pilot.core.slots import Slot

POLL_AGAIN_AFTER_S = 1.0
"""Slots that change with one another are not polled faster than this."""

_NOTHING_TOLD: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class JobOrder:
    """What a slot wants done with the attempt in it."""

    key: AttemptKey
    effect: se.JobEffect


Orders = list[JobOrder]


class NodeSlots:
    """The slots of one node under its policy."""

    def __init__(self, layout: Layout, ads: NodeAds, now: Moment) -> None:
        self.ads = ads
        self.book = SlotBook(layout, now)
        self.version = 0
        """Grows with every change that a report of the slots would show."""
        self._drain: DrainHow | None = None
        self._looked = False
        for slot in self.book:
            ads.add(slot.facts)
        for slot in self.book:
            self._tell(slot, se.Polled(), now)

    @property
    def total(self) -> Amounts:
        """What the slots of the layout are parts of."""
        return self.book.total

    @property
    def has_policy(self) -> bool:
        """Whether the slots follow more than the built-in policy."""
        return isinstance(self.ads, SlotAds)

    def slots(self, ads_told: Mapping[str, str] = _NOTHING_TOLD) -> tuple[Slot, ...]:
        """Return every slot, those of the layout first, with its readings, and its ad unless `ads_told` has it so."""
        return tuple(self._shown(slot, ads_told) for slot in self.book)

    def _shown(self, slot: NodeSlot, ads_told: Mapping[str, str]) -> Slot:
        ad = self.ads.full_text(slot.name)
        return slot.shown("" if ads_told.get(slot.name) == ad else ad, self.ads.readings(slot.name))

    def of(self, key: AttemptKey) -> Slot | None:
        """Return the slot that an attempt is in; None = in none (any more)."""
        slot = self.book.of(key)
        return None if slot is None else slot.shown()

    # Jobs come and go -------------------------------------------------------------------------------------------

    def enter(self, name: str, job: GrantedJob, now: Moment) -> PrepareJob | str:
        """Put a job that was granted to the slot `name` into it, or return why not."""
        offered = self._offered_to(name, job, now)
        if offered is None or not job.amounts.fits_in(offered.free):
            return f"it asks {job.amounts}, {name} has no such room (any more)"
        if self.ads.starts(offered.name, job.job_ad, now) is not True:
            return f"START of {name} is not true of it"
        slot = self._carve(offered, job.amounts, now) if offered.is_partitionable else offered
        rank = self.ads.rank(offered.name, job.job_ad, now)
        self.book.put_in(slot, job.key)
        slot.entered_boot_s = now.boot_s
        self.ads.job_entered(slot.name, job.job_ad, f"{job.cluster}.{job.process}", now)
        effects = self._tell(slot, se.Claimed(job.account, rank), now)
        refusal = next((each for each in effects if isinstance(each, se.RefuseClaim)), None)
        if refusal is not None:
            self._leave(slot)
            if slot.machine.claim is None:
                self.ads.claim_ended(slot.name)
            self._tell(slot, se.Polled(), now)
            return refusal.reason
        if not self.has_policy:
            return PrepareJob(job, slot.shown())
        nice, machine_ad = self.ads.renice(slot.name, job.job_ad, now), self.ads.machine_ad(slot.name, now)
        return PrepareJob(job, slot.shown(), nice, machine_ad, job.job_ad)

    def _offered_to(self, name: str, job: GrantedJob, now: Moment) -> NodeSlot | None:
        slot = self.book.get(name)
        if slot is not None and slot.is_dynamic and not slot.suits(job):
            self.release((name,), "the next job needs a slot of another size", now)
            slot = None
        if slot is None:
            # What a dynamic slot had that is gone is its parent's.
            slot = self.book.get(parent_of(name))
        return slot if slot is not None and (slot.is_free or slot.doing[0] is SlotState.CLAIMED) else None

    def _carve(self, parent: NodeSlot, amounts: Amounts, now: Moment) -> NodeSlot:
        slot = self.book.carve(parent, amounts, now)
        self.ads.add(slot.facts)
        self._resized(parent)
        return slot

    def _resized(self, parent: NodeSlot) -> None:
        self.version += 1
        self.ads.resize(parent.name, parent.space.free)

    def job_started(self, key: AttemptKey, now: Moment) -> Orders:
        """Note that the payload of an attempt runs."""
        return self._order(self.book.of(key), se.JobStarted(), now)

    def job_ended(self, key: AttemptKey, now: Moment, *, keeps_disk_mib: int = 0) -> None:
        """Let an attempt leave its slot, if it is in one; the disk that its files are on stays its own."""
        slot = self.book.of(key)
        if slot is None:
            return
        slot.last_turn_s = now.boot_s - slot.entered_boot_s
        if keeps_disk_mib:
            self.book.lend_disk(key, keeps_disk_mib)
        self._leave(slot)
        self._tell(slot, se.JobEnded(), now)
        if self._drain is not None:
            self._see_whether_drained(now)

    def _leave(self, slot: NodeSlot) -> None:
        self.book.take_out(slot)
        self.ads.job_left(slot.name)

    def files_are_safe(self, key: AttemptKey) -> None:
        """Take back the disk that an attempt was left."""
        if (slot := self.book.end_loan(key)) is not None:
            self._resized(slot)

    # Orders from outside ----------------------------------------------------------------------------------------

    def kill(self, key: AttemptKey, reason: str, grace_s: float | None, now: Moment) -> Orders:
        """Let an attempt's job end within `grace_s`, None = at once."""
        return self._order(self.book.of(key), se.KillOrdered(reason, grace_s is None, grace_s), now)

    def preempt(self, key: AttemptKey, reason: str, now: Moment) -> Orders:
        """Let an attempt's job make room for a better one, as far as the policy gives way."""
        slot = self.book.of(key)
        if slot is not None:
            slot.ordered_boot_s = now.boot_s
        return self._order(slot, se.PreemptionOrdered(reason), now)

    def withdraw_preemption(self, key: AttemptKey, now: Moment) -> Orders:
        """Let an attempt's job stay, if it has not been told to leave yet."""
        return self._order(self.book.of(key), se.PreemptionWithdrawn(), now)

    def suspend_all(self, now: Moment) -> Orders:
        """Suspend every job until `continue_all`."""
        return [order for slot in self.book for order in self._order(slot, se.SuspendOrdered(), now)]

    def continue_all(self, now: Moment) -> Orders:
        """Let every job go on that is suspended."""
        return [order for slot in self.book for order in self._order(slot, se.ContinueOrdered(), now)]

    def release(self, names: tuple[str, ...], reason: str, now: Moment) -> None:
        """End the claims of those of the slots that wait for a job."""
        for slot in (self.book.get(name) for name in names):
            if slot is not None and slot.waits_for_its_account:
                self._tell(slot, se.ReleaseOrdered(reason), now)

    def drain(self, now: Moment, reason: str, how: DrainHow = DrainHow.PEACEFUL) -> Orders:
        """Take no more jobs; those that run come to their end, unless the policy or `how` gives them less."""
        self._drain = how
        ordered = se.DrainOrdered(how, reason)
        orders = [order for slot in self.book for order in self._order(slot, ordered, now)]
        self._see_whether_drained(now)
        return orders + self._count_drain_time(now)

    def _see_whether_drained(self, now: Moment) -> None:
        if is_drained(slot.machine for slot in self.book):
            for slot in self.book:
                self._tell(slot, se.NodeDrained(), now)
        else:
            self._look_all(now)  # how long the others may stay has changed

    def _count_drain_time(self, now: Moment) -> Orders:
        if self._drain is not DrainHow.GRACEFUL:
            return []  # nobody's time hangs on the others'
        claimed = [slot for slot in self.book if slot.doing[0] is SlotState.CLAIMED]
        machines = ((slot.machine, self.ads.judge(slot.name, now)) for slot in claimed)
        counted = se.DrainTimeCounted(originals_stay_until_boot_s(machines, now))
        return [order for slot in claimed for order in self._order(slot, counted, now)]

    # What the expressions look at -------------------------------------------------------------------------------

    def sampled(self, sample: NodeSample) -> None:
        """Show the slots what a look at the node has found."""
        self.ads.sample(sample)
        if not self._looked:  # what was reported before, and what the slots have looked at, was no reading
            self._looked = True
            self.version += 1
            self._wake(sample.boot_s, all_free=True)

    def set_attributes(self, expressions: Mapping[str, str], now: Moment) -> dict[str, str]:
        """Show the slots all that operators have set from afar; returns what they may not set, and why."""
        refused = self.ads.set_attributes(expressions)
        self.version += 1
        self._look_all(now)
        return refused

    def change_policy(self, policy: Policy, now: Moment) -> None:
        """Follow another policy from now on; a pilot that has none goes on without."""
        if isinstance(self.ads, SlotAds):
            self.ads.change_policy(policy)
            self._look_all(now)

    def _look_all(self, now: Moment) -> None:
        for slot in self.book:
            slot.due_boot_s = now.boot_s

    # Polls ------------------------------------------------------------------------------------------------------

    def poll(self, now: Moment) -> Orders:
        """Let every slot look at itself for which it is time, or becomes it through the others."""
        orders: Orders = []
        while due := sorted((slot for slot in self.book if slot.due_boot_s <= now.boot_s), key=attrgetter("position")):
            orders += [order for slot in due for order in self._order(slot, se.Polled(), now)]
        return orders + self._count_drain_time(now)

    def next_poll_boot_s(self) -> float:
        """Return when `poll` is needed, on the boot clock; infinity = never."""
        return min((slot.due_boot_s for slot in self.book), default=NEVER)

    def _order(self, slot: NodeSlot | None, event: se.SlotEvent, now: Moment) -> Orders:
        if slot is None or slot.machine.deleted:
            return []
        key = slot.attempt
        effects = self._tell(slot, event, now)
        return [JobOrder(key, each) for each in effects if isinstance(each, se.JobEffect) and key is not None]

    def _tell(self, slot: NodeSlot, event: se.SlotEvent, now: Moment) -> tuple[se.SlotEffect, ...]:
        judge = self.ads.judge(slot.name, now)
        before = slot.doing
        effects = slot.machine.handle(event, judge, now)
        if slot.machine.deleted:
            self._delete(slot, now)
            return effects
        if slot.machine.claim is None and any(isinstance(each, se.EndClaim) for each in effects):
            # It has looked at itself with the claim's last job in view, which is nobody's any more.
            self.ads.claim_ended(slot.name)
            judge = self.ads.judge(slot.name, now)
            effects += slot.machine.handle(se.Polled(), judge, now)
        self.ads.show(slot.name, slot.machine)
        slot.due_boot_s = slot.machine.alarm_boot_s(judge)
        if isinstance(event, se.Polled):
            slot.polled_boot_s = now.boot_s
            slot.seen_version = self.ads.version(slot.name)
        if slot.doing != before:
            slot.stamp += 1
            self.version += 1
            self._wake(now.boot_s)
        return effects

    def _delete(self, slot: NodeSlot, now: Moment) -> None:
        self.book.remove(slot)
        self.ads.remove(slot.name)
        self._resized(self.book.parent(slot))
        self._wake(now.boot_s)

    def _wake(self, boot_s: float, *, all_free: bool = False) -> None:
        """Let free slots look at themselves that have something new to look at; the others do when it is their time."""
        for slot in self.book:
            if slot.is_free and (all_free or slot.seen_version != self.ads.version(slot.name)):
                soon = max(boot_s, slot.polled_boot_s + POLL_AGAIN_AFTER_S)
                slot.due_boot_s = min(slot.due_boot_s, soon)

    def validate(self) -> None:
        """Raise AssertionError where the slots do not go together."""
        self.book.validate()
