"""Whether a job may go to a queue, decided a second time: one job, one queue, one rule after the other.

It reads rows of `resolved.jsonl` (site, ce, queue, params) and knows nothing of our own packages, so that what
they decide can be compared with it. Sizes are in MiB, times in seconds.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CAPACITIES = {
    "memory": "size",
    "disk": "size",
    "gpumemory": "size",
    "cpus": "count",
    "gpus": "count",
    "maxwalltime": "time",
}
"""Parameters that are capacities without anybody saying so, and what their units are."""

UNITS = {
    "size": {"": 1.0, "b": 1 / 1024**2, "k": 1 / 1024, "m": 1.0, "g": 1024.0, "t": 1024.0**2, "p": 1024.0**3},
    "time": {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0},
    "count": {"": 1.0},
}

Place = tuple[str, str, str]
"""Site, CE and queue."""


@dataclass(frozen=True)
class Row:
    """A queue with what it offers in effect, by lower-case name."""

    site: str
    ce: str
    queue: str
    offers: Mapping[str, Any]

    @property
    def place(self) -> Place:
        """Where it is."""
        return self.site, self.ce, self.queue


@dataclass(frozen=True)
class Wish:
    """What a job asks for; empty or None = nothing."""

    vo: str
    requirements: Mapping[str, Any] = field(default_factory=dict)
    sites: tuple[str, ...] = ()
    banned_sites: tuple[str, ...] = ()
    platforms: tuple[str, ...] = ()
    cpu_time_s: float | None = None
    cpus: float | None = None
    memory_mib: float | None = None
    disk_mib: float | None = None
    gpus: float | None = None


def read_rows(resolved: Path) -> list[Row]:
    """Return the queues of a `resolved.jsonl`."""
    rows: list[Row] = []
    for line in resolved.read_text(encoding="utf-8").splitlines():
        data = json.loads(line)
        offers = {name.lower(): value for name, value in data["params"].items()}
        rows.append(Row(data["site"], data["ce"], data["queue"], offers))
    return rows


def eligible(wish: Wish, rows: Iterable[Row]) -> set[Place]:
    """Return where the job may go."""
    return {row.place for row in rows if not objections(wish, row)}


def objections(wish: Wish, row: Row) -> list[str]:
    """Return what stands against the job at a queue, each as the name of a parameter; nothing = it may go."""
    found: list[str] = []
    access = [text(vo) for vo in listed(row.offers.get("vos", []))]
    if access and text(wish.vo) not in access:
        found.append("VOs")
    if row.offers.get("enabled") is False:
        found.append("Enabled")
    asked_tags = {
        text(tag) for name, asked in wish.requirements.items() if name.lower() == "tags" for tag in listed(asked)
    }
    if not {text(tag) for tag in listed(row.offers.get("requiredtags", []))} <= asked_tags:
        found.append("RequiredTags")
    found += [name for name, asked in wish.requirements.items() if not satisfied(name.lower(), asked, row)]
    return found + keyword_objections(wish, row) + size_objections(wish, row)


def satisfied(name: str, asked: Any, row: Row) -> bool:
    """Return whether a queue offers what one requirement asks."""
    if name not in row.offers:
        return False
    asks, offers = listed(asked), listed(row.offers[name])
    if name == "tags":
        return {text(tag) for tag in asks} <= {text(tag) for tag in offers}
    if all(isinstance(one, bool) for one in asks):
        return bool({text(one) for one in asks} & {truth(one) for one in offers})
    kind = CAPACITIES.get(name)
    if kind is None and all(isinstance(one, int | float) and not isinstance(one, bool) for one in asks):
        kind = "count"
    if kind is None:
        return bool({text(one) for one in asks} & {text(one) for one in offers})
    least = min(amount(one, kind) for one in asks)
    return any(amount(one, kind) >= least for one in offers)


def keyword_objections(wish: Wish, row: Row) -> list[str]:
    """Return which of the keywords Site, BannedSite and Platform stand against a queue."""
    found: list[str] = []
    sites = {text(site) for site in wish.sites}
    if sites and "any" not in sites and text(row.site) not in sites:
        found.append("Site")
    if text(row.site) in {text(site) for site in wish.banned_sites}:
        found.append("BannedSite")
    platforms = {text(platform) for platform in wish.platforms}
    offered = {text(platform) for platform in listed(row.offers.get("platform", []))}
    if platforms and "any" not in platforms and offered and not platforms & offered:
        found.append("Platform")
    return found


def size_objections(wish: Wish, row: Row) -> list[str]:
    """Return which sizes are more than a queue states; what is not stated as a number restricts nothing."""
    asked = {
        "cputime": (wish.cpu_time_s, "time"),
        "cpus": (wish.cpus, "count"),
        "memory": (wish.memory_mib, "size"),
        "disk": (wish.disk_mib, "size"),
        "gpus": (wish.gpus, "count"),
    }
    found: list[str] = []
    for name, (size, kind) in asked.items():
        stated = [amount(one, kind) for one in listed(row.offers.get(name, []))]
        numbers = [one for one in stated if not math.isnan(one)]
        if size is not None and numbers and max(numbers) < size:
            found.append(name)
    return found


def listed(value: Any) -> list[Any]:
    """Return a list as it is, and anything else as the only element of one."""
    return list(value) if isinstance(value, list | tuple) else [value]


def text(value: Any) -> str:
    """Return a value as the lower-case text under which values are compared."""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value).lower()


def truth(value: Any) -> str:
    """Return "true" or "false" for what stands for one of them, else anything but these."""
    return {"yes": "true", "no": "false"}.get(text(value), text(value)) if isinstance(value, bool | str) else "neither"


def amount(value: Any, kind: str) -> float:
    """Return a number, or the number that a text such as "2 GB" stands for; not a number for all else."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return math.nan
    if not isinstance(value, str):
        return float(value)
    found = re.fullmatch(r"\s*([-+]?[0-9]+\.?[0-9]*|[-+]?\.[0-9]+)\s*([a-z]*)\s*", value.lower())
    if found is None:
        return math.nan
    unit = found[2][:1]
    return float(found[1]) * UNITS[kind][unit] if unit in UNITS[kind] else math.nan
