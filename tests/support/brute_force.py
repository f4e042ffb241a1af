"""An oracle of eligibility: checks one job against one queue, one rule after the other.

It reads rows of `resolved.jsonl` (site, ce, queue, params) and uses none of the product's packages, so that their
decisions can be compared with it. Sizes are in MiB, times in seconds.
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
"""Parameters that are capacities without a declaration, and the kind of their unit."""

UNITS = {
    "size": {"": 1.0, "b": 1 / 1024**2, "k": 1 / 1024, "m": 1.0, "g": 1024.0, "t": 1024.0**2, "p": 1024.0**3},
    "time": {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0},
    "count": {"": 1.0},
}

Place = tuple[str, str, str]
"""Site, CE and queue."""


@dataclass(frozen=True)
class Row:
    """A queue with its effective parameters by lower-case name."""

    site: str
    ce: str
    queue: str
    offers: Mapping[str, Any]

    @property
    def place(self) -> Place:
        return self.site, self.ce, self.queue


@dataclass(frozen=True)
class OracleJob:
    """The requirements of a job; empty or None = no requirement."""

    vo: str
    requirements: Mapping[str, Any] = field(default_factory=dict)
    sites: tuple[str, ...] = ()
    banned_sites: tuple[str, ...] = ()
    platforms: tuple[str, ...] = ()
    cpu_time_s: float | None = None
    wall_time_s: float | None = None
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


def eligible(job: OracleJob, rows: Iterable[Row]) -> set[Place]:
    """Return the queues that the job is eligible for."""
    return {row.place for row in rows if not mismatches(job, row)}


def mismatches(job: OracleJob, row: Row) -> list[str]:
    """Return the parameters that exclude the job from a queue; empty = the job is eligible."""
    excluded: list[str] = []
    access = [text(vo) for vo in listed(row.offers.get("vos", []))]
    if access and text(job.vo) not in access:
        excluded.append("VOs")
    if row.offers.get("enabled") is False:
        excluded.append("Enabled")
    requested_tags = {
        text(tag) for name, required in job.requirements.items() if name.lower() == "tags" for tag in listed(required)
    }
    if not {text(tag) for tag in listed(row.offers.get("requiredtags", []))} <= requested_tags:
        excluded.append("RequiredTags")
    excluded += [name for name, required in job.requirements.items() if not satisfied(name.lower(), required, row)]
    return excluded + keyword_mismatches(job, row) + size_mismatches(job, row)


def satisfied(name: str, required: Any, row: Row) -> bool:
    """Return whether a queue satisfies one requirement."""
    if name not in row.offers:
        return False
    required_values, offers = listed(required), listed(row.offers[name])
    if name == "tags":
        return {text(tag) for tag in required_values} <= {text(tag) for tag in offers}
    if all(isinstance(one, bool) for one in required_values):
        return bool({text(one) for one in required_values} & {truth(one) for one in offers})
    kind = CAPACITIES.get(name)
    if kind is None and all(isinstance(one, int | float) and not isinstance(one, bool) for one in required_values):
        kind = "count"
    if kind is None:
        return bool({text(one) for one in required_values} & {text(one) for one in offers})
    least = min(amount(one, kind) for one in required_values)
    return any(amount(one, kind) >= least for one in offers)


def keyword_mismatches(job: OracleJob, row: Row) -> list[str]:
    """Return which of the keywords Site, BannedSite and Platform exclude a queue."""
    excluded: list[str] = []
    sites = {text(site) for site in job.sites}
    if sites and "any" not in sites and text(row.site) not in sites:
        excluded.append("Site")
    if text(row.site) in {text(site) for site in job.banned_sites}:
        excluded.append("BannedSite")
    platforms = {text(platform) for platform in job.platforms}
    offered = {text(platform) for platform in listed(row.offers.get("platform", []))}
    if platforms and "any" not in platforms and offered and not platforms & offered:
        excluded.append("Platform")
    return excluded


def size_mismatches(job: OracleJob, row: Row) -> list[str]:
    """Return which sizes exceed those of a queue; a parameter that is missing or no number restricts nothing."""
    required = {
        "cputime": (job.cpu_time_s, "time"),
        "maxwalltime": (job.wall_time_s, "time"),
        "cpus": (job.cpus, "count"),
        "memory": (job.memory_mib, "size"),
        "disk": (job.disk_mib, "size"),
        "gpus": (job.gpus, "count"),
    }
    excluded: list[str] = []
    for name, (size, kind) in required.items():
        stated = [amount(one, kind) for one in listed(row.offers.get(name, []))]
        numbers = [one for one in stated if not math.isnan(one)]
        if size is not None and numbers and max(numbers) < size:
            excluded.append(name)
    return excluded


def listed(value: Any) -> list[Any]:
    """Return a list unchanged, and any other value as a list of one element."""
    return list(value) if isinstance(value, list | tuple) else [value]


def text(value: Any) -> str:
    """Return the lower-case text that values are compared by."""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value).lower()


def truth(value: Any) -> str:
    """Return "true" or "false" for a boolean or its text, and another text for all else."""
    return {"yes": "true", "no": "false"}.get(text(value), text(value)) if isinstance(value, bool | str) else "neither"


def amount(value: Any, kind: str) -> float:
    """Return a number, or the value of a text such as "2 GB" in the base unit; NaN for all else."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return math.nan
    if not isinstance(value, str):
        return float(value)
    match = re.fullmatch(r"\s*([-+]?[0-9]+\.?[0-9]*|[-+]?\.[0-9]+)\s*([a-z]*)\s*", value.lower())
    if match is None:
        return math.nan
    unit = match[2][:1]
    return float(match[1]) * UNITS[kind][unit] if unit in UNITS[kind] else math.nan
