"""Sizes of slot types: how SLOT_TYPE_n writes them, and how what is not stated is shared out.

Rules
-----
A size is a number, a part (25%, 1/4) or auto; memory is in MiB and disk in KiB unless a unit is written. What is
auto, or not stated, is an equal part of what the others leave; but only slots that ask for GPUs have any, and what
they leave is the partitionable slots'.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from pilotage.errors import InvalidInputError, Violation
from pilotage_pilot.core.amounts import Amounts

_SEPARATOR = re.compile(r"[\s,;]+")
_RESOURCES = ("cpus", "memory", "ram", "disk", "gpus")
"""The sizes that are read here; their names may be shortened."""

_NUMBER = re.compile(r"(?P<number>[\d.]+(?:/\d+)?)(?P<unit>%|[KMGT]i?B?)?", re.IGNORECASE)
_IN_MIB = {"k": Fraction(1, 1024), "m": Fraction(1), "g": Fraction(1024), "t": Fraction(1024**2)}
_AUTO = ("auto", "automatic")

_ALL = "*"
"""The name under which a size stands that is stated for every resource."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """What a slot is to have, memory and disk in MiB; None = its share of what is left."""

    cpus: int | None = None
    memory_mib: int | None = None
    disk_mib: int | None = None
    gpus: int | None = None
    asks_for_gpus: bool = False


def stated_sizes(knob: str, text: str, total: Amounts) -> Sizes:
    """Return the sizes that the knob's `text` states, parts being parts of `total`; raises InvalidInputError."""
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
    """Return the amounts of slots of these sizes; raises InvalidInputError where they are more than `total`."""
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
    """Return a size; `unit` is what a number without one is in, empty = it is a count."""
    if text is None or text.lower() in _AUTO:
        return None
    found = _NUMBER.fullmatch(text)
    said = (found["unit"] or "").lower()[:1] if found else ""
    try:
        if found is None or (said not in _units(found["number"], unit)):
            raise ValueError(text)
        number = Fraction(found["number"])
    except (ValueError, ZeroDivisionError) as error:
        why = f"{text} is no size: a number, a part such as 25% or 1/4, or auto"
        raise InvalidInputError(Violation(knob, why)) from error
    if said == "%":
        return int(number * total / 100)
    if "/" in found["number"]:
        return int(number * total)
    return int(number * _IN_MIB.get(said or unit, Fraction(1)))


def _units(number: str, unit: str) -> tuple[str, ...]:
    """Return the units that may stand after a number, where `unit` is meant without one."""
    return ("",) if "/" in number else ("", "%", *_IN_MIB) if unit else ("", "%")


def _shared(sizes: list[int | None], total: int, what: str) -> list[int]:
    """Return the sizes with what is left shared out equally among those that state none."""
    left = total - sum(size for size in sizes if size is not None)
    unstated = sizes.count(None)
    if left < 0 or (unstated > left and what == "cores"):
        stated = sum(1 if size is None else size for size in sizes)
        raise InvalidInputError(Violation("", f"the slots ask for {stated} {what}, the node has {total}"))
    return [left // unstated if size is None else size for size in sizes]
