"""The static slots that a policy lays out on a node: SLOT_TYPE_n and NUM_SLOTS_TYPE_n read to sizes.

Rules
-----
A policy may claim more cores and memory than the node has (NUM_CPUS, MEMORY), so that slots overlap; within what
it claims its slots must fit. Sizes are whole numbers, parts are rounded down. Source: HTCondor manual, dividing
system resources.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

from pilotage.classads import InvalidClassAdError, parse_value
from pilotage.errors import InvalidInputError, Violation
from pilotage_pilot.core.amounts import Amounts
from pilotage_pilot.core.policy import Policy, SlotKey

_MOST_SLOTS = 4096
_TYPE = re.compile(r"num_slots_type_(\d+)")
_SEPARATOR = re.compile(r"[\s,;]+")
_RESOURCES = ("cpus", "memory", "ram")
"""The sizes that are read here; their names may be shortened."""

_AUTO = None
"""A size that is not stated: an equal part of what the other slots leave."""

_Size = int | None


@dataclass(frozen=True, slots=True)
class StaticSlot:
    """One slot of a node; memory in MiB. A partitionable one is divided among its jobs."""

    key: SlotKey
    cpus: int
    memory_mib: int
    is_partitionable: bool = False


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
        return StaticSlot(SlotKey(slot_id), self.total.cpus, self.total.memory_mib)


def lay_out(policy: Policy, node: Amounts) -> Layout:
    """Return the slots of a node of this size.

    Raises
    ------
    InvalidInputError
        When a size means nothing, or the slots do not fit in what the policy claims.
    """
    total = Amounts(_number(policy, "NUM_CPUS", node.cpus), _number(policy, "MEMORY", node.memory_mib))
    wishes = [wish for type_id in _types(policy) for wish in _wishes(policy, type_id, total)]
    if not wishes:
        return _unstated(policy, total)
    cpus = _shared([wish.cpus for wish in wishes], total.cpus, "cores")
    memory = _shared([wish.memory_mib for wish in wishes], total.memory_mib, "MiB of memory")
    each = enumerate(zip(wishes, cpus, memory, strict=True), start=1)
    slots = (
        StaticSlot(SlotKey(number, wish.type_id), cores, memory_mib, wish.is_partitionable)
        for number, (wish, cores, memory_mib) in each
    )
    return Layout(tuple(slots), total, is_stated=True)


@dataclass(frozen=True, slots=True)
class _Wish:
    type_id: int
    cpus: _Size
    memory_mib: _Size
    is_partitionable: bool


def _unstated(policy: Policy, total: Amounts) -> Layout:
    count = _number(policy, "NUM_SLOTS", 0)
    if count == 0:
        slot = StaticSlot(SlotKey(1), total.cpus, total.memory_mib, is_partitionable=True)
        return Layout((slot,), total, is_stated=False)
    cpus = _shared([_AUTO] * count, total.cpus, "cores")
    memory = _shared([_AUTO] * count, total.memory_mib, "MiB of memory")
    each = enumerate(zip(cpus, memory, strict=True), start=1)
    slots = (StaticSlot(SlotKey(number), cores, memory_mib) for number, (cores, memory_mib) in each)
    return Layout(tuple(slots), total, is_stated=True)


def _types(policy: Policy) -> list[int]:
    return sorted(int(found[1]) for name in policy.texts if (found := _TYPE.fullmatch(name)))


def _wishes(policy: Policy, type_id: int, total: Amounts) -> Iterable[_Wish]:
    count = _number(policy, f"NUM_SLOTS_TYPE_{type_id}", 0)
    knob = f"SLOT_TYPE_{type_id}"
    stated = _stated_sizes(knob, policy.text(knob) or "")
    every = stated.get("*")
    cpus = _size(knob, stated.get("cpus", every), total.cpus)
    memory = _size(knob, stated.get("memory", stated.get("ram", every)), total.memory_mib)
    is_partitionable = (policy.text(f"{knob}_PARTITIONABLE") or "").lower() in ("true", "t", "yes", "1")
    return [_Wish(type_id, cpus, memory, is_partitionable)] * count


def _stated_sizes(knob: str, text: str) -> dict[str, str]:
    """Return the stated sizes by resource; under * what is stated for all of them."""
    found: dict[str, str] = {}
    for part in filter(None, _SEPARATOR.split(re.sub(r"\s*=\s*", "=", text.strip()))):
        name, is_named, size = part.rpartition("=")
        if not is_named:
            found["*"] = size
            continue
        known = [full for full in _RESOURCES if name and full.startswith(name.lower())]
        found[known[0] if known else name.lower()] = size
    return found


def _size(knob: str, text: str | None, total: int) -> _Size:
    if text is None or text.lower() in ("auto", "automatic"):
        return _AUTO
    try:
        if text.endswith("%"):
            size = Fraction(text[:-1]) * total / 100
        else:
            size = Fraction(text) * (total if "/" in text else 1)
    except (ValueError, ZeroDivisionError):
        size = Fraction(-1)
    if size < 0:
        raise InvalidInputError(Violation(knob, f"{text} is no size: a number, a part such as 25% or 1/4, or auto"))
    return int(size)


def _shared(sizes: list[_Size], total: int, what: str) -> list[int]:
    """Return the sizes with what is left shared out equally among those that state none."""
    left = total - sum(size for size in sizes if size is not None)
    unstated = sizes.count(_AUTO)
    if left < 0 or (unstated > left and what == "cores"):
        stated = sum(1 if size is None else size for size in sizes)
        raise InvalidInputError(Violation("", f"the slots ask for {stated} {what}, the node has {total}"))
    return [left // unstated if size is None else size for size in sizes]


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
