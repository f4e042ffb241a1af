"""A pilot of the simulation: the real slots of a node under the built-in policy, without ads and without processes."""

from __future__ import annotations

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
    takes_jobs: bool = True
    idle_since_s: float | None = None
    has_run: bool = False
    ended: bool = False
    slots: SlotSet = field(init=False)
    jobs: int = 0
    _open_slots: tuple[SlotOffer, ...] | None = None

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

    @property
    def open_slots(self) -> tuple[SlotOffer, ...]:
        """The slots that may take a job, named after pilot and slot, without the time that is left."""
        if self._open_slots is None:
            self._open_slots = tuple(
                SlotOffer(
                    f"{self.number}/{slot.name}",
                    slot.free,
                    slot.is_partitionable,
                    max_jobs=slot.free.cpus,  # no less than fit: a job takes a core
                    claim=None if slot.machine.claim is None else slot.machine.claim.holder,
                )
                for slot in self.slots
                if slot.attempt is None and (slot.is_free or slot.waits_for_its_account) and slot.free.cpus
            )
        return self._open_slots

    def offers(self, now: Now) -> list[SlotOffer]:
        """Return the slots that may take a job now."""
        left_s = self.lifetime.time_left_s(now)
        time_left = None if left_s is None else timedelta(seconds=left_s)
        return [slot._replace(time_left=time_left) for slot in self.open_slots]

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

    def close(self) -> None:
        """Take no more jobs."""
        self.takes_jobs, self._open_slots = False, ()

    def release_claims(self, now: Now) -> bool:
        """End the claims that wait for a job of their account; returns whether there were any."""
        if not any(slot.claim for slot in self.open_slots):
            return False
        waiting = [slot for slot in self.slots if slot.waits_for_its_account]
        for slot in waiting:
            self._handle(slot, se.ReleaseOrdered("its account has no job for it"), now)
        return True

    def _handle(self, slot: NodeSlot, event: se.SlotEvent, now: Now) -> None:
        self._open_slots = None if self.takes_jobs else ()
        slot.machine.handle(event, _POLICY, now)
        if slot.machine.deleted:
            self.slots.remove(slot)
