"""The set of a node's slots, static and dynamic: what each has, and which attempt is in it.

Rules
-----
An attempt is in at most one slot. Disk that holds its files after it has left the slot is lent to the attempt.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType

from pilotage.values.amounts import NOTHING, Amounts
from pilotage.values.attempts import AttemptKey
from pilotage_pilot.core.ads.attributes import SlotFacts, SlotKind, parent_of
from pilotage_pilot.core.instructions import Slot
from pilotage_pilot.core.model import GrantedJob, Now
from pilotage_pilot.core.slots.evaluator import NEVER
from pilotage_pilot.core.slots.layout import Layout
from pilotage_pilot.core.slots.machine import SlotMachine
from pilotage_pilot.core.slots.states import Activity, SlotResources, SlotState

_NOTHING_READ: Mapping[str, float] = MappingProxyType({})


@dataclass(slots=True, eq=False)
class NodeSlot:
    """One slot of the node.

    `due_boot_s`: next poll. `polled_boot_s`: last poll. `ordered_boot_s`: last preemption order. `stamp` grows with
    every change of state. `seen_version`: version of its ad at the last poll. `entered_boot_s`: when a job last entered
    it. `last_occupied_s`: how long the last job was in it; None = no job yet.
    """

    facts: SlotFacts
    space: SlotResources
    machine: SlotMachine
    attempt: AttemptKey | None = None
    due_boot_s: float = NEVER
    polled_boot_s: float = -NEVER
    seen_version: int = -1
    ordered_boot_s: float = -NEVER
    stamp: int = 0
    entered_boot_s: float = -NEVER
    last_occupied_s: float | None = None

    @property
    def name(self) -> str:
        """Its name on the node."""
        return self.facts.name

    @property
    def number(self) -> int | None:
        """Its number among its parent's dynamic slots; None = static."""
        return self.facts.number if self.is_dynamic else None

    @property
    def parent(self) -> str:
        """The name of its static slot: its parent or itself."""
        return parent_of(self.name)

    @property
    def is_dynamic(self) -> bool:
        """Whether it is a dynamic slot."""
        return self.facts.kind is SlotKind.DYNAMIC

    @property
    def is_partitionable(self) -> bool:
        """Whether it is divided into dynamic slots."""
        return self.facts.kind is SlotKind.PARTITIONABLE

    @property
    def amounts(self) -> Amounts:
        """All its resources."""
        return self.space.amounts(self.number)

    @property
    def free(self) -> Amounts:
        """The resources for a new job."""
        if self.attempt is not None:
            return NOTHING
        return self.amounts if self.is_dynamic else self.space.free

    @property
    def state_and_activity(self) -> tuple[SlotState, Activity]:
        """Its state and its activity."""
        return self.machine.state, self.machine.activity

    @property
    def position(self) -> tuple[int, int]:
        """Sort key among the slots of the node."""
        return self.facts.key.slot_id, self.facts.number

    @property
    def is_free(self) -> bool:
        """Whether it takes jobs of any account."""
        return self.machine.state in (SlotState.OWNER, SlotState.UNCLAIMED)

    @property
    def waits_for_its_account(self) -> bool:
        """Whether it is claimed and has no job."""
        return self.attempt is None and self.state_and_activity == (SlotState.CLAIMED, Activity.IDLE)

    def accepts(self, job: GrantedJob) -> bool:
        """Whether a job may be the next of its claim; it has to use all cores and GPUs of a dynamic slot."""
        claim, has, asks = self.machine.claim, self.free, job.amounts
        if not self.waits_for_its_account or claim is None or claim.holder != job.account:
            return False
        return asks.fits_in(has) and (not self.is_dynamic or (has.cpus, has.gpus) == (asks.cpus, asks.gpus))

    def shown(self, ad: str = "", readings: Mapping[str, float] = _NOTHING_READ) -> Slot:
        """Return the slot for a report, with its ad and readings."""
        return Slot(
            self.name,
            *self.state_and_activity,
            self.amounts,
            self.free,
            self.machine.entered_activity,
            self.machine.entered_state,
            self.attempt,
            self.space.gpu_ids(self.number),
            self.is_partitionable,
            ad,
            readings,
        )


class SlotSet:
    """All slots of one node."""

    def __init__(self, layout: Layout, now: Now, claim_ends: Mapping[str, datetime]) -> None:
        self._total = layout.total
        self._slots: dict[str, NodeSlot] = {}
        self._by_attempt: dict[AttemptKey, NodeSlot] = {}
        self._loans: dict[AttemptKey, tuple[NodeSlot, Amounts]] = {}
        for static in layout.slots:
            machine = SlotMachine(now, last_claim_end=claim_ends.get(static.name))
            slot = NodeSlot(SlotFacts.of(static), SlotResources(static.amounts, static.gpu_ids), machine)
            self._slots[slot.name] = slot

    def __iter__(self) -> Iterator[NodeSlot]:
        return iter(tuple(self._slots.values()))

    @property
    def total(self) -> Amounts:
        """The total that the layout divides."""
        return self._total

    def get(self, name: str) -> NodeSlot | None:
        """Return the slot of this name; None = unknown."""
        return self._slots.get(name)

    def of(self, key: AttemptKey) -> NodeSlot | None:
        """Return the slot of an attempt; None = in no slot."""
        return self._by_attempt.get(key)

    def parent(self, slot: NodeSlot) -> NodeSlot:
        """Return the static slot of a slot."""
        return self._slots[slot.parent]

    def carve(self, parent: NodeSlot, amounts: Amounts, now: Now) -> NodeSlot:
        """Return a new dynamic slot from free resources."""
        number = parent.space.carve(amounts)
        name = f"{parent.name}_{number}"
        gpu_ids = parent.space.gpu_ids(number)
        facts = SlotFacts(name, parent.facts.key, amounts, SlotKind.DYNAMIC, number, gpu_ids)
        slot = NodeSlot(facts, parent.space, SlotMachine(now, dynamic=True))
        self._slots[name] = slot
        return slot

    def remove(self, slot: NodeSlot) -> None:
        """Remove a dynamic slot and release its resources."""
        assert slot.attempt is None, f"{slot.name} has a job"
        del self._slots[slot.name]
        slot.space.put_back(slot.facts.number)

    def put_in(self, slot: NodeSlot, key: AttemptKey) -> None:
        """Record that an attempt is in a slot."""
        assert slot.attempt is None, f"{slot.name} has a job"
        assert key not in self._by_attempt, f"{key} has a slot"
        slot.attempt = key
        self._by_attempt[key] = slot

    def take_out(self, slot: NodeSlot) -> None:
        """Record that the attempt has left its slot."""
        if slot.attempt is not None:
            del self._by_attempt[slot.attempt]
            slot.attempt = None

    def lend_disk(self, key: AttemptKey, disk_mib: int) -> None:
        """Reserve disk for the files of an attempt that leaves its slot."""
        slot = self._by_attempt[key]
        self._loans[key] = (slot, slot.space.lend(disk_mib, slot.number))

    def end_loan(self, key: AttemptKey) -> NodeSlot | None:
        """Release the reserved disk of an attempt; returns its static slot."""
        if key not in self._loans:
            return None
        slot, loan = self._loans.pop(key)
        is_there = slot.is_dynamic and self._slots.get(slot.name) is slot
        slot.space.end_loan(loan, slot.number if is_there else None)
        return self.parent(slot)

    def validate(self) -> None:
        """Raise AssertionError if slots, attempts and amounts contradict each other."""
        layout = [slot for slot in self._slots.values() if not slot.is_dynamic]
        for slot in layout:
            slot.space.validate()
        sizes = [slot.amounts for slot in layout]
        assert sum(size.cpus for size in sizes) <= self._total.cpus, "the slots have more cores than are laid out"
        assert sum(size.memory_mib for size in sizes) <= self._total.memory_mib, "the slots have too much memory"
        for slot in self._slots.values():
            slot.machine.validate()
        within = {slot.attempt: slot for slot in self._slots.values() if slot.attempt is not None}
        assert within == self._by_attempt, "an attempt is in two slots, or in one that is gone"
