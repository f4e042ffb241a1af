"""The report of a simulation as JSON, and the differences of two."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from harness.time_plot import TimePanel
from simulator.grid import SimulatedGrid, SimulatedJob

Report = dict[str, Any]
_LINES = 3
"""The number of groups in a plot."""


def report(grid: SimulatedGrid) -> Report:
    """Return waiting times, fairness, utilisation and wasted pilots; times in seconds, use in core hours."""
    totals = grid.totals
    pilot_core_s = _pilot_core_s(grid)
    busy_core_s = math.fsum(sample.busy_cores for sample in grid.samples) * 3600
    return {
        "days": grid.now_s / 86400,
        "jobs": {
            "submitted": len(grid.jobs),
            "ended": sum(job.ended_s is not None for job in grid.jobs),
            "failed": totals.failures,
            "evictions": totals.evictions,
        },
        "waiting_s": waiting_times(grid.jobs, grid.now_s),
        "groups": _groups(grid),
        "utilisation": busy_core_s / pilot_core_s if pilot_core_s else 0.0,
        "lost_core_h": totals.lost_core_s / 3600,
        "pilots": {"sent": totals.pilots_sent, "ended": totals.pilots_ended, "wasted": totals.pilots_wasted},
        "open_circuit_breakers": sum(each.is_tripped for each in grid.throttles.values()),
    }


def _pilot_core_s(grid: SimulatedGrid) -> float:
    return math.fsum(sample.pilot_cores for sample in grid.samples) * 3600


def waiting_times(jobs: Sequence[SimulatedJob], now_s: float) -> Mapping[str, float]:
    """Return the times to the first start; a job that has not started counts as long as it has waited."""
    waits = sorted((now_s if job.first_started_s is None else job.first_started_s) - job.traced.came_s for job in jobs)
    if not waits:
        return {}
    parts = {"median": 0.5, "p95": 0.95, "longest": 1.0}
    return {
        "mean": math.fsum(waits) / len(waits),
        **{name: waits[min(len(waits) - 1, int(part * len(waits)))] for name, part in parts.items()},
    }


def _groups(grid: SimulatedGrid) -> Mapping[str, Mapping[str, object]]:
    """Return the use of each group beside its entitlement, as parts of all."""
    used: defaultdict[Any, float] = defaultdict(float)
    for account, core_s in grid.totals.used_core_s.items():
        used[account.group_id] += core_s
    jobs = defaultdict(list)
    for job in grid.jobs:
        jobs[job.task_queue.account.group_id].append(job)
    whole, entitled = sum(used.values()) or 1.0, grid.shares.settings.entitlements(jobs)
    entitled_whole = sum(entitled.values()) or 1.0
    return {
        str(group): {
            "used_core_h": used[group] / 3600,
            "used_part": used[group] / whole,
            "entitled_part": entitled[group] / entitled_whole,
            "waiting_s": waiting_times(of_group, grid.now_s),
        }
        for group, of_group in sorted(jobs.items())
    }


def differences(before: Report, after: Report, name: str = "") -> dict[str, tuple[float, float]]:
    """Return the numbers that differ, before and after, by their dotted names; a missing one is 0."""
    found: dict[str, tuple[float, float]] = {}
    for key in dict.fromkeys([*before, *after]):
        one, other = before.get(key), after.get(key)
        if isinstance(one, Mapping) or isinstance(other, Mapping):
            found |= differences(dict(one or {}), dict(other or {}), f"{name}{key}.")
        elif one != other:
            found[f"{name}{key}"] = (one or 0, other or 0)
    return found


def panel(title: str, grid: SimulatedGrid) -> TimePanel:
    """Return the plot of the cores of the groups that have used most."""
    used = sorted(
        {group for sample in grid.samples for group in sample.by_group}, key=lambda group: -_total(grid, group)
    )
    lines = {
        group: [(sample.time_s / 3600, sample.by_group.get(group, 0)) for sample in grid.samples]
        for group in used[:_LINES]
    }
    top = max(1, *(sample.pilot_cores for sample in grid.samples))
    return TimePanel(f"cores in use, {title}", lines or {"none": [(0, 0), (1, 0)]}, top, top)


def _total(grid: SimulatedGrid, group: str) -> int:
    return sum(sample.by_group.get(group, 0) for sample in grid.samples)
