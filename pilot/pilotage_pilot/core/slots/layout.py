"""The static slots that a policy lays out on a node: SLOT_TYPE_n, NUM_SLOTS_TYPE_n and their sizes.

Rules
-----
A policy may claim more cores and memory than the node has (NUM_CPUS, MEMORY), so that slots overlap. Its slots must fit
in what it claims. Disk and GPUs never overlap: a GPU belongs to one slot. Amounts are whole numbers, rounded down.
A size is a number, a part (25%, 1/4) or auto; memory is in MiB and disk in KiB unless a unit is given. Sizes that are
auto or missing share the rest equally. GPUs that are left go to partitionable slots only.
Source: HTCondor manual, dividing system resources.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from pilotage.classads.library import InvalidClassAdError, parse_value
from pilotage.errors import InvalidInputError, Violation
from pilotage.values.amounts import Amounts
from pilotage_pilot.core.policy import Policy, SlotKey, is_yes

_SEPARATOR = re.compile(r"[\s,;]+")
_RESOURCES = ("cpus", "memory", "ram", "disk", "gpus")
"""The sizes that are read here; their names may be shortened."""

_NUMBER = re.compile(r"(?P<number>[\d.]+(?:/\d+)?)(?P<unit>%|[KMGT]i?B?)?", re.IGNORECASE)
_IN_MIB = {"k": Fraction(1, 1024), "m": Fraction(1), "g": Fraction(1024), "t": Fraction(1024**2)}
_AUTO = ("auto", "automatic")

_ALL = "*"
"""The key of a size that is stated for all resources."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """The stated sizes of a slot, memory and disk in MiB; None = an equal share of the rest."""

    cpus: int | None = None
    memory_mib: int | None = None
    disk_mib: int | None = None
    gpus: int | None = None
    asks_for_gpus: bool = False


def stated_sizes(knob: str, text: str, total: Amounts) -> Sizes:
    """Return the sizes in the knob's `text`; parts are parts of `total`. Raises InvalidInputError."""
    stated = _by_resource(text)
    every = stated.get(_ALL)
    gpus = stated.get("gpus", every)
    return Sizes(
        cpus=_size(knob, stated.get("cpus", every), total.cpus, ""),
        memory_mib=_size(knob, stated.get("memory", stated.get("ram", every)), total.memory_mib, "m"),
        disk_mib=_size(knob, stated.get("disk", every), total.disk_mib, "k"),
        gpus=_size(knob, gpus, total.gpus, ""),
        asks_for_gpus=gpus is not None,
    )


def shared(sizes: Sequence[Sizes], are_partitionable: Sequence[bool], total: Amounts) -> list[Amounts]:
    """Return the amounts of slots of these sizes; raises InvalidInputError if they exceed `total`."""
    gpus = [
        each.gpus if each.asks_for_gpus or is_partitionable else 0
        for each, is_partitionable in zip(sizes, are_partitionable, strict=True)
    ]
    columns = (
        _shared([each.cpus for each in sizes], total.cpus, "cores"),
        _shared([each.memory_mib for each in sizes], total.memory_mib, "MiB of memory"),
        _shared([each.disk_mib for each in sizes], total.disk_mib, "MiB of disk"),
        _shared(gpus, total.gpus, "GPUs"),
    )
    return [Amounts(*amounts) for amounts in zip(*columns, strict=True)]


def _by_resource(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for part in filter(None, _SEPARATOR.split(re.sub(r"\s*=\s*", "=", text.strip()))):
        name, is_named, size = part.rpartition("=")
        if not is_named:
            found[_ALL] = size
            continue
        known = [full for full in _RESOURCES if name and full.startswith(name.lower())]
        found[known[0] if known else name.lower()] = size
    return found


def _size(knob: str, text: str | None, total: int, unit: str) -> int | None:
    """Return a size; `unit` is the unit of a number without one, empty = a count."""
    if text is None or text.lower() in _AUTO:
        return None
    found = _NUMBER.fullmatch(text)
    unit_given = (found["unit"] or "").lower()[:1] if found else ""
    try:
        if found is None or (unit_given not in _units(found["number"], unit)):
            raise ValueError(text)
        number = Fraction(found["number"])
    except (ValueError, ZeroDivisionError) as error:
        why = f"{text} is not a size: a number, a part such as 25% or 1/4, or auto"
        raise InvalidInputError(Violation(knob, why)) from error
    if unit_given == "%":
        return int(number * total / 100)
    if "/" in found["number"]:
        return int(number * total)
    return int(number * _IN_MIB.get(unit_given or unit, Fraction(1)))


def _units(number: str, unit: str) -> tuple[str, ...]:
    """Return the units that are allowed after a number whose default unit is `unit`."""
    return ("",) if "/" in number else ("", "%", *_IN_MIB) if unit else ("", "%")


def _shared(sizes: list[int | None], total: int, what: str) -> list[int]:
    """Return the sizes with the rest divided equally among the unstated ones."""
    left = total - sum(size for size in sizes if size is not None)
    unstated = sizes.count(None)
    if left < 0 or (unstated > left and what == "cores"):
        stated = sum(1 if size is None else size for size in sizes)
        raise InvalidInputError(Violation("", f"the slots ask for {stated} {what}, the node has {total}"))
    return [left // unstated if size is None else size for size in sizes]


_MAX_SLOTS = 4096
_TYPE = re.compile(r"num_slots_type_(\d+)")


@dataclass(frozen=True, slots=True)
class StaticSlot:
    """One static slot of a node, with the ids of its GPUs. A partitionable one is divided among its jobs."""

    key: SlotKey
    amounts: Amounts
    is_partitionable: bool = False
    gpu_ids: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The slot's name on its node."""
        return f"slot{self.key.slot_id}"


@dataclass(frozen=True, slots=True)
class Layout:
    """A node's slots in order of their numbers; `is_stated` = from the policy, else one slot for the whole node.

    `total` is what they are parts of. It may exceed the node.
    """

    slots: tuple[StaticSlot, ...]
    total: Amounts
    is_stated: bool

    def slot(self, slot_id: int) -> StaticSlot:
        """Return the slot with this number; without a stated layout it has the size of the node.

        Raises
        ------
        InvalidInputError
            When it does not exist.
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
        When a size is invalid, or the slots do not fit in what the policy claims.
    """
    cpus, memory_mib = _number(policy, "NUM_CPUS", node.cpus), _number(policy, "MEMORY", node.memory_mib)
    total = Amounts(cpus, memory_mib, node.disk_mib, node.gpus)
    type_ids = sorted(int(found[1]) for name in policy.texts if (found := _TYPE.fullmatch(name)))
    specs = [spec for type_id in type_ids for spec in _slot_specs(policy, type_id, total)]
    is_stated = bool(specs)
    if not specs:
        count = _number(policy, "NUM_SLOTS", 0)
        is_stated = count > 0
        specs = [_SlotSpec(None, Sizes(), is_partitionable=not is_stated)] * max(1, count)
    ids = iter(gpu_ids if gpu_ids is not None else tuple(map(str, range(node.gpus))))
    return Layout(tuple(_slots(specs, total, ids)), total, is_stated)


def layout_change(old: Layout, new: Layout) -> str | None:
    """Return why a running pilot cannot change from layout `old` to `new`; None = they are equal."""
    if old.slots == new.slots:
        return None
    return f"the policy lays out other slots ({_text(new)} instead of {_text(old)}): that needs a restart of the pilot"


@dataclass(frozen=True, slots=True)
class _SlotSpec:
    type_id: int | None
    sizes: Sizes
    is_partitionable: bool


def _slots(specs: list[_SlotSpec], total: Amounts, gpu_ids: Iterator[str]) -> Iterator[StaticSlot]:
    amounts = shared([spec.sizes for spec in specs], [spec.is_partitionable for spec in specs], total)
    for number, (spec, each) in enumerate(zip(specs, amounts, strict=True), start=1):
        ids = tuple(next(gpu_ids) for _ in range(each.gpus))
        yield StaticSlot(SlotKey(number, spec.type_id), each, spec.is_partitionable, ids)


def _text(layout: Layout) -> str:
    sizes = [f"{slot.amounts.cpus} cores and {slot.amounts.memory_mib} MiB" for slot in layout.slots]
    counted = ", ".join(f"{sizes.count(size)} x {size}" for size in dict.fromkeys(sizes))
    return f"{len(sizes)}: {counted}"


def _slot_specs(policy: Policy, type_id: int, total: Amounts) -> Iterable[_SlotSpec]:
    count = _number(policy, f"NUM_SLOTS_TYPE_{type_id}", 0)
    knob = f"SLOT_TYPE_{type_id}"
    sizes = stated_sizes(knob, policy.text(knob) or "", total)
    return [_SlotSpec(type_id, sizes, is_yes(policy.text(f"{knob}_PARTITIONABLE")))] * count


def _number(policy: Policy, knob: str, default: int) -> int:
    text = policy.text(knob)
    if text is None:
        return default
    try:
        value = parse_value(text)
    except InvalidClassAdError:
        value = text
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        raise InvalidInputError(Violation(knob, f"{text} is not a number of at least 0"))
    if knob.startswith("NUM_SLOTS") and value > _MAX_SLOTS:
        raise InvalidInputError(Violation(knob, f"{text} is more than {_MAX_SLOTS} slots"))
    return int(value)
