"""A pilot of the simulation: the real slots of a node under the built-in policy, without ads and without processes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta

from pilotage.resources.tree import QueueId
from pilotage.values.accounts import Account
from pilotage.values.amounts import Amounts
from pilotage.values.attempts import AttemptKey
from pilotage.values.offers import SlotOffer
from pilotage_pilot.core.model import Now
from pilotage_pilot.core.node.slot_set import NodeSlot, SlotSet
from pilotage_pilot.core.policy import BuiltInPolicyEvaluator, Policy
from pilotage_pilot.core.rules import Lifetime
from pilotage_pilot.core.slots import events as se
from pilotage_pilot.core.slots.layout import lay_out

_POLICY = BuiltInPolicyEvaluator()


@dataclass(slots=True, eq=False)
class SimulatedPilot:
    """A pilot; `idle_since_s` None = it has jobs. `sent_s` is a time of the simulation.

    `is_bad` = its node is a black hole.
    """

    number: int
    queue: QueueId
    size: Amounts
    sent_s: float
    is_bad: bool = False
    lifetime: Lifetime = field(default_factory=Lifetime)
    idle_since_s: float | None = None
    has_run: bool = False
    ended: bool = False
    slots: SlotSet = field(init=False)
    jobs: int = 0

    @property
    def node(self) -> str:
        """The name of its node."""
        return f"n{self.number}"

    def start(self, now: Now, wall_time_s: float) -> None:
        """Start on its node."""
        self.idle_since_s = now.boot_s
        self.lifetime = Lifetime(now.boot_s + wall_time_s)
        self.slots = SlotSet(lay_out(Policy({}), self.size), now, {})
        for slot in self.slots:
            self._handle(slot, se.Polled(), now)

    def offers(self, now: Now) -> Iterator[SlotOffer]:
        """Yield the slots that may take a job."""
        left_s = self.lifetime.time_left_s(now)
        if self.lifetime.is_too_short(now):
            return
        time_left = None if left_s is None else timedelta(seconds=left_s)
        for slot in self.slots:
            if slot.free.cpus and (slot.is_free or slot.waits_for_its_account):
                claim = slot.machine.claim
                holder = None if claim is None else claim.holder
                yield SlotOffer(slot.name, slot.free, slot.is_partitionable, time_left, claim=holder)

    def enter(self, name: str, key: AttemptKey, account: Account, amounts: Amounts, now: Now) -> None:
        """Start a job in an offered slot."""
        slot = self.slots.get(name)
        assert slot is not None, f"{name} was offered"
        claim = slot.machine.claim
        if slot.is_dynamic and claim is not None and claim.holder != account:
            self._handle(slot, se.ReleaseOrdered("the next job is of another account"), now)
            slot = self.slots.parent(slot)
        if slot.is_partitionable:
            slot = self.slots.carve(slot, amounts, now)
        self.slots.put_in(slot, key)
        self._handle(slot, se.ClaimGranted(account), now)
        self._handle(slot, se.JobStarted(), now)
        self.jobs += 1
        self.idle_since_s = None
        self.has_run = True

    def leave(self, key: AttemptKey, now: Now) -> None:
        """End a job."""
        slot = self.slots.of(key)
        assert slot is not None, f"{key} runs here"
        self.slots.take_out(slot)
        self._handle(slot, se.JobEnded(), now)
        self.jobs -= 1
        if self.jobs == 0:
            self.idle_since_s = now.boot_s

    def release_claims(self, now: Now) -> bool:
        """End the claims that wait for a job of their account; returns whether there were any."""
        waiting = [slot for slot in self.slots if slot.waits_for_its_account]
        for slot in waiting:
            self._handle(slot, se.ReleaseOrdered("its account has no job for it"), now)
        return bool(waiting)

    def _handle(self, slot: NodeSlot, event: se.SlotEvent, now: Now) -> None:
        slot.machine.handle(event, _POLICY, now)
        if slot.machine.deleted:
            self.slots.remove(slot)
