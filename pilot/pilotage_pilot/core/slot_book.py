"""The slots of a node: those of its layout and the dynamic ones, what each has, and which attempt is in it.

Rules
-----
An attempt is in at most one slot. Disk on which its files stay after it has left its slot is booked on the attempt.
What becomes of a slot is `node_slots`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from pilotage_pilot.core.amounts import NOTHING, Amounts
from pilotage_pilot.core.jobs import AttemptKey, GrantedJob
from pilotage_pilot.core.moment import Moment
from pilotage_pilot.core.slot_facts import SlotFacts, SlotKind, parent_of
from pilotage_pilot.core.slot_judge import NEVER
from pilotage_pilot.core.slot_layout import Layout
from pilotage_pilot.core.slot_machine import SlotMachine
from pilotage_pilot.core.slot_space import Space
from pilotage_pilot.core.slot_states import Activity, SlotState
from pilotage_pilot.core.slots import Slot

_NOTHING_READ: Mapping[str, float] = MappingProxyType({})


@dataclass(slots=True, eq=False)
class NodeSlot:
    """One slot as it is now.

    `due_boot_s` is when its machine wants to be polled again, `polled_boot_s` when it last was, and `ordered_boot_s`
    when somebody last ordered it for a better job. `stamp` grows with every change of its state. `seen_version` is
    that of its ad when it was last polled. `entered_boot_s` is when a job last went into it, and `last_turn_s` how long
    the last one was there that has left it, None = there was none.
    """

    facts: SlotFacts
    space: Space
    machine: SlotMachine
    attempt: AttemptKey | None = None
    due_boot_s: float = NEVER
    polled_boot_s: float = -NEVER
    seen_version: int = -1
    ordered_boot_s: float = -NEVER
    stamp: int = 0
    entered_boot_s: float = -NEVER
    last_turn_s: float | None = None

    @property
    def name(self) -> str:
        """Its name on the node."""
        return self.facts.name

    @property
    def number(self) -> int | None:
        """Its number among the dynamic slots of its parent; None = it is one of the layout."""
        return self.facts.number if self.is_dynamic else None

    @property
    def parent(self) -> str:
        """The slot of the layout that it is, or is carved from."""
        return parent_of(self.name)

    @property
    def is_dynamic(self) -> bool:
        """Whether it is carved from another one."""
        return self.facts.kind is SlotKind.DYNAMIC

    @property
    def is_partitionable(self) -> bool:
        """Whether dynamic slots are carved from it."""
        return self.facts.kind is SlotKind.PARTITIONABLE

    @property
    def amounts(self) -> Amounts:
        """What it has in all."""
        return self.space.amounts(self.number)

    @property
    def free(self) -> Amounts:
        """What of it a new job can have."""
        if self.attempt is not None:
            return NOTHING
        return self.amounts if self.is_dynamic else self.space.free

    @property
    def doing(self) -> tuple[SlotState, Activity]:
        """Its state and its activity."""
        return self.machine.state, self.machine.activity

    @property
    def position(self) -> tuple[int, int]:
        """Where it comes among the slots of its node."""
        return self.facts.key.slot_id, self.facts.number

    @property
    def is_free(self) -> bool:
        """Whether it takes jobs of anybody."""
        return self.machine.state in (SlotState.OWNER, SlotState.UNCLAIMED)

    @property
    def waits_for_its_account(self) -> bool:
        """Whether it is kept for an account and has no job."""
        return self.attempt is None and self.doing == (SlotState.CLAIMED, Activity.IDLE)

    def suits(self, job: GrantedJob) -> bool:
        """Whether a job may be the next one of its claim, and leaves no cores and GPUs of a dynamic slot unused."""
        claim, has, asks = self.machine.claim, self.amounts, job.amounts
        if not self.waits_for_its_account or claim is None or claim.holder != job.account:
            return False
        return asks.fits_in(has) and (not self.is_dynamic or (has.cpus, has.gpus) == (asks.cpus, asks.gpus))

    def shown(self, ad: str = "", readings: Mapping[str, float] = _NOTHING_READ) -> Slot:
        """Return it as it is now, with its ad and what was last read of it."""
        return Slot(
            self.name,
            *self.doing,
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


class SlotBook:
    """All slots of one node."""

    def __init__(self, layout: Layout, now: Moment) -> None:
        self._total = layout.total
        self._slots: dict[str, NodeSlot] = {}
        self._by_attempt: dict[AttemptKey, NodeSlot] = {}
        self._loans: dict[AttemptKey, tuple[NodeSlot, Amounts]] = {}
        for static in layout.slots:
            slot = NodeSlot(SlotFacts.of(static), Space(static.amounts, static.gpu_ids), SlotMachine(now))
            self._slots[slot.name] = slot

    def __iter__(self) -> Iterator[NodeSlot]:
        return iter(tuple(self._slots.values()))

    @property
    def total(self) -> Amounts:
        """What the layout's slots are parts of."""
        return self._total

    def get(self, name: str) -> NodeSlot | None:
        """Return the slot of this name; None = there is none (any more)."""
        return self._slots.get(name)

    def of(self, key: AttemptKey) -> NodeSlot | None:
        """Return the slot that an attempt is in; None = in none (any more)."""
        return self._by_attempt.get(key)

    def parent(self, slot: NodeSlot) -> NodeSlot:
        """Return the slot of the layout that a slot is, or was carved from."""
        return self._slots[slot.parent]

    def carve(self, parent: NodeSlot, amounts: Amounts, now: Moment) -> NodeSlot:
        """Return a new dynamic slot, made of a part of what is free."""
        number = parent.space.carve(amounts)
        name = f"{parent.name}_{number}"
        gpu_ids = parent.space.gpu_ids(number)
        facts = SlotFacts(name, parent.facts.key, amounts, SlotKind.DYNAMIC, number, gpu_ids)
        slot = NodeSlot(facts, parent.space, SlotMachine(now, dynamic=True))
        self._slots[name] = slot
        return slot

    def remove(self, slot: NodeSlot) -> None:
        """Take out a dynamic slot; what it had is free again."""
        assert slot.attempt is None, f"{slot.name} has a job"
        del self._slots[slot.name]
        slot.space.put_back(slot.facts.number)

    def put_in(self, slot: NodeSlot, key: AttemptKey) -> None:
        """Note that an attempt is in a slot."""
        assert slot.attempt is None, f"{slot.name} has a job"
        assert key not in self._by_attempt, f"{key} has a slot"
        slot.attempt = key
        self._by_attempt[key] = slot

    def take_out(self, slot: NodeSlot) -> None:
        """Note that the attempt in a slot has left it."""
        if slot.attempt is not None:
            del self._by_attempt[slot.attempt]
            slot.attempt = None

    def lend_disk(self, key: AttemptKey, disk_mib: int) -> None:
        """Leave an attempt the disk that its files are on, though it is about to leave its slot."""
        slot = self._by_attempt[key]
        self._loans[key] = (slot, slot.space.lend(disk_mib, slot.number))

    def end_loan(self, key: AttemptKey) -> NodeSlot | None:
        """Take the disk of an attempt back whose files are safe; returns the slot of the layout that it is in."""
        if key not in self._loans:
            return None
        slot, loan = self._loans.pop(key)
        is_there = slot.is_dynamic and self._slots.get(slot.name) is slot
        slot.space.end_loan(loan, slot.number if is_there else None)
        return self.parent(slot)

    def validate(self) -> None:
        """Raise AssertionError where slots, attempts and amounts do not go together."""
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
