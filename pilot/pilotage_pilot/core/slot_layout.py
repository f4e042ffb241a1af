"""The slots that a policy lays out on a node: SLOT_TYPE_n and NUM_SLOTS_TYPE_n read to amounts.

Rules
-----
A policy may claim more cores and memory than the node has (NUM_CPUS, MEMORY), so that slots overlap; within what
it claims its slots must fit. Disk and GPUs never overlap: a GPU belongs to one slot. Amounts are whole numbers,
parts are rounded down; how they are written is `slot_sizes`. Source: HTCondor manual, dividing system resources.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pilotage.classads import InvalidClassAdError, parse_value
from pilotage.errors import InvalidInputError, Violation
from pilotage_pilot.core.amounts import Amounts
from pilotage_pilot.core.policy import Policy, SlotKey, is_yes
from pilotage_pilot.core.slot_sizes import Sizes, shared, stated_sizes

_MOST_SLOTS = 4096
_TYPE = re.compile(r"num_slots_type_(\d+)")


@dataclass(frozen=True, slots=True)
class StaticSlot:
    """One slot of a node, with the ids of its GPUs. A partitionable one is divided among its jobs."""

    key: SlotKey
    amounts: Amounts
    is_partitionable: bool = False
    gpu_ids: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """What the slot is called on its node."""
        return f"slot{self.key.slot_id}"


@dataclass(frozen=True, slots=True)
class Layout:
    """A node's slots, by number; `is_stated` = the policy lays them out, else there is one for all of the node.

    `total` is what they are parts of, which may be more than the node has.
    """

    slots: tuple[StaticSlot, ...]
    total: Amounts
    is_stated: bool

    def slot(self, slot_id: int) -> StaticSlot:
        """Return the slot of this number; one that no policy lays out has the size of the node.

        Raises
        ------
        InvalidInputError
            When there is none.
        """
        if 1 <= slot_id <= len(self.slots):
            return self.slots[slot_id - 1]
        if self.is_stated or slot_id < 1:
            why = f"there is no slot {slot_id}: this policy lays out {len(self.slots)} on this node"
            raise InvalidInputError(Violation("", why))
        return StaticSlot(SlotKey(slot_id), self.total)


def lay_out(policy: Policy, node: Amounts, gpu_ids: tuple[str, ...] | None = None) -> Layout:
    """Return the slots of a node of this size; without `gpu_ids` its GPUs are numbered from 0.

    Raises
    ------
    InvalidInputError
        When a size means nothing, or the slots do not fit in what the policy claims.
    """
    cpus, memory_mib = _number(policy, "NUM_CPUS", node.cpus), _number(policy, "MEMORY", node.memory_mib)
    total = Amounts(cpus, memory_mib, node.disk_mib, node.gpus)
    wishes = [wish for type_id in _types(policy) for wish in _wishes(policy, type_id, total)]
    is_stated = bool(wishes)
    if not wishes:
        count = _number(policy, "NUM_SLOTS", 0)
        is_stated = count > 0
        wishes = [_Wish(None, Sizes(), is_partitionable=not is_stated)] * max(1, count)
    ids = iter(gpu_ids if gpu_ids is not None else tuple(map(str, range(node.gpus))))
    return Layout(tuple(_slots(wishes, total, ids)), total, is_stated)


def layout_change(old: Layout, new: Layout) -> str | None:
    """Return why slots laid out as `old` cannot become `new` ones in a running pilot, None = they are the same."""
    if old.slots == new.slots:
        return None
    return f"the policy lays out other slots ({_said(new)} instead of {_said(old)}): that needs a restart of the pilot"


@dataclass(frozen=True, slots=True)
class _Wish:
    type_id: int | None
    sizes: Sizes
    is_partitionable: bool


def _slots(wishes: list[_Wish], total: Amounts, gpu_ids: Iterator[str]) -> Iterator[StaticSlot]:
    amounts = shared([wish.sizes for wish in wishes], [wish.is_partitionable for wish in wishes], total)
    for number, (wish, each) in enumerate(zip(wishes, amounts, strict=True), start=1):
        ids = tuple(next(gpu_ids) for _ in range(each.gpus))
        yield StaticSlot(SlotKey(number, wish.type_id), each, wish.is_partitionable, ids)


def _said(layout: Layout) -> str:
    sizes = [f"{slot.amounts.cpus} cores and {slot.amounts.memory_mib} MiB" for slot in layout.slots]
    counted = ", ".join(f"{sizes.count(size)} x {size}" for size in dict.fromkeys(sizes))
    return f"{len(sizes)}: {counted}"


def _types(policy: Policy) -> list[int]:
    return sorted(int(found[1]) for name in policy.texts if (found := _TYPE.fullmatch(name)))


def _wishes(policy: Policy, type_id: int, total: Amounts) -> Iterable[_Wish]:
    count = _number(policy, f"NUM_SLOTS_TYPE_{type_id}", 0)
    knob = f"SLOT_TYPE_{type_id}"
    sizes = stated_sizes(knob, policy.text(knob) or "", total)
    return [_Wish(type_id, sizes, is_yes(policy.text(f"{knob}_PARTITIONABLE")))] * count


def _number(policy: Policy, knob: str, default: int) -> int:
    text = policy.text(knob)
    if text is None:
        return default
    try:
        value = parse_value(text)
    except InvalidClassAdError:
        value = text
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        raise InvalidInputError(Violation(knob, f"{text} is no number of at least 0"))
    if knob.startswith("NUM_SLOTS") and value > _MOST_SLOTS:
        raise InvalidInputError(Violation(knob, f"{text} is more than {_MOST_SLOTS} slots"))
    return int(value)
